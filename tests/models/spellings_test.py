"""Spellings of the fusions of windows (spellings.txt): how many kernels each is, and that it is right.

Each is planned for the targets of its head and counted, then run on the CPU against the interpreter
(`verify --oracle`). Arguments: names of spellings, else all. Last line: "N passed, N failed".
"""
import json
import pathlib
import re
import sys

import onnx

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE.parent / "golden")]

import golden  # noqa: E402
import harness  # noqa: E402


def spellings():
    """Name, {target: kernels}, text of the graph."""
    for part in re.split(r"^==== ", (HERE / "spellings.txt").read_text(), flags=re.MULTILINE)[1:]:
        name, who, counts, graph = part.split("\n", 3)
        assert who.startswith("# ") and counts.startswith("# kernels: "), name
        wanted = {target: int(n) for target, n in re.findall(r"(\S+) (\d+)", counts)}
        # The parser wants a line break behind each node.
        yield name.strip(), wanted, re.sub(r"\) (?=\w+(?:, \w+)* = )", ")\n", graph)


def kernels(model, target):
    """How many, as a line of what is wrong, or None; and the layers."""
    done = harness.run("explain", model, "--target", target, "--json")
    if done.code != harness.OK:
        return done.tail(), None
    layers = json.loads(done.out)["layers"]
    return None, [(layer["contract"], layer["kernels"], layer["name"]) for layer in layers]


def main():
    report = harness.Report()
    asked = set(sys.argv[1:])
    for name, wanted, graph in spellings():
        if asked and name not in asked:
            continue
        model = report.folder / f"{name}.onnx"
        onnx.save(golden.build(graph), str(model))
        for target, n in wanted.items():
            problem, layers = kernels(model, target)
            interpreted = [] if problem else [name for contract, _, name in layers if contract == "interpret"]
            if interpreted:
                problem = f"interpreted: {interpreted}"
            elif not problem and sum(k for _, k, _ in layers) != n:
                problem = f"{sum(k for _, k, _ in layers)} kernels, not {n}:\n" + "\n".join(f"  {k} {c}  {l}" for c, k, l in layers)
            report.check(f"{name} on {target}", problem)
        done = harness.run("verify", model, "--oracle", "--seed", 3)
        report.check(f"{name} is right", None if done.code == harness.OK else done.tail())
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
