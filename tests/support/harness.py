"""What the scripts that test the program share: running it, judging how it ended, counting.

Each script makes one Report, adds checks, and ends with `sys.exit(report.finish())`, which prints the
line "N passed, N failed[, N skipped]" that tests/run.sh reads.
"""
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import threading
import zlib

import onnx
from onnx import parser

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("FERRULE_PROGRAM", str(ROOT / "build" / "ferrule"))

FULL = "--full" in sys.argv or os.environ.get("FERRULE_TEST_FULL") == "1"

OK, DIFFERS, USAGE, UNSUPPORTED, LIMIT, ENVIRONMENT, BUG = 0, 1, 2, 3, 4, 5, 70

# Everything below a space but newline and tab, DEL, and the C1 range as UTF-8; bidirectional marks.
CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\x8e\x8f\xaa-\xae]|\xe2\x81[\xa6-\xa9]")


@dataclasses.dataclass
class Done:
    """How a run of the program ended."""

    command: list
    code: int | None  # negative: killed by that signal; None: had to be stopped
    out: str
    err: str
    raw: bytes  # stdout and stderr together, to look for control characters
    seconds: float  # of processors, because other tests run beside it

    def errors(self):
        """The errors on stderr: lines "error[code]: …"."""
        return re.findall(r"^error(?:\[\w+\])?: .*$", self.err, re.MULTILINE)

    def tail(self):
        """What to print when a check fails."""
        return f"exit status {self.code}, {self.seconds:.2f} s\n  $ {' '.join(map(str, self.command))}\n  " + \
            (self.err or self.out).strip()[-700:].replace("\n", "\n  ")


def by_turns(report, cases, parts):
    """Every case with --full; ordinarily one in `parts`. Which ones changes with the rules and the engine, so that all have their turn."""
    if FULL:
        return list(cases)
    chosen = list(cases)[zlib.crc32((ROOT / "rules" / "proved.txt").read_bytes()) % parts::parts]
    if left := len(cases) - len(chosen):
        report.skip(f"{left} cases", f"by turns, one in {parts} (tests/run.sh --full takes all)")
    return chosen


def libraries():
    """What a bundle (tests/gpu/bundle.py) sets for the program alone: the folder of the libraries that it brings."""
    own = os.environ.get("FERRULE_LIBRARIES")
    return {"LD_LIBRARY_PATH": ":".join(filter(None, [own, os.environ.get("LD_LIBRARY_PATH")]))} if own else {}


def run(*arguments, timeout=60, memory=None, cwd=None, env=None, stdin=None):
    """Runs the program. memory: bytes of address space it may have."""
    command = [PROGRAM, *map(str, arguments)]
    limit = None
    if memory:
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd,
                               stdin=stdin or subprocess.DEVNULL, preexec_fn=limit,
                               env={**os.environ, **libraries(), **(env or {})})
    stopped = threading.Event()
    timer = threading.Timer(timeout, lambda: (stopped.set(), process.kill()))
    timer.start()
    with process.stdout, process.stderr, concurrent.futures.ThreadPoolExecutor(1) as reader:
        pending = reader.submit(process.stderr.read)
        out, err = process.stdout.read(), pending.result()
    _, status, usage = os.wait4(process.pid, 0)
    timer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    return Done(command, None if stopped.is_set() else process.returncode, out.decode(errors="replace"),
                err.decode(errors="replace"), out + err, usage.ru_utime + usage.ru_stime)


def refusal(done, code, *wanted, seconds=2.0, errors=1):
    """None when `done` is a refusal as it should be, else what is wrong with it.

    code: the exit code, or several allowed ones. wanted: regular expressions that the text on stderr
    must match. errors: how many "error" lines there may be at most; at least one.
    """
    codes = code if isinstance(code, (tuple, list, set)) else (code,)
    problem = crash(done)
    if problem:
        return problem
    if done.code not in codes:
        return f"wanted exit status {' or '.join(map(str, codes))}; {done.tail()}"
    if done.seconds > seconds:
        return f"took {done.seconds:.2f} s, allowed are {seconds}; {done.tail()}"
    if done.code in (OK, DIFFERS):
        return None
    found = done.errors()
    if not 1 <= len(found) <= errors:
        return f"{len(found)} error lines, wanted 1{f' to {errors}' if errors > 1 else ''}; {done.tail()}"
    for pattern in wanted:
        if not re.search(pattern, done.err, re.IGNORECASE):
            return f"the message does not say /{pattern}/; {done.tail()}"
    return None


def crash(done):
    """What no run may do, whatever it was given: None, or the description."""
    if done.code is None:
        return f"does not end; {done.tail()}"
    if done.code < 0:
        return f"killed by signal {-done.code}; {done.tail()}"
    if done.code not in (OK, DIFFERS, USAGE, UNSUPPORTED, LIMIT, ENVIRONMENT):
        return f"exit status {done.code} is none of ours; {done.tail()}"
    if re.search(r"terminate called|what\(\):|Traceback|AddressSanitizer|runtime error:|std::bad_alloc", done.err):
        return f"an exception or a trace reached the user; {done.tail()}"
    match = CONTROL.search(done.raw)
    if match:
        return f"control characters {match.group()!r} in the output; {done.tail()}"
    return None


def model(path, text, **options):
    """Writes ONNX text as a model file. options: see onnx_text()."""
    onnx.save(onnx_text(text, **options), str(path))
    return path


def onnx_text(text, opset=None, ir=10):
    """ONNX text -> ModelProto. A text that starts with a graph gets the usual header."""
    text = text.strip()
    if not text.startswith("<"):
        text = f'<ir_version: {ir}, opset_import: ["" : {opset or 18}]>\n' + text
    return parser.parse_model(text)


def answer(done):
    """What --json printed; (answer, None) or (None, problem)."""
    if done.code != OK:
        return None, done.tail()
    try:
        return json.loads(done.out), None
    except ValueError as reason:
        return None, f"stdout is not JSON ({reason}): {done.out[:200]!r}"


class Report:
    """Counts checks, prints those that fail."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.scratch = tempfile.TemporaryDirectory(prefix="ferrule-test-")
        self.folder = pathlib.Path(self.scratch.name)
        # Without a program that loads the shipped rules every check would fail for the same reason.
        self.ready = os.access(PROGRAM, os.X_OK)
        if not self.ready:
            self.check("the program", f"there is no {PROGRAM} (build it, or set FERRULE_PROGRAM)")
            return
        done = run("rules", "list")
        self.ready = done.code == OK
        self.check("the program loads the shipped rules", None if self.ready else done.tail())

    def check(self, what, problem):
        """problem: None (or False) when the check holds, else what is wrong."""
        if problem is None or problem is False:
            self.passed += 1
        else:
            self.failed += 1
            print(f"FAILED {what}: {problem}", flush=True)

    def skip(self, what, why):
        self.skipped += 1
        print(f"skipped {what}: {why}", flush=True)

    def finish(self):
        """Prints the sum; returns the exit status."""
        self.scratch.cleanup()
        print(f"{self.passed} passed, {self.failed} failed" + (f", {self.skipped} skipped" if self.skipped else ""))
        return 1 if self.failed else 0
