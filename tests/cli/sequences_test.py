"""Models with sequences, optionals and maps as their user meets them: inside a model they run; where only tensors can be passed, one
error says so. Last line: "N passed, N failed"."""
import pathlib
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support")]

import harness  # noqa: E402
from harness import OK, UNSUPPORTED, USAGE, refusal, run  # noqa: E402

# A convolution with its activation before the sequence, another behind it.
INSIDE = """
agraph (float[1,4,8,8] x, int64 at) => (float[1,4,8,8] y, int64 n)
<int64[1] zeros = {0}, int64[1] twos = {2}, int64[1] ones = {1}, int64 two = {2}, int64 zero = {0}, float[4,2,3,3] W, float[4,4,3,3] V> {
  [first] c = Conv<pads = [1, 1, 1, 1]> (x, V)
  [act] r = Relu (c)
  [part] p = Slice (r, zeros, twos, ones)
  [parts] s = SplitToSequence<axis = 1> (r, two)
  [erase] t = SequenceErase (s, zero)
  [insert] u = SequenceInsert (t, p)
  [count] n = SequenceLength (u)
  [at] e = SequenceAt (u, at)
  [second] d = Conv<pads = [1, 1, 1, 1]> (e, W)
  [last] y = Sigmoid (d)
}
"""
SEQUENCE_INPUT = "agraph (seq(float[N]) s, int64 i) => (float[M] y) { e = SequenceAt (s, i)\n y = Relu (e) }"
SEQUENCE_OUTPUT = "agraph (float[4] x) => (seq(float[N]) s, float[4] y) { y = Relu (x)\n s = SplitToSequence (y) }"
OPTIONAL_INPUT = """
agraph (optional(float[N]) o, float[3] x) => (bool there, float[M] y) {
  there = OptionalHasElement (o)
  y = If (there) <then_branch = some () => (float[A] a) { a = OptionalGetElement (o) }, else_branch = none () => (float[B] b) { b = Neg (x) }>
}
"""


def inside(report):
    rng = np.random.default_rng(1)
    model = harness.onnx_text(INSIDE)
    for name, shape in (("W", (4, 2, 3, 3)), ("V", (4, 4, 3, 3))):
        value = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    net = report.folder / "inside.onnx"
    onnx.save(model, str(net))
    x = rng.standard_normal((1, 4, 8, 8)).astype(np.float32)
    for at in (0, 1, -1):
        given, out = report.folder / "in.npz", report.folder / "out.npz"
        np.savez(given, x=x, at=np.int64(at))
        done = run("run", net, "--inputs", given, "--outputs", out, "--force", "--backend", "cpu")
        found = np.load(out) if done.code == OK else {"n": -1}
        report.check(f"a sequence inside, element {at}", None if found["n"] == 2 and "ran on cpu" in done.err and "interpreted:" in done.err and
                     "Conv" not in done.err else done.tail())
        done = run("verify", net, "--inputs", given, "--oracle", "--backend", "cpu")
        report.check(f"a sequence inside, element {at}: against the interpreter", None if done.code == OK else done.tail())
    np.savez(given, x=x, at=np.int64(2))
    done = run("run", net, "--inputs", given, "--outputs", out, "--force", "--backend", "cpu")
    report.check("a sequence inside, no such element", refusal(done, USAGE, r"bad_shape", "position 2 of a sequence of 2"))
    np.savez(given, x=x, at=np.int64(0))
    done = run("run", net, "--inputs", given, "--no-interpreter")
    report.check("a sequence inside, without the interpreter", refusal(done, UNSUPPORTED, "it is interpreted"))
    done = run("bench", net, "--inputs", given, "--backend", "cpu", "--seconds", "0.1", "--json")
    report.check("a sequence inside: bench", None if done.code == OK else done.tail())


