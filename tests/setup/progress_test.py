"""progress.sh: what it says of a build, and what it lets through."""
import pathlib
import subprocess
import time

SCRIPT = pathlib.Path(__file__).resolve().parent / "progress.sh"


def run(steps):
    """steps: (seconds to wait, line). Returns what goes to standard output, and what it says."""
    with subprocess.Popen([SCRIPT, "label"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for wait, line in steps:
            time.sleep(wait)
            process.stdin.write(line + "\n")
            process.stdin.flush()
        out, said = process.communicate()
        assert process.returncode == 0
    return out, said


# Two seconds for the first 10 of 1,000 steps: about three minutes more. Then nothing for ten seconds, but the end.
out, said = run([(0, "first"), (2.1, "[10/1000] Building a.o"), (0, "a.cpp:1: warning: w"), (0, "[11/1000] Building b.o"), (0, "[1000/1000] Linking")])
assert out == "first\na.cpp:1: warning: w\n", out
lines = said.splitlines()
assert len(lines) == 2, said
assert lines[0] in ("label: 10 of 1000 steps, about 3 min left", "label: 10 of 1000 steps, about 5 min left"), said
assert lines[1].startswith("label: 1000 of 1000 steps, "), said
out, said = run([(1.1, "[50/100] x")])
assert said.startswith("label: 50 of 100 steps, about ") and said.endswith(" s left\n"), said
# A build that had nothing to do, and a last line without an end.
assert run([(0, "ninja: no work to do.")]) == ("ninja: no work to do.\n", "")
done = subprocess.run([SCRIPT, "label"], input="[1/2] a\nFAILED: x", capture_output=True, text=True, check=True)
assert done.stdout == "FAILED: x\n", done
print("4 passed, 0 failed")
