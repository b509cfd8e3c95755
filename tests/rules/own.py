"""Contracts, targets and rules of a user's own: what works runs and computes the same, what does not is refused in words."""
import pathlib
import re
import sys
import tempfile

import onnx

import harness
from harness import OK, USAGE, run
from onnx import parser

ROWS = """<ir_version: 9, opset_import: ["" : 20]>
agraph (float[3,4] x) => (float[3,1] y) {
  [Relu_0] t = Relu(x)
  [Sum_1] y = ReduceSum<keepdims=1>(t)
}
"""
CHAIN = """<ir_version: 9, opset_import: ["" : 20]>
agraph (float[3,4] x, float[3,4] z) => (float[3,4] y) {
  [Add_0] t = Add(x, z)
  [Tanh_1] y = Tanh(t)
}
"""
TARGET = "ferrule: 2\nlike: {like}\ncontracts: {{{contract}: {facts}}}\n"
CONTRACT = """ferrule: 2
contract: {id}
doc: A test.
nodes: [{nodes}]
generated: {how}
requires:
  - {{id: few, kernel: "tensors <= 4", why: "it reads and writes {{tensors}} tensors"}}
"""
REGION = """ferrule: 2
id: own
kind: region
doc: A test.
phase: {phase}
before: {phase}
numerics: exact
contract: {contract}
region: {{{region}, min_ops: 2}}
tests:
  fires:
    - |
{model}
  holds:
    - declined_by: structure
      model: "agraph (float[3,4] x) => (float[3,4] y) {{ y = Relu(x) }}"
"""
# A rule that is right; each mistake replaces a part of it.
GOOD = """ferrule: 2
id: own
kind: window
doc: A test.
phase: windows
numerics: reassociating
match: |
  p = Softmax<axis=-1>(x)
  vals, idx = TopK<axis=-1, ...>(p, k)
outputs: [vals, idx]
contract: softmax_topk
roles: {x: x, values: vals, indices: idx, k: "value(k)"}
where:
  - {id: small, kernel: "rank(x) < 9", why: "{rank(x)} axes"}
tests:
  fires:
    - name: on_a_gpu
      target: sm_80
      model: |
        agraph (bfloat16[2,7] x) => (bfloat16[2,3] v, int64[2,3] i) <int64[1] k = {3}> {
          p = Softmax<axis=-1>(x)
          v, i = TopK<axis=-1>(p, k)
        }
  holds:
    - {declined_by: D1, leak: p}
"""
MISTAKES = [
    ("a tail behind roles", "where:\n", "tail: {of: Relu}\nwhere:\n", "a rule with roles has no tail", r"Relu\?\(t\)"),
    ("an unknown kind", "kind: window", "kind: windo", 'did you mean "window"?'),
    ("an unknown phase", "phase: windows", "phase: zzz", "there is no phase zzz", "canonicalize, fold, compose"),
    ("an unknown contract", "contract: softmax_topk", "contract: zzz", "there is no contract zzz", "argmax, argmin, attention"),
    ("an unknown condition", "declined_by: D1", "declined_by: zzz", "no condition is called zzz", "D10, types, small"),
    ("a parenthesis that is not closed", "TopK<axis=-1, ...>(p, k)\n", "TopK<axis=-1, ...>(p, k\n", "own.yaml:9:38: the text ends"),
    ("an unknown version", "ferrule: 2", "ferrule: 3", "this program reads versions 1 and 2"),
]


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def generated(report, scratch):
    """Contracts of generated kernels are the generator's, whatever they are called."""
    for how, nodes, text, phase, region in (("rows", '"@row", "@pointwise"', ROWS, "rows", 'around: "@row", of: "@pointwise"'),
                                            ("boxes", '"@pointwise"', CHAIN, "pointwise", 'of: "@pointwise"')):
        contract = f"own_{how}"
        case = re.sub(r"\[\w+_\d\] ", "", text.partition("\n")[2]).replace("\n", "\n      ")
        folder = write(scratch / how, {
            f"contracts/{contract}.yaml": CONTRACT.format(id=contract, nodes=nodes, how=how),
            "targets/cpu-avx2.yaml": TARGET.format(like="cpu-avx2", contract=contract, facts="{types: [f32]}"),
            "own.yaml": REGION.format(phase=phase, contract=contract, region=region, model="      " + case.rstrip())})
        model = scratch / f"{how}.onnx"
        onnx.save(parser.parse_model(text), model)
        done = run("rules", "test", "own", "--rules", folder)
        report.check(f"{how}: the rule passes", None if done.code == OK and "1 group run on" in done.out and "note:" not in done.out else done.tail() + done.out)
        done = run("verify", model, "--rules", folder, "--oracle")
        report.check(f"{how}: it computes the same", None if done.code == OK else done.tail())
        done = run("run", model, "--rules", folder, "--no-interpreter")
        report.check(f"{how}: a kernel runs", None if done.code == OK else done.tail())
        done = run("explain", model, "--rules", folder, "--target", "cpu-avx512")
        report.check(f"{how}: one layer", None if "-> 1 layer, 1 kernel," in done.out and contract in done.out else done.tail() + done.out)


