"""The stubs (*.pyi) say what the modules have (mypy's stubtest), and a program is checked by them as typed.py says."""
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def mypy(*arguments):
    with tempfile.TemporaryDirectory() as cache:  # which is where it is called from: no module of it is found there
        done = subprocess.run([sys.executable, "-m", *arguments], cwd=cache, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


with tempfile.NamedTemporaryFile("w", suffix=".txt") as internal:
    # The structures of the C interface: ctypes adds their fields.
    internal.write(r"ferrule\._library\.(Options|Port|Tensor)\.\w+" + "\n")
    internal.flush()
    said = mypy("mypy.stubtest", "ferrule", "--allowlist", internal.name)
    assert said.startswith("Success: no issues found"), said
print(said.strip())

program = HERE / "typed.py"
wrong = {k: m[1] for k, line in enumerate(program.read_text(encoding="utf-8").splitlines(), 1) if (m := re.search("  # no: (.*)", line))}
errors = {}
for line, text in re.findall(r"typed\.py:(\d+): error: (.*)", mypy("mypy", "--strict", str(program))):
    errors[int(line)] = errors.get(int(line), "") + text
assert len(wrong) == 6
assert errors.keys() == wrong.keys(), errors
for line, says in wrong.items():
    assert says in errors[line], (line, errors[line])
print(f"{len(wrong)} wrong lines found")
