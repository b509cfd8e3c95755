"""`why` and `missed` as their user meets them.

Asked of every node of every model there is (by turns; all with --full): the folder of shared test material (FERRULE_SHARED, else ../shared/models
beside the repository), and the skeletons and small models kept in tests/models. No crash, no empty answer, exit
status 0; a model that `explain` refuses is refused in the same way. Then the form of the JSON, and the refusals.
"""
import json
import math
import os
import pathlib
import re
import subprocess
import sys

import onnx
from onnx import TensorProto

import explained
import harness
import questions
from harness import FULL, OK, ROOT, USAGE, refusal, run

SHARED = pathlib.Path(os.environ.get("FERRULE_SHARED") or ROOT.parent / "shared" / "models")
KEPT = ROOT / "tests" / "models"
MOST_FILLED = 120  # megabytes of a skeleton's weights

TEXT, COUNT, FLAG = str, int, bool
UNLOCK = {"kind": {"flag", "fact", "edit", "impossible"}, "text": TEXT, "because": TEXT, "tried": FLAG,
          "saves_bytes": COUNT, "gives": (TEXT, None)}
CONSIDERED = {
    "rule": TEXT, "reason": TEXT, "bytes": COUNT, "taken_by": (TEXT, None), "kind": TEXT, "phase": TEXT, "enabled": FLAG, "state": {"off", "lost", "refused"},
    "matched_nodes": COUNT, "pattern_nodes": COUNT, "passed_conditions": COUNT, "total_conditions": COUNT, "nodes": [TEXT],
    "lines": [{"pattern": TEXT, "state": {"ok", "failed", "unseen"}, "nodes": [TEXT]}],
    "conditions": [{"id": TEXT, "class": {"sound", "kernel", "profit"}, "truth": {"true", "false", "unknown"}, "text": TEXT, "detail": TEXT}],
    "path": [TEXT], "unlock": [UNLOCK], "lost_to": (TEXT, None), "history": (TEXT, None),
    "refused": ({"by": TEXT, "stage": {"structure", "condition", "guarantee"}, "truth": {"true", "false", "unknown"}, "why": TEXT, "hint": TEXT}, None),
}
OUTCOME = {
    "name": TEXT, "op": (TEXT, None), "state": {"layer", "constant", "folded", "removed", "nested"}, "text": TEXT,
    "layers": [{"name": TEXT, "contract": TEXT, "rule": (TEXT, None), "nodes": [TEXT]}],
    "steps": [{"step": COUNT, "phase": TEXT, "rule": (TEXT, None), "kind": TEXT, "text": TEXT}],
}
NODE = {**OUTCOME, "considered": [CONSIDERED], "unlock": [UNLOCK], "reason": (TEXT, None)}
HEADER = {"schema_version": COUNT, "target": TEXT, "ranges": ({"shown": TEXT}, None)}
NODES = {**HEADER, "nodes": [NODE]}
PAIR = {**HEADER, "pair": {
    "relation": {"same", "apart", "gone", "adjacent", "between", "common_reader", "siblings", "unrelated"}, "text": TEXT,
    "a": OUTCOME, "b": OUTCOME, "path": [TEXT], "blockers": [TEXT], "considered": [CONSIDERED], "unlock": [UNLOCK],
    "reason": (TEXT, None)}}
MISSED = {**HEADER, "edges_in_all": COUNT, "not_listed": {"copies": COUNT, "views": COUNT, "in_place": COUNT}, "assumed_sizes": (TEXT, None), "edges": [{
    "from": TEXT, "to": TEXT, "producer": TEXT, "consumer": TEXT, "value": TEXT, "type": TEXT, "bytes": (COUNT, None), "sizes_open": FLAG,
    "rule": (TEXT, None), "class": {"sound", "kernel", "profit", "structure"}, "reason": TEXT, "unlock": [UNLOCK]}]}


