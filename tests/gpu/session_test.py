"""That a run on a GPU (device.py) leaves what it found whatever happens in it: parts that break, hang, run out of time; peers that are
missing, die or say nothing. Needs no device. Last line: "N passed, N failed"."""
import contextlib
import json
import pathlib
import re
import subprocess
import sys
import time
from unittest import mock

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE.parent / "models"), str(HERE)]

import cases  # noqa: E402
import correct  # noqa: E402
import fast  # noqa: E402
import fetch  # noqa: E402
import harness  # noqa: E402
import session  # noqa: E402

FAKE = """
import sys, time
kind = sys.argv[1]
if kind == "missing": sys.exit("there is no such package")
if kind == "hangs": time.sleep(60)
print("ready", flush=True)
for n, _ in enumerate(sys.stdin):
    if kind == "dies" and n == 1: sys.exit("lost")
    print("ms", 2.5 + n, flush=True)
"""


def quiet(s):
    """Its failures are what is asked for: they are no failures of this test."""
    s.check = lambda what, problem: (setattr(s, "failed", s.failed + bool(problem)), problem and s.data["failures"].update({what: problem}), s.save())
    s.skip = lambda what, why: (setattr(s, "skipped", s.skipped + 1), s.data["left_out"].update({what: why}), s.save())
    return s


def parts(report):
    path = report.folder / "deep" / "results.json"
    s = quiet(session.Session(path, 4, True))
    kept = lambda: json.loads(path.read_text())

    def breaks(s):
        s.row("one", "a", 1)
        raise ValueError("broken")

    def late(s):
        s.row("two", "a", 1)
        while True:
            s.left()
            time.sleep(0.05)

    def hangs(s):
        s.tool(sys.executable, "-c", "import time; time.sleep(60)")

    def slow(s):
        report.check("a tool that has its own limit", None if s.tool(sys.executable, "-c", "import time; time.sleep(60)", most=0.2) is None else "it came back")
        s.row("three", "a", 1)

    begin = time.monotonic()
    s.part("breaks", breaks, 0.5)
    report.check("what a part found before it broke", None if kept()["one"] == {"a": 1} and "broken" in kept()["failures"]["breaks comes to its end"] else str(kept()))
    s.part("late", late, 0.4)
    report.check("a part without time", None if kept()["two"] == {"a": 1} and kept()["left_out"] == {"the rest of late": "its time is up"} else str(kept()))
    s.part("slow", slow, 1.0)
    report.check("a part behind it", None if kept()["three"] == {"a": 1} and set(kept()["seconds"]) == {"breaks", "late", "slow"} else str(kept()))
    s.part("hangs", hangs, 1.0)
    report.check("a tool that hangs", None if "the rest of hangs" in kept()["left_out"] else str(kept()))
    report.check("the time there is", None if time.monotonic() - begin < 5.5 else f"{time.monotonic() - begin:.1f} s of 4")
    report.check("counts are kept", None if kept()["counts"] == {"passed": s.passed, "failed": s.failed, "skipped": s.skipped} and s.failed == 1 else str(kept()["counts"]))
    s.scratch.cleanup()


def peers(report):
    s = quiet(session.Session(None, 8, False))
    fast.PEER = report.folder / "fake.py"
    fast.PEER.write_text(FAKE)
    fast.RUNNERS = {name: (lambda s, path, inputs, name=name: fast.Peer(s, name, path, inputs)) for name in ("answers", "missing", "dies", "hangs")}
    row = {}
    s.part("peers", lambda s: fast.compared(s, report.folder / "m.onnx", report.folder / "m.npz", row), 1.0)
    report.check("without the one that hangs nothing is timed, nothing is lost", None if "hangs" not in row and "no such package" in row.get("missing", {}).get("not run", "") else str(row))
    report.check("and the time was up", None if "the rest of peers" in s.data["left_out"] else str(s.data))
    s.scratch.cleanup()

    s, row = quiet(session.Session(None, None, False)), {}
    del fast.RUNNERS["hangs"]
    s.part("peers", lambda s: fast.compared(s, report.folder / "m.onnx", report.folder / "m.npz", row), 1.0)
    report.check("one that answers", None if row["answers"] == {"ms": 3.5, "rounds": [2.5, 3.5, 4.5]} else str(row))
    report.check("one that dies", None if "lost" in row["dies"]["not run"] else str(row))
    report.check("none broke the part", str(s.data["failures"]) if s.data["failures"] else None)
    s.scratch.cleanup()


