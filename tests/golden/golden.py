"""Golden tests: what a command prints for a small model, word for word.

A case is one file cases/NAME.case: lines "why: …" (what it shows) and "command: …" (MODEL stands for the
model, RULES for the shipped rules; always with a named --target), then the sections

    ==== file NAME    a file that the command reads, by that name; none or several
    ==== graph        ONNX text; declared values that nothing produces become constants with fixed contents
    ==== expected     stdout; after it, if there is any, "==== stderr" and, if it is not 0, "==== exit N"

usage: golden.py [--bless] [NAME-PART...]      --bless: writes what is printed now into the cases; read the diff
"""
import argparse
import difflib
import pathlib
import re
import shlex
import sys

import numpy as np
import onnx
from onnx import helper, numpy_helper

import harness

CASES = pathlib.Path(__file__).resolve().parent / "cases"


def read(path):
    """A case as (header lines, why, command, graph, expected)."""
    head, _, rest = path.read_text().partition("==== graph\n")
    graph, _, expected = rest.partition("==== expected\n")
    fields = dict(re.findall(r"^(\w+): (.*)$", head, re.MULTILINE))
    for key in ("why", "command"):
        if not fields.get(key):
            raise ValueError(f"{path.name} has no line '{key}: …'")
    if "explain" in fields["command"] and "--target" not in fields["command"]:
        raise ValueError(f"{path.name}: the command names no --target")
    return head, fields["command"], graph, expected


def build(graph):
    """ONNX text -> model, with constants for declared values that nothing produces."""
    m = harness.onnx_text(graph)
    produced = {v for n in m.graph.node for v in n.output} | {i.name for i in m.graph.input} | \
        {t.name for t in m.graph.initializer}
    used = {v for n in m.graph.node for v in n.input}
    for info in list(m.graph.value_info):
        if info.name in produced or info.name not in used:
            continue
        dims = [d.dim_value for d in info.type.tensor_type.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        # Positive, so that it may be a variance; multiples of 1/8, so that f16 and f32 hold it exactly.
        values = (1 + np.arange(int(np.prod(dims)), dtype=np.int64) * 5 % 7).reshape(dims) / 8
        m.graph.initializer.append(numpy_helper.from_array(values.astype(dtype), info.name))
        m.graph.value_info.remove(info)
    return m


def printed(report, path, head, command, graph):
    """What the command prints, in the form of the section "expected"."""
    for name, text in re.findall(r"^==== file (\S+)\n(.*?)(?=^==== |\Z)", head, re.MULTILINE | re.DOTALL):
        (report.folder / name).write_text(text)
    model = report.folder / (path.stem + ".onnx")
    onnx.save(build(graph), str(model))
    words = [w.replace("MODEL", str(model)).replace("RULES", str(harness.ROOT / "rules")) for w in shlex.split(command)]
    done = harness.run(*words, env={"NO_COLOR": "1"}, cwd=report.folder)
    problem = harness.crash(done)
    if problem:
        return None, problem
    out = done.out
    if done.err:
        out += "==== stderr\n" + done.err
    if done.code:
        out += f"==== exit {done.code}\n"
    for what, name in ((str(model), "MODEL"), (str(report.folder), "FOLDER"), (str(harness.ROOT / "rules"), "RULES"),
                       (str(harness.ROOT / "build"), "BUILD")):
        out = out.replace(what, name)
    # Where the program stands must not matter: FOLDER/../rules is the same as RULES.
    out = re.sub(r"BUILD/\.\./rules", "RULES", out)
    return "\n".join(line.rstrip() for line in out.splitlines()) + "\n", None


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--bless", action="store_true")
    options.add_argument("parts", nargs="*")
    options = options.parse_args()
    report = harness.Report()
    for path in sorted(CASES.glob("*.case")) if report.ready else []:
        if options.parts and not any(p in path.stem for p in options.parts):
            continue
        try:
            head, command, graph, expected = read(path)
            got, problem = printed(report, path, head, command, graph)
        except (ValueError, onnx.parser.ParseError) as reason:
            report.check(path.stem, str(reason))
            continue
        if problem is None and options.bless and got != expected:
            path.write_text(f"{head}==== graph\n{graph}==== expected\n{got}")
            print(f"blessed {path.name}")
        elif problem is None and got != expected:
            problem = "other text than in the file (run tests/golden/run --bless when the change is meant):\n" + \
                "\n".join(difflib.unified_diff(expected.splitlines(), got.splitlines(), "expected", "printed", lineterm="", n=2))
        report.check(path.stem, problem)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
