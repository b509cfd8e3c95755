"""What `ferrule verify` says: how far off of how far allowed, in each output's own scale; what is no check; f16 by f64; against ONNX
Runtime; and that the inputs it draws are ones that the model accepts. Last line: "N passed, N failed, N skipped"."""
import json
import pathlib
import re
import subprocess
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE.parent / "models")]

import harness  # noqa: E402
import narrow  # noqa: E402
from harness import DIFFERS, ENVIRONMENT, OK, UNSUPPORTED, USAGE, refusal, run  # noqa: E402

MARGIN = r"(largest error|error of all elements together) [\d.e-]+ of [\d.e-]+ allowed"


def said(report, what, done, code, *patterns):
    """Checks the exit status and that stdout says each of the patterns."""
    missing = [p for p in patterns if not re.search(p, done.out, re.MULTILINE)]
    report.check(what, harness.crash(done) or (None if done.code == code and not missing else f"missing {missing}; {done.tail()}\n{done.out}"))


def products(path, scale=1.0, dtype=np.float32, ops=("MatMul", "LeakyRelu")):
    """A product of 300 with an activation behind it, its weights `scale` large."""
    rng = np.random.default_rng(5)
    w = numpy_helper.from_array((rng.standard_normal((300, 64)) * scale).astype(dtype), "W")
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph([helper.make_node(ops[0], ["x", "W"], ["t"], "product"), helper.make_node(ops[1], ["t"], ["y"], "act")], "g",
                              [helper.make_tensor_value_info("x", kind, ["N", 300])],
                              [helper.make_tensor_value_info("y", kind, ["N", 64])], [w])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def verdicts(report):
    folder = report.folder
    for scale in (1.0, 1e-8, 1e8):
        net = products(folder / "net.onnx", scale)
        done = run("verify", net, "--oracle", "--shapes", "x:3x300")
        said(report, f"within tolerance, weights of {scale}", done, OK, rf"^within tolerance +y: {MARGIN}$", r"against the interpreter: within tolerance$")
        row = json.loads(run("verify", net, "--oracle", "--shapes", "x:3x300", "--json").out)["outputs"][0]
        # Relative to the tensor's own scale, however large or small its numbers are.
        report.check(f"the error is relative, weights of {scale}", None if 0 < row["error"] < row["allowed"] and row["error"] < 1e-5
                     and row["verdict"] == "within tolerance" else str(row))
    done = run("verify", products(folder / "net.onnx"))
    said(report, "what an operator says", done, OK, r"^(within tolerance|equal) +y")
    said(report, "an output that says little", run("verify", products(folder / "zeros.onnx", ops=("MatMul", "Relu")), "--shapes", "x:9x300"), OK,
         r"^MISTRUSTED +y: .*over half of it is 0, which says little$", "without rules: MISTRUSTED$")
    done = run("verify", products(folder / "net.onnx"), "--layers")
    said(report, "verify --layers", done, OK, r"^layer by layer:$", r"^(within tolerance|equal) +product \+ act")

    # A rule that changes the result, which only --allow-unproven lets run.
    rules = folder / "rules"
    rules.mkdir()
    (rules / "wrong.yaml").write_text("""ferrule: 1
id: wrong
kind: rewrite
doc: Sigmoid is taken for Tanh, which it is not.
source: [test]
phase: canonicalize
numerics: exact
once: true
match: "y = Sigmoid(x)"
rewrite: "y = Tanh(x)"
tests: {fires: ["agraph (float[2] x) => (float[2] y) { y = Sigmoid(x) }"], holds: [{declined_by: structure, model: "agraph (float[2] x) => (float[2] y) { y = Relu(x) }"}]}
""")
    net = harness.model(folder / "sigmoid.onnx", "agraph (float[2,3] x) => (float[2,3] y) { y = Sigmoid (x) }")
    done = run("verify", net, "--rules", rules, "--allow-unproven", "wrong")
    said(report, "what differs, and whose error it is", done, DIFFERS, rf"^DIFFERS +y: {MARGIN}; element 0 is \S+, want \S+; by f64, it is off by [\d.]+, cpu without rules by ",
         r"^with --disable wrong no output differs$")
    done = run("verify", net, "--rules", rules, "--allow-unproven", "wrong", "--json")
    report.check("the rule without which it is right", None if json.loads(done.out)["right_without"] == ["wrong"] else done.out)
    # A probability that underflows: without rules its logarithm is -inf, and by f64 it is not.
    net = harness.model(folder / "underflow.onnx", "agraph (float[2,4] x) => (float[2,4] y) { s = Softmax <axis = -1> (x) y = Log (s) }")
    np.savez(folder / "underflow.npz", x=np.array([[0, -200, -50, 1], [1, 2, 3, 4]], np.float32))
    done = run("verify", net, "--inputs", folder / "underflow.npz")
    said(report, "f64 settles it", done, OK, rf"^within tolerance +y: by f64, {MARGIN}; cpu without rules is off by inf$")