def fits(value, form, at="$"):
    """What is not as the form says, or None. A form is a type, a set of texts, a dict of required keys, a list of one
    form, or a tuple of forms of which one must fit."""
    if isinstance(form, tuple):
        problems = [fits(value, f, at) for f in form]
        return None if None in problems else problems[0]
    if form is None:
        return None if value is None else f"{at} is {value!r}, not null"
    if isinstance(form, set):
        return None if value in form else f"{at} is {value!r}, not one of {sorted(form)}"
    if isinstance(form, list):
        if not isinstance(value, list):
            return f"{at} is no list"
        return next(filter(None, (fits(v, form[0], f"{at}[{k}]") for k, v in enumerate(value))), None)
    if isinstance(form, dict):
        if not isinstance(value, dict):
            return f"{at} is no object"
        if missing := [k for k in form if k not in value]:
            return f"{at} has no {missing}"
        return next(filter(None, (fits(value[k], f, f"{at}.{k}") for k, f in form.items())), None)
    return None if type(value) is form else f"{at} is {value!r}, not {form.__name__}"


def named_nodes(path):
    """Names of the model's nodes that one node has each."""
    model = onnx.load(str(path), load_external_data=False)
    functions = {(f.domain, f.name) for f in model.functions}
    names = [n.name for n in model.graph.node if n.name and (n.domain, n.op_type) not in functions]
    return {n for n in names if names.count(n) == 1} if len(names) < 5000 else set()


def answer(node):
    """What is wrong with the answer about one node."""
    if not node["text"]:
        return "an empty answer"
    if (node["state"] == "layer") != bool(node["layers"]):
        return f"state {node['state']} with {len(node['layers'])} layers"
    for c in node["considered"]:
        if c["state"] == "refused" and not c["refused"]["why"]:
            return f"{c['rule']} was refused and does not say why"
        if c["state"] == "off" and (c["enabled"] or not c["unlock"]):
            return f"{c['rule']} is off, and no flag is named"
        if c["state"] == "lost" and not c["lost_to"]:
            return f"{c['rule']} lost, and does not say to what"
    return None


def every_node(report, path, name):
    """Asks about every node of one model."""
    done = run("why", path, "--node", "*", "--json", timeout=300)
    if problem := harness.crash(done):
        return report.check(name, problem)
    if done.code != OK:
        other = run("explain", path, timeout=300)
        same = other.code == done.code and other.errors() == done.errors()
        return report.check(f"{name}: refused as explain does", None if same else done.tail())
    value = json.loads(done.out)
    problem = fits(value, NODES)
    for node in value["nodes"]:
        problem = problem or (f"{node['name']}: {p}" if (p := answer(node)) else None)
    said = {n["name"] for n in value["nodes"]}
    # The call of a function is there as the nodes of its body.
    left = {n for n in named_nodes(path) - said if not any(s.startswith(n + "/") for s in said)}
    if problem is None and left:
        problem = f"nothing is said of {sorted(left)[:5]}"
    return report.check(f"{name}: {len(value['nodes'])} nodes", problem)


def fillable(path):
    """Megabytes of weights that a skeleton lacks."""
    sizes = {TensorProto.FLOAT: 4, TensorProto.FLOAT16: 2, TensorProto.INT64: 8}
    tensors = onnx.load(str(path), load_external_data=False).graph.initializer
    return sum(sizes.get(t.data_type, 4) * math.prod(t.dims) for t in tensors if t.data_location == TensorProto.EXTERNAL) / 1e6


def everywhere(report, folder, parts):
    """Models below a folder, by turns; skeletons get their weights first."""
    for path in harness.by_turns(report, sorted(folder.rglob("*.onnx")), parts):
        name = str(path.relative_to(folder))
        if path.name != "skeleton.onnx":
            every_node(report, path, name)
            continue
        size = fillable(path)
        if size > MOST_FILLED and not FULL:
            report.skip(name, f"{size:.0f} MB of weights would have to be made (FERRULE_TEST_FULL=1 does)")
            continue
        full = report.folder / "full.onnx"
        made = subprocess.run([sys.executable, KEPT / "generated" / "fill.py", path, full], capture_output=True, text=True)
        if made.returncode:
            report.check(name, f"fill.py: {made.stderr[-300:]}")
            continue
        every_node(report, full, name)
        for left in report.folder.glob("full*"):
            left.unlink()


def models(report):
    everywhere(report, KEPT, 4)
    if SHARED.is_dir():
        everywhere(report, SHARED, 10)
    else:
        report.skip(str(SHARED), "there is no such folder (FERRULE_SHARED names it)")