def borders(report):
    """Files hold tensors: a sequence that is an input is refused, one that is an output left out of them."""
    folder = report.folder
    net = harness.model(folder / "sequence_input.onnx", SEQUENCE_INPUT)
    for title, arguments in (("run", ["run", net]), ("run --seed", ["run", net, "--seed", "1"]), ("bench", ["bench", net])):
        report.check(f"{title}: a sequence as input", refusal(run(*arguments), UNSUPPORTED, "input s is of type sequence", "SequenceConstruct"))
    np.save(folder / "s.npy", np.zeros(3, np.float32))
    np.save(folder / "i.npy", np.int64(0))
    done = run("run", net, "--inputs", f"s:{folder / 's.npy'},i:{folder / 'i.npy'}")
    report.check("run: a tensor for a sequence", refusal(done, UNSUPPORTED, "input s is of type sequence", "SequenceConstruct"))
    done = run("explain", net)
    report.check("explain: a sequence as input", None if done.code == OK else done.tail())

    net = harness.model(folder / "sequence_output.onnx", SEQUENCE_OUTPUT)
    done = run("run", net, "--seed", "1", "--backend", "cpu")
    report.check("run: a sequence as output", None if done.code == OK and "s sequence of 4, the first f32[1]" in done.out else done.tail())
    out = folder / "tensors.npz"
    done = run("run", net, "--seed", "1", "--outputs", out)
    report.check("run --outputs: a sequence is left out", None if done.code == OK and np.load(out).files == ["y"] and
                 "s is of type sequence, which no .npz file holds" in done.err else done.tail())
    for options in ([], ["--oracle"]):
        done = run("verify", net, *options)
        report.check(f"verify {options}: a sequence as output", None if done.code == OK else done.tail())
    report.check("fuse: a sequence as output", refusal(run("fuse", net, "-o", folder / "fused.onnx"), UNSUPPORTED, "an output without a tensor type"))


def optionals(report):
    folder = report.folder
    net = harness.model(folder / "optional_input.onnx", OPTIONAL_INPUT)
    x = np.array([1, 2, 3], np.float32)
    for given, there, want in (({"x": x}, False, -x), ({"x": x, "o": x[:2]}, True, x[:2])):
        np.savez(folder / "optional.npz", **given)
        done = run("run", net, "--inputs", folder / "optional.npz", "--outputs", folder / "o.npz", "--force", "--backend", "cpu")
        found = dict(np.load(folder / "o.npz")) if done.code == OK else {}
        report.check(f"an optional input, there: {there}", None if found and found["there"] == there and np.array_equal(found["y"], want) else done.tail())


