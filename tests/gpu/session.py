"""What the parts of device.py share: checks that are counted and kept, figures, and the time that is left. All of it is in the results' file
after every step, so that whatever ends the run (a limit of the machine's, a lost device) leaves what was found until then."""
import contextlib
import json
import math
import os
import signal
import subprocess
import time
import traceback

import harness

CUDA = ("--backend", "cuda", "--require-device")


class OutOfTime(Exception):
    """The part has used up its time."""


def started(command, **options):
    """A process that end() ends with all that it started."""
    return subprocess.Popen(list(map(str, command)), text=True, errors="replace", start_new_session=True, **options)


def end(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def plain(value):
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Session(harness.Report):
    def __init__(self, path, seconds, quick, models=None, seed=1):
        self.path, self.quick, self.named, self.seed = path, quick, models, seed
        self.end = self.until = time.monotonic() + seconds if seconds else math.inf
        self.data = {"surroundings": {}, "counts": {}, "failures": {}, "left_out": {}, "seconds": {}}
        super().__init__()

    def check(self, what, problem):
        super().check(what, problem)
        if problem:
            self.data["failures"][what] = str(problem)[:2000]
        self.save()

    def skip(self, what, why):
        super().skip(what, why)
        self.data["left_out"][what] = str(why)[:500]
        self.save()

    def row(self, part, name, value):
        """A figure, or several. JSON has no NaN: what is none is null."""
        self.data.setdefault(part, {})[name] = plain(value)
        self.save()

    def save(self):
        self.data["counts"] = {"passed": self.passed, "failed": self.failed, "skipped": self.skipped}
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            made = self.path.with_name(self.path.name + ".part")
            made.write_text(json.dumps(self.data, indent=1, allow_nan=False) + "\n")
            os.replace(made, self.path)

    def part(self, name, function, share):
        """Runs a part in its share of the time that is left. Nothing that happens in it ends the others."""
        begin = time.monotonic()
        self.until = begin + (self.end - begin) * share
        try:
            function(self)
        except OutOfTime:
            self.skip(f"the rest of {name}", "its time is up")
        except Exception:
            self.check(f"{name} comes to its end", traceback.format_exc()[-1500:])
        self.data["seconds"][name] = round(time.monotonic() - begin, 1)
        self.save()

    def left(self, most=math.inf):
        """Seconds that the next step may take, at most `most`; raises where nothing can be done in them."""
        seconds = self.until - time.monotonic()
        if seconds < 2:
            raise OutOfTime
        return min(seconds, most)

    def models(self, usual, quick):
        """Which models: those that were named, else a part's usual ones, fewer in a rehearsal."""
        return self.named or (quick if self.quick else usual)

    def ferrule(self, *arguments, most=300, device=True):
        """Runs the program, on the device. Raises OutOfTime where the part's end stops it and not its own limit."""
        limit = self.left(most)
        done = harness.run(*arguments, *(CUDA if device else ()), timeout=limit)
        if done.code is None and limit < most:
            raise OutOfTime
        return done

    def answer(self, *arguments, most=300, device=True):
        """(what --json says, None) or (None, problem)."""
        return harness.answer(self.ferrule(*arguments, "--json", most=most, device=device))

    def tool(self, *command, most=300, env=None):
        """Another program; None where it does not end in time."""
        limit = self.left(most)
        process = started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            if limit < most:
                raise OutOfTime from None
            return None
        finally:
            end(process)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)