def targets(report, scratch):
    model = scratch / "rows.onnx"
    stages = ("ferrule: 2\ncontract: own_chain\ndoc: A test.\nroles: {x: \"[N, C, H, V]\"}\nresults: {y: \"[N, M, P, Q]\"}\n"
              "stages: {conv: conv, pool: pool}\n")
    for what, contract, facts, code, words in (("of stages", "own_chain", "{types: [f32], forms: [staged]}", OK, ""),
                                               ("of no stages", "argmax", "{forms: [staged]}", USAGE, 'argmax has no form "staged"')):
        folder = write(scratch / f"forms_{contract}", {"contracts/own_chain.yaml": stages,
                                                       "targets/cpu-avx2.yaml": TARGET.format(like="cpu-avx2", contract=contract, facts=facts)})
        done = run("explain", model, "--rules", folder, "--target", "cpu-avx2")
        report.check(f"staged, a contract {what}", None if done.code == code and words in done.err else done.tail())
    folder = write(scratch / "mine", {"targets/mine.yaml": "ferrule: 2\nlike: cpu-avx2\n"})
    done = run("explain", model, "--rules", folder, "--target", "mine")
    report.check("a target of one's own is planned for", None if done.code == OK else done.tail())
    done = run("run", model, "--rules", folder, "--target", "mine")
    report.check("and not run on", harness.refusal(done, USAGE, "mine is a target to plan for", "like: cpu-avx512"))


def mistakes(report, scratch):
    def loaded(name, text):
        return run("rules", "check", "--rules", write(scratch / name, {"own.yaml": text}))

    done = loaded("good", GOOD)
    report.check("the rule itself loads", None if done.code == OK else done.tail())
    for k, (what, old, new, *words) in enumerate(MISTAKES):
        assert old in GOOD, what
        report.check(what, harness.refusal(loaded(f"mistake_{k}", GOOD.replace(old, new, 1)), USAGE, *words))
    # softmax_topk has bf16 on GPUs alone: on the processor's target it would be declined otherwise.
    done = run("rules", "test", "own", "--rules", scratch / "good")
    report.check("an edit that must hold is asked on its case's target", None if "FAILED" not in done.out else done.out)
    done = run("rules", "test", "own", "--rules", write(scratch / "no_name", {"own.yaml": GOOD.replace("leak: p", "leak: zzz")}))
    failed = re.findall("^FAILED.*$", done.out, re.MULTILINE)
    report.check("the place of a case is said once", None if len(failed) == 1 and failed[0].count("own.yaml:") == 1 else done.out)
    done = run("explain", scratch / "rows.onnx", "--rules", write(scratch / "unproven", {"own.yaml": GOOD.replace(', k: "value(k)"', "")}))
    report.check("what is not proved is called by its kind", harness.refusal(done, USAGE, "window own is not proved", seconds=20))


def why(report, scratch):
    done = run("why", scratch / "boxes.onnx", "--rule", "pointwise")
    report.check("why: a rule alone, which fired", None if done.code == OK and "pointwise fired here" in done.out else done.tail() + done.out)
    done = run("why", scratch / "rows.onnx", "--rule", "rows", "--disable", "rows")
    report.check("why: a rule alone, which is off", None if done.code == OK and "rows" in done.out else done.tail() + done.out)
    report.check("why: a rule that has nothing to do with it", harness.refusal(run("why", scratch / "rows.onnx", "--rule", "conv_pool"), USAGE, "conv_pool comes near no node"))


def main():
    report = harness.Report()
    if report.ready:
        with tempfile.TemporaryDirectory() as folder:
            scratch = pathlib.Path(folder)
            generated(report, scratch)
            targets(report, scratch)
            mistakes(report, scratch)
            why(report, scratch)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