def no_check(report):
    net = harness.model(report.folder / "cast.onnx", "agraph (float[4] x) => (int32[4] y) { y = Cast <to = 6> (x) }")
    said(report, "no rule fired", run("verify", net, "--backend", "reference"), OK, "^no full check: no rule fired, so both sides are the same and nothing was checked")
    net = products(report.folder / "net.onnx")
    said(report, "the interpreter on both sides", run("verify", net, "--backend", "reference"), OK,
         "^no full check: the interpreter ran both sides: rewrites were checked, kernels were not")
    done = run("verify", net, "--backend", "cpu")
    report.check("a full check says nothing of it", None if "no full check" not in done.out else done.out)


def short_types(report):
    """A plan in a shorter type is judged by f64 and the interpreter; a wrong one is found."""
    folder = report.folder
    net = products(folder / "net.onnx")
    for rules in ("half_*", "bfloat_*"):
        done = run("verify", net, "--enable", rules, "--shapes", "x:4x300")
        said(report, f"--enable {rules}", done, OK, r"^within tolerance +y: error against f64 \S+; the interpreter in the same types has \S+, and 3 times that is allowed")
    wide = harness.model(folder / "wide.onnx", """agraph (float[1,64] x) => (float[1,64] y) <float[64,64] W = {%s}, float[1] k = {1e6}> {
  a = MatMul (x, W)
  b = Mul (a, k)
  y = MatMul (b, W)
}""" % ", ".join(["0.5", "0.25"] * 2048))
    done = run("verify", wide, "--enable", "half_*", "--layers")
    said(report, "beyond the range of f16", done, DIFFERS, r"^DIFFERS +y: \d+ of 64 elements are not finite; the first, element \d+, is -?(inf|nan), want \S+; the "
         r"interpreter in the same types has such elements, too: values exceed the range of the shorter type$")
    half = folder / "half.onnx"
    onnx.save(narrow.narrow(onnx.load(str(net)), "f16"), str(half))
    said(report, "a model in f16", run("verify", half, "--shapes", "x:4x300"), OK, r"^(within tolerance|equal) +y")
    # Computed in f16 between f32 inputs and outputs: the new model is judged by f64, too, and not by the type of its outputs.
    rng = np.random.default_rng(7)
    w = numpy_helper.from_array((rng.standard_normal((64, 48)) / 4).astype(np.float16), "W")
    nodes = [helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16), helper.make_node("Sigmoid", ["h"], ["s"]),
             helper.make_node("Mul", ["h", "s"], ["m"]), helper.make_node("MatMul", ["m", "W"], ["t"]),
             helper.make_node("Cast", ["t"], ["y"], to=TensorProto.FLOAT)]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 64])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 48])], [w])
    island = folder / "island.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(island))
    said(report, "fuse of an island of f16", run("fuse", island, "-o", folder / "island_fused.onnx"), OK, r"^within tolerance +y: error against f64 ")


def like_weights(report):
    """Weights behind a CastLike are constants with and without rules: both sides compute the same sums."""
    rng = np.random.default_rng(2)
    weights = numpy_helper.from_array(rng.random((64, 384, 3)).astype(np.float16), "W")
    graph = helper.make_graph([helper.make_node("CastLike", ["W", "x"], ["w"], "like"),
                               helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1], strides=[2]),
                               helper.make_node("LeakyRelu", ["c"], ["y"], "act")], "g",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 384, 40])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64, 20])], [weights])
    net = report.folder / "like.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), str(net))
    done = run("explain", net, "--disable", "*", "--json", "--target", "cpu-avx2")
    layers = json.loads(done.out)["layers"] if done.code == OK else []
    kept = [n for layer in layers for n in layer["nodes"] if n == "like"]
    report.check("CastLike of a constant is folded without any rule", None if layers and not kept else done.tail())
    said(report, "its sum is the same", run("verify", net, "--backend", "cpu"), OK, "^equal +y$")


