"""What tests/run.sh counts: the script itself on a tree of its own, whose tests are a few lines of shell."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "run.sh"
DOCTEST = "[doctest] test cases: {} | {} passed | {} failed | {} skipped"
passed = failed = 0


def write(path, text, executable=True):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755 if executable else 0o644)


def says(output):
    return "cat <<'END'\n" + output + "\nEND"


def counts(what, wanted, *, binary=None, script=None, status=0, executable=True, why=()):
    """run.sh on a tree with one test ends with the line `wanted`, beside one test that passes; why: its reasons of skips."""
    global passed, failed
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "tests").mkdir()
        shutil.copy(SCRIPT, root / "tests/run.sh")
        write(root / "tests/setup/deps.sh", "echo python3")
        write(root / "bin/ninja", "exit 0")
        write(root / "build/build.ninja", "")
        write(root / "build/fine", says(DOCTEST.format(1, 1, 0, 0)))
        (root / "build/tests.txt").write_text("fine\n" + ("other\n" if binary else ""))
        if binary:
            write(root / "build/other", says(binary) + f"\nexit {status}")
        if script:
            write(root / "tests/other/run", says(script) + f"\nexit {status}", executable)
        done = subprocess.run([root / "tests/run.sh"], capture_output=True, text=True, env={**os.environ, "PATH": f"{root}/bin:{os.environ['PATH']}"})
    last, code = done.stdout.splitlines()[-1], 1 if " 0 failed" not in wanted else 0
    reasons = [line.strip() for line in done.stdout.splitlines() if " skipped: " in line]
    if last == wanted and done.returncode == code and (not why or reasons == list(why)):
        passed += 1
    else:
        failed += 1
        print(f"FAILED {what}: {last!r} and exit status {done.returncode}, wanted {wanted!r}\n{done.stdout}{done.stderr}")


skip = "TEST CASE:  a\n\nx.cpp:1: MESSAGE: skipped, there is no compiler\n"
counts("a doctest binary", "3 passed, 0 failed", binary=DOCTEST.format(2, 2, 0, 0))
counts("a case that fails", "2 passed, 1 failed", binary=DOCTEST.format(2, 1, 1, 0), status=1)
counts("a case that says that it is skipped", "2 passed, 0 failed, 1 skipped", binary=skip + DOCTEST.format(2, 2, 0, 0),
       why=["1 skipped: there is no compiler"])
counts("a case that doctest skips", "2 passed, 0 failed, 1 skipped", binary=DOCTEST.format(1, 1, 0, 1), why=["1 skipped: doctest::skip"])
counts("a binary without cases", "1 passed, 1 failed", binary=DOCTEST.format(0, 0, 0, 0))
counts("a binary that ends early", "1 passed, 1 failed", binary="a first line", status=139)
counts("a script", "5 passed, 0 failed, 2 skipped", script="4 passed, 0 failed, 2 skipped")
counts("reasons are counted", "2 passed, 0 failed, 4 skipped",
       script="skipped a: not here: b\nskipped c: too old\nskipped, d: too old\n1 passed, 0 failed, 4 skipped",
       why=["2 skipped: too old", "1 skipped: not here: b", "1 skipped: no reason given"])
counts("a script that skips all", "1 passed, 0 failed, 1 skipped", script="0 passed, 0 failed, 1 skipped")
counts("a script that ran nothing", "1 passed, 1 failed", script="0 passed, 0 failed")
counts("a status that the counts do not explain", "5 passed, 1 failed", script="4 passed, 0 failed", status=3)
counts("a script without a sum", "1 passed, 1 failed", script="all is well")
counts("a script without its run bit", "1 passed, 1 failed", script="4 passed, 0 failed", executable=False)
print(f"{passed} passed, {failed} failed")
sys.exit(1 if failed else 0)
