"""Spellings of the fusions of windows (spellings.txt): how many kernels each is, and that it is right.

Each is planned for the targets of its head and counted, then run on the CPU against the interpreter
(`verify --oracle`). Every fourth, all with --full (or FERRULE_TEST_FULL=1). Arguments: names of
spellings. Last line: "N passed, N failed".
"""
import json
import os
import pathlib
import re
import sys

import onnx

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE.parent / "golden")]

import golden  # noqa: E402
import harness  # noqa: E402


def spellings():
    """Name, [(target, kernels, contract)], text of the graph."""
    for part in re.split(r"^==== ", (HERE / "spellings.txt").read_text(), flags=re.MULTILINE)[1:]:
        name, who, counts, graph = part.split("\n", 3)
        assert who.startswith("# ") and counts.startswith("# kernels: "), name
        wanted = [(target, int(n), contract) for target, n, contract in re.findall(r"(\S+) (\d+) (\w+)", counts)]
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
    asked = set(sys.argv[1:]) - {"--full"}
    full = asked or "--full" in sys.argv or os.environ.get("FERRULE_TEST_FULL") == "1"
    for name, wanted, graph in list(spellings())[:: 1 if full else 4]:
        if asked and name not in asked:
            continue
        model = report.folder / f"{name}.onnx"
        onnx.save(golden.build(graph), str(model))
        for target, n, contract in wanted:
            problem, layers = kernels(model, target)
            if not problem:
                of = [c for c, k, _ in layers if k]
                if len(of) != n or of.count(contract) != 1 or "interpret" in of:
                    problem = f"not {n} kernels, one of them {contract}:\n" + "\n".join(f"  {k} {c}  {l}" for c, k, l in layers)
            report.check(f"{name} on {target}", problem)
        done = harness.run("verify", model, "--oracle", "--seed", 3)
        report.check(f"{name} is right", None if done.code == harness.OK else done.tail())
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