# What is no tensor where one is wanted, and the other way round: what run says of it.
WRONG = {
    "a sequence as a count": ("a count of type sequence", """
agraph (float[2] x) => (float[2] y) {
  s = SequenceConstruct (x)
  c = Constant<value = bool {1}> ()
  y = Loop (s, c, x) <body = b (int64 i, bool k, float[2] v) => (bool l, float[2] w) { l = Identity (k)
  w = Neg (v) }>
}"""),
    "a sequence as a condition": ("a condition of type sequence", """
agraph (float[2] x) => (float[2] y) {
  s = SequenceConstruct (x)
  y = If (s) <then_branch = a () => (float[2] p) { p = Neg (x) }, else_branch = b () => (float[2] q) { q = Abs (x) }>
}"""),
    "a sequence of sequences": ("a sequence of sequence", """
agraph (float[2] x) => (int64 n) {
  s = SequenceConstruct (x)
  t = SequenceConstruct (s, s)
  n = SequenceLength (t)
}"""),
    "a product of sequences": ("computes to sequence", """
agraph (float[2] x) => (float[2] y) {
  s = SequenceConstruct (x)
  t = Add (s, x)
  y = Relu (t)
}"""),
    "sequences as a scan output": ("scan outputs should all be tensors", """
agraph (float[2] x) => (float[3,2] y) {
  m = Constant<value_int = 3> ()
  c = Constant<value = bool {1}> ()
  y = Loop (m, c) <body = b (int64 i, bool k) => (bool l, seq(float[2]) w) { l = Identity (k)
  w = SequenceConstruct (x) }>
}"""),
    "an element of another type than is declared": (r"output y is declared i64\[2\] and is f32\[2\]", """
agraph (float[2] x) => (int64[2] y) {
  s = SequenceConstruct (x)
  i = Constant<value_int = 0> ()
  y = SequenceAt (s, i)
}"""),
    "an element of another rank than a convolution wants": (r"input (is )?\[2\]", """
agraph (float[2] x, float[1,1,3,3] w) => (float[1,1,4,4] y) {
  s = SequenceConstruct (x)
  i = Constant<value_int = 0> ()
  e = SequenceAt (s, i)
  y = Conv (e, w)
}"""),
    "the value of an optional that has none": ("the optional has no value", """
agraph () => (float[N] y) {
  o = Optional<type: type_proto = float[2]> ()
  y = OptionalGetElement (o)
}"""),
}
# Sequences that branches, loops and bodies make and take.
RIGHT = {
    "a sequence out of a branch": (lambda x: np.concatenate([x, x]), """
agraph (float[4] x) => (float[M] y) {
  c = Constant<value = bool {1}> ()
  s = If (c) <then_branch = a () => (seq(float[N]) p) { p = SequenceConstruct (x, x) }, else_branch = b () => (seq(float[N]) q) { q = SplitToSequence (x) }>
  y = ConcatFromSequence<axis = 0> (s)
}"""),
    "a sequence that a loop makes longer": (lambda x: np.tile(x, 100), """
agraph (float[4] x) => (float[M] y) {
  m = Constant<value_int = 100> ()
  c = Constant<value = bool {1}> ()
  e = SequenceEmpty ()
  s = Loop (m, c, e) <body = b (int64 i, bool k, seq(float[N]) v) => (bool l, seq(float[N]) w) { l = Identity (k)
  w = SequenceInsert (v, x) }>
  y = ConcatFromSequence<axis = 0> (s)
}"""),
    "a mapped sequence whose body captures": (lambda x: x * x[0], """
agraph (float[4] x) => (float[M] y) {
  zero = Constant<value_int = 0> ()
  k = Gather (x, zero)
  s = SplitToSequence (x)
  t = SequenceMap (s) <body = b (float[N] v) => (float[N] w) { w = Mul (v, k) }>
  y = ConcatFromSequence<axis = 0> (t)
}"""),
}


def control(report):
    x, given, out = np.array([3, 1, -2, 5], np.float32), report.folder / "x.npy", report.folder / "y.npz"
    np.save(given, x)
    for title, (want, text) in RIGHT.items():
        net = harness.model(report.folder / "right.onnx", text)
        for backend in ("cpu", "reference"):
            done = run("run", net, "--input", f"x={given}", "--outputs", out, "--force", "--backend", backend)
            found = np.load(out)["y"] if done.code == OK else None
            report.check(f"{title}, {backend}", None if done.code == OK and np.array_equal(found, want(x)) else done.tail())
    for title, (says, text) in WRONG.items():
        net = harness.model(report.folder / "wrong.onnx", text)
        for backend in ("cpu", "reference"):
            done = run("run", net, "--seed", "1", "--backend", backend)
            report.check(f"{title}, {backend}", refusal(done, USAGE, r"error\[bad_shape\]", says))


def maps(report):
    nodes = [helper.make_node("Relu", ["x"], ["r"], "act"), helper.make_node("ZipMap", ["r"], ["p"], "zip", domain="ai.onnx.ml", classlabels_strings=["a", "b"])]
    value = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, [])))
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 2])], [helper.make_value_info("p", value)])
    net = report.folder / "maps.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)], ir_version=8), str(net))
    done = run("run", net, "--seed", "1", "--backend", "cpu")
    report.check("maps", None if done.code == OK and "p sequence of 3, the first map of 2, the first str[2]" in done.out else done.tail())


def main():
    report = harness.Report()
    if report.ready:
        for part in (inside, borders, optionals, control, maps):
            part(report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