def drawn_inputs(report):
    """Sizes, index ranges and symbols of inputs that nobody gives."""
    folder = report.folder

    def fine(what, text, *arguments, note=None, **options):
        net = harness.model(folder / "drawn.onnx", text, **options)
        done = run("run", net, *arguments)
        report.check(what, harness.crash(done) or (None if done.code == OK and (not note or re.search(note, done.err)) else done.tail()))

    fine("a window that 1 is too small for", "agraph (float[N,2,H,W] x) => (float[N,2,P,Q] y) { y = MaxPool <kernel_shape = [7, 7]> (x) }",
         note="N = 1, H = 8, W = 8")
    fine("two inputs of one symbol", "agraph (float[N,4] x, float[N,4] z) => (float[N,4] y) { y = Add (x, z) }", "--shapes", "x:5x4")
    np.savez(folder / "one.npz", x=np.ones((6, 4), np.float32))
    fine("a symbol that a file gives", "agraph (float[N,4] x, float[4,N] z) => (float[N,N] y) { y = MatMul (x, z) }",
         "--inputs", folder / "one.npz", "--seed", "1")
    table = "agraph (int64[B,S] ids) => (float[B,S,4] y) <float[3,4] T = {" + ", ".join("1" for _ in range(12)) + "}> { y = Gather <axis = 0> (T, ids) }"
    fine("indices of a table", table, "--shapes", "ids:7x9")
    # Above 1, too: every row of the table is met by some of 200 indices.
    net = harness.model(folder / "rows.onnx", table.replace("{" + ", ".join("1" for _ in range(12)) + "}", "{" + ", ".join(str(k // 4) for k in range(12)) + "}"))
    out = folder / "rows.npz"
    run("run", net, "--shapes", "ids:10x20", "--outputs", out)
    report.check("indices over the whole range", None if out.exists() and sorted(set(np.load(out)["y"].ravel())) == [0, 1, 2] else "not all rows")
    fine("indices behind a cast and a reshape", """agraph (int32[6] ids) => (float[2,3,1] y) <float[1,1] T = {2.0}, int64[2] s = {2, 3}> {
        a = Cast <to = 7> (ids)
        b = Reshape (a, s)
        y = Gather <axis = 0> (T, b) }""")
    fine("no size of the table is known", "agraph (float[V,4] T, int64[5] ids) => (float[5,4] y) { y = Gather <axis = 0> (T, ids) }")


def peer(report):
    """Against ONNX Runtime, of the Python that has it."""
    found = subprocess.run([str(HERE.parent / "setup" / "deps.sh"), "--python", "bench"], capture_output=True, text=True, check=False)
    net = products(report.folder / "net.onnx")
    none = report.folder / "nothing"
    done = run("verify", net, "--against", "ort", env={"FERRULE_PYTHON": str(none)})
    report.check("no such Python", refusal(done, ENVIRONMENT, "nothing", "pip install onnxruntime", "FERRULE_PYTHON"))
    done = run("verify", net, "--against", "ort", env={"FERRULE_PYTHON": sys.executable})
    report.check("a Python without it", refusal(done, ENVIRONMENT, "onnxruntime", "pip install", seconds=20))
    report.check("--against of nobody", refusal(run("verify", net, "--against", "nobody"), USAGE, "--against"))
    report.check("--against ort --oracle", refusal(run("verify", net, "--against", "ort", "--oracle"), USAGE, "--oracle"))
    if found.returncode:
        return report.skip("--against ort", f"no Python with ONNX Runtime: {found.stderr.strip()[-100:]}")
    ort = {"FERRULE_PYTHON": found.stdout.split()[-1]}
    done = run("verify", net, "--against", "ort", "--shapes", "x:5x300", env=ort, timeout=120)
    said(report, "--against ort", done, OK, rf"^within tolerance +y: {MARGIN}", r"against ONNX Runtime \d+\.\d+\.\d+: within tolerance$")
    done = run("verify", report.folder / "sigmoid.onnx", "--rules", report.folder / "rules", "--allow-unproven", "wrong", "--against", "ort",
               env=ort, timeout=120)
    said(report, "--against ort finds a wrong rule", done, DIFFERS, "^DIFFERS +y")
    # A name that numpy.savez has for itself, and one with a slash.
    graph = helper.make_graph([helper.make_node("Add", ["file", "a/b:0"], ["y/0"], "add")], "g",
                              [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("file", "a/b:0")],
                              [helper.make_tensor_value_info("y/0", TensorProto.FLOAT, [2])])
    odd = report.folder / "odd.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(odd))
    said(report, "odd names", run("verify", odd, "--against", "ort", env=ort, timeout=120), OK, "^equal +y/0$")
    unknown = harness.model(report.folder / "unknown.onnx", "agraph (float[2,2] x) => (float[2,2] y) { y = Relu (x) }", opset=26, ir=13)
    done = run("verify", unknown, "--against", "ort", env=ort, timeout=120)
    report.check("a model that ONNX Runtime refuses", harness.crash(done) or (None if done.code in (OK, ENVIRONMENT, UNSUPPORTED) else done.tail()))


def main():
    report = harness.Report()
    if report.ready:
        for part in (verdicts, no_check, short_types, like_weights, drawn_inputs, peer):
            part(report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