NET = """
agraph (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,3,3] W, float[4,4,1,1] V, float[4] B> {
  [Conv_0] s = Conv (x, V)
  [Conv_3] c = Conv <pads = [1,1,1,1]> (x, W, B)
  [Add_4] t = Add (c, s)
  [Relu_5] u = Relu (t)
  [Pool_6] v = MaxPool <kernel_shape = [1,1]> (u)
  [Sin_7] y = Sin (v)
}
"""


def forms(report):
    """One question of each kind: the JSON's form, the text's gist, the same twice."""
    path = report.folder / "net.onnx"
    onnx.save(harness.onnx_text(filled(NET)), str(path))

    def ask(what, form, said, *arguments):
        done = run(*arguments, "--json")
        value, problem = harness.answer(done)
        report.check(f"{what} --json", problem or fits(value, form) or (None if value["schema_version"] == 1 else "another schema_version"))
        text = run(*arguments)
        report.check(what, harness.crash(text) or (None if text.code == OK and re.search(said, text.out) else text.tail() + text.out))
        report.check(f"{what}, again", None if run(*arguments).out == text.out else "another answer")
        return value

    ask("why --node", NODES, r"Conv_0 \(Conv\) is a separate layer", "why", path, "--node", "Conv_0")
    ask("why --node of a value", NODES, r"Conv_0 \(Conv\)", "why", path, "--node", "s")
    one = ask("why --node --rule", NODES, "conv_activation declined", "why", path, "--node", "Sin_7", "--rule", "conv_activation", "--top", "9") or {}
    report.check("--rule asks about one rule", None if {c["rule"] for n in one.get("nodes", []) for c in n["considered"]} <= {"conv_activation"} else str(one))
    ask("why --node GLOB", NODES, r"(?s)Conv_0.*Conv_3", "why", path, "--node", "Conv_*")
    ask("why --pair", PAIR, "Conv_3 has absorbed the Add", "why", path, "--pair", "Conv_0", "Conv_3")
    ask("why --pair of one layer", PAIR, "one layer already", "why", path, "--pair", "Conv_3", "Relu_5")
    few = ask("missed --top", MISSED, "->", "missed", path, "--top", "2") or {}
    report.check("--top counts", None if len(few.get("edges", [])) == 2 else str(few))

    def refused(what, *wanted, arguments):
        report.check(what, refusal(run(*arguments), USAGE, *wanted))

    refused("an unknown node", "Conv_33", r'did you mean "Conv_3"', arguments=["why", path, "--node", "Conv_33"])
    refused("an unknown node of a pair", "Conv_9", "Conv_0|Conv_3", arguments=["why", path, "--pair", "Conv_9", "Relu_5"])
    refused("an unknown rule", "conv_actvation", "conv_activation", arguments=["why", path, "--node", "Sin_7", "--rule", "conv_actvation"])
    refused("a glob without nodes", r"Gemm_\*", arguments=["why", path, "--node", "Gemm_*"])
    refused("no question", "--node", "--pair", arguments=["why", path])
    refused("two questions", "--node", "--pair", arguments=["why", path, "--node", "Sin_7", "--pair", "Conv_0", "Conv_3"])
    report.check("--node twice is --pair", None if run("why", path, "--node", "Conv_0", "--node", "Conv_3").out
                 == run("why", path, "--pair", "Conv_0", "Conv_3").out else "another answer")
    refused("three nodes", "--node", arguments=["why", path, "--node", "Conv_0", "--node", "Conv_3", "--node", "Sin_7"])
    refused("half a pair", "--pair", arguments=["why", path, "--pair", "Conv_0"])
    refused("no model", "MODEL", arguments=["missed"])


def filled(text):
    """Weights for the values that the text declares."""
    def value(match):
        dims, name = match.group(1), match.group(2)
        count = 1
        for d in dims.split(","):
            count *= int(d)
        return f"float[{dims}] {name} = {{{', '.join(str(k % 7 / 8) for k in range(count))}}}"
    head, rest = text.split("{", 1)
    signature, weights = head.rsplit("<", 1)
    return signature + "<" + re.sub(r"float\[([\d,]+)\] (\w+)", value, weights) + "{" + rest


def main():
    report = harness.Report()
    if report.ready:
        forms(report)
        explained.ask(report)
        questions.ask(report)
        models(report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
