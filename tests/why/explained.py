"""What `explain` says beside the layers: for which sizes the plan is, what cannot run, what nearly fused."""
import json
import subprocess

import numpy
import onnx
from onnx import parser

import harness
from harness import OK, UNSUPPORTED, USAGE, run

OPEN = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[1,2,H,W] x) => (float[1,2,H,W] y, float[1,2,H,W] t) <float[2,2,1,1] V = {1, -2, 3, 0.5}> {
  [conv] t = Conv (x, V)
  [act] y = Relu (t)
}
"""
# Operators that ONNX has and nothing here runs, twice and once; and some that nobody describes.
LACKING = """
<ir_version: 10, opset_import: ["" : 21, "ai.onnx.ml" : 3]>
g (float[1,4,8] x, uint8[n] file) => (float[1,4,8] y, float[1,4,8] p, float[1,4,8] q, uint8[A,B,C] r) {
  [first] p = ai.onnx.ml.DictVectorizer <int64_vocabulary: ints = [1]> (x)
  [act] y = Relu (x)
  [second] q = ai.onnx.ml.DictVectorizer <int64_vocabulary: ints = [2]> (x)
  [picture] r = ImageDecoder (file)
}
"""
STRANGE = """
<ir_version: 10, opset_import: ["" : 21, "my.ops" : 3]>
g (float[4] x) => (float[4] y) {
  [one] a = my.ops.Foo (x)
  [two] b = my.ops.Bar (a)
  [three] y = my.ops.Foo (b)
}
"""


def ask(report):
    """All of it, as checks of the report."""
    def saved(name, text):
        path = report.folder / f"{name}.onnx"
        onnx.save(parser.parse_model(text), str(path))
        return path

    def said(what, done, code, *wanted, err=()):
        text = done.out
        missing = [w for w in wanted if w not in text] + [w for w in err if w not in done.err]
        report.check(what, harness.crash(done) or (None if done.code == code and not missing else f"no {missing} in\n{text}{done.tail()}"))

    sizes = saved("open", OPEN)
    target = ["--target", "cpu-avx2"]
    said("open sizes are named, with the flag", run("explain", sizes, *target), OK, "for any height and width of x", "--shapes x:1x2x224x224")
    said("given sizes are said", run("explain", sizes, *target, "--shapes", "x:1x2x5x7"), OK, "for x:1x2x5x7")
    inputs = report.folder / "inputs.npz"
    numpy.savez(inputs, x=numpy.zeros((1, 2, 3, 9), numpy.float32))
    said("inputs give the sizes", run("explain", sizes, *target, "--inputs", inputs), OK, "for x:1x2x3x9")
    said("near misses count nodes", run("explain", sizes, *target), OK, "near misses (1 node):",
         '1 x conv_activation (D2): "t" is an output of the model, so it has to be written to memory')
    plan = json.loads(run("explain", sizes, *target, "--json").out)
    miss = plan["near_misses"][0] if plan["near_misses"] else {}
    report.check("near misses are in the JSON", None if miss.get("rule") == "conv_activation" and miss.get("nodes") == ["conv"] else str(miss))
    for stage in ("graph", "journal", "kernels", "launches", "memory"):
        done = run("explain", sizes, "--shapes", "x:1x2x5x7", "--stage", stage, "--json")
        value, problem = harness.answer(done)
        report.check(f"--stage {stage} has JSON", problem or (None if value.get("schema_version") == 1 and "layers" not in value else str(value)[:200]))
    long = "\n".join(f"  [a_node_with_a_long_name_{k}] v{k + 1} = Sigmoid (v{k})" for k in range(40))
    chain = saved("chain", f'<ir_version: 10, opset_import: ["" : 21]>\ng (float[4] v0) => (float[4] v40) {{\n{long}\n}}')
    said("nothing is cut in a pipe", run("explain", chain, *target), OK, "a_node_with_a_long_name_39)")

    lacking = saved("lacking", LACKING)
    wanted = ("DictVectorizer", "2 nodes, this is the first", '"first"', "ImageDecoder", '"picture"')
    said("all operators that cannot run are named", run("explain", lacking, *target), UNSUPPORTED, "act", err=wanted)
    done = run("run", lacking)
    report.check("run says the same", None if done.code == UNSUPPORTED and all(w in done.err for w in wanted) else done.tail())
    strange = saved("strange", STRANGE)
    for command in ("explain", "run"):
        said(f"{command}: all operators that are not known are named", run(command, strange), UNSUPPORTED,
             err=("my.ops.Foo (opset 3) is not known; 2 nodes, this is the first", "my.ops.Bar (opset 3) is not known"))
    for words in (["explain", sizes, *target], ["explain", sizes, *target, "--json"], ["help"], ["rules", "list"]):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([harness.PROGRAM, *words], stdout=full, stderr=subprocess.PIPE, text=True)
        report.check(f"{words[0]}: what cannot be written is an error",
                     None if done.returncode == USAGE and "cannot write the output" in done.stderr else f"{done.returncode} {done.stderr}")
