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
        for part in (inside, borders, optionals, maps):
            part(report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