def sanitizer(report):
    """Every kernel with a barrier or an atomic is among those that compute-sanitizer looks at."""
    path, sources = report.folder / "cases.onnx", report.folder / "sources"
    every = [c for c in cases.all_cases(["f32", "f16"]) if c[0] not in cases.INTERPRETED]
    cases.joined(path, every)
    done = harness.run("compile", path, "--target", "sm_90", "--sources", sources, timeout=300)
    chosen, missed, found = {name for kind in correct.SANITIZED for name, _ in correct.sanitized(kind)}, set(), 0
    for file in sources.glob("*") if sources.is_dir() else []:
        text = file.read_text()
        if not re.search(r"__syncthreads|\batomic[A-Z]", text.split("extern \"C\" __global__")[-1]):
            continue
        found += 1
        missed |= {name for name in re.findall(r"(\w+):\d+", text.splitlines()[0]) if name not in chosen}
    report.check("kernels with barriers or atomics are sanitized", done.tail() if done.code else f"only {found} found" if found < 20 else ", ".join(sorted(missed)) or None)


def models(report):
    """The six models that are measured are found, or it is said why not."""
    empty = {"cache_folder": lambda: report.folder, "fill": lambda _, target: fetch.in_place(target, pathlib.Path.touch)}
    for name in fast.BENCHED:
        # Weights of hundreds of megabytes are not written here.
        with mock.patch.multiple(fetch, **empty) if name in fetch.LARGE else contextlib.nullcontext():
            try:
                folder = pathlib.Path(fetch.locate(name))
                missing = [f for f in ("model.onnx", "inputs.npz", "outputs.npz") if not (folder / f).exists()]
                report.check(f"{name} is known", f"no {missing} in {folder}" if missing else None)
            except fetch.Unavailable as why:
                report.skip(f"{name} is known", why)
            except Exception as why:
                report.check(f"{name} is known", f"{type(why).__name__}: {why}")


def verdicts(report):
    """What is not right fails, whatever it is called."""
    s = quiet(session.Session(None, None, True))
    for verdict, wanted in (("equal", None), ("within tolerance", None), ("MISTRUSTED", "MISTRUSTED"), ("DIFFERS", "DIFFERS"), (None, "none of its results")):
        rows = [{"output": "a:y", "verdict": verdict, "text": "", "max_abs": 0}] if verdict else []
        s.ferrule = lambda *_, rows=rows: harness.Done([], harness.OK, json.dumps({"outputs": rows}), "", b"", 0)
        (_, problem), = correct.verified(s, report.folder / "one.onnx", [("a", "(float[2] x) => (float[2] y) { y = Neg(x) }")])
        report.check(f"verdict {verdict}", None if (problem is None) == (wanted is None) and (wanted or "") in (problem or "") else problem or "passes")
    rows = [{"output": "a:y", "verdict": "equal", "text": "", "max_abs": 0}]
    for instead in ("; the host interprets it", "; a generated kernel runs it", "; a generated kernel computes its tail", "no CUDA graph, kernels are launched one by one: "):
        line = f"warning: {instead}a:1: refused" if instead.endswith(" ") else f"warning: a:1 + a:2: refused{instead}"
        s.ferrule = lambda *_, line=line: harness.Done([], harness.OK, json.dumps({"outputs": rows}), line, b"", 0)
        (_, problem), = correct.verified(s, report.folder / "one.onnx", [("a", "(float[2] x) => (float[2] y) { y = Neg(x) }")])
        report.check(f"equal, but:{instead}", None if problem == "not run by the kernel that was planned" else problem or "passes")


def sanitized(report):
    """What compute-sanitizer does not end, or complains about, fails; where it does not run at all, or a library's kernel is at fault, that is said."""
    race = "========= Error: Race reported between Read access at {}+0x10\n=========     and Write access at cudnn_sdpa+0x20 [4 hazards]\nERROR SUMMARY: 1 hazard"
    ended = {"memcheck": None, "racecheck": (99, race.format("ferrule_kernel")), "initcheck": (1, "Device not supported"), "synccheck": (99, race.format("cudnn_sdpa"))}
    s = quiet(session.Session(None, None, False))
    s.tool = lambda *command, **_: ended[command[2]] and subprocess.CompletedProcess(command, *ended[command[2]], "")
    with mock.patch.object(correct.shutil, "which", lambda *_, **__: "compute-sanitizer"):
        correct.memcheck(s)
    got = {kind: sorted(what.split(",")[0] for what in s.data[kind]) for kind in ("failures", "left_out")}
    report.check("compute-sanitizer's ends", None if got == {"failures": ["memcheck"] * 3 + ["racecheck"] * 3, "left_out": ["initcheck"] * 3 + ["synccheck"] * 3} else str(s.data))
    s.scratch.cleanup()


def main():
    report = harness.Report()
    if report.ready:
        parts(report)
        peers(report)
        sanitizer(report)
        models(report)
        verdicts(report)
        sanitized(report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
