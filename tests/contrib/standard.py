"""ONNX's own operators where its text leaves something open, or ONNX's tests have no case: as ONNX Runtime computes them without
its optimizer, on both backends. Last line: "N passed, N failed".

usage: run [GLOB]
  GLOB: only the cases that match.
"""
import fnmatch
import sys

import numpy as np
import onnx
import onnx.parser
import onnxruntime

import harness
import tolerance

rng = np.random.default_rng(11)
F32, I64, U8 = np.float32, np.int64, np.uint8


def floats(*shape):
    return rng.standard_normal(shape).astype(F32)


def texts(*words):
    return np.array(words, object)


def recurrent(op, gates, activations, alphas, betas="", directions=1):
    """A layer whose activations take numbers of the lists, or none."""
    names = ", ".join(f'"{a}"' for a in activations)
    turned = "" if directions == 1 else 'direction = "bidirectional", '
    return (f"{op}, {activations} with {alphas}", 14,
            f"(float[4,2,3] x, float[{directions},{gates * 5},3] w, float[{directions},{gates * 5},5] r) => (float[4,{directions},2,5] y) "
            f"{{ y = {op}<hidden_size = 5, {turned}activations = [{names}], activation_alpha = [{alphas}]{betas}>(x, w, r) }}",
            {"x": floats(4, 2, 3), "w": floats(directions, gates * 5, 3), "r": floats(directions, gates * 5, 5)})


def matrix_scales(name, a, b, a_scale, b_scale):
    """A product of quantized matrices; scales and zero points are of these shapes."""
    kind = {"x": rng.integers(0, 255, a).astype(U8), "xs": rng.uniform(0.01, 0.1, a_scale).astype(F32), "xz": rng.integers(90, 160, a_scale).astype(U8),
            "w": rng.integers(0, 255, b).astype(U8), "ws": rng.uniform(0.01, 0.1, b_scale).astype(F32), "wz": rng.integers(90, 160, b_scale).astype(U8)}
    out = [*a[:-1], b[-1]]
    inputs = ", ".join(f"{'float' if v.dtype == F32 else 'uint8'}[{','.join(map(str, v.shape))}] {k}" for k, v in kind.items())
    return (f"QLinearMatMul, {name}", 21,
            f"({inputs}) => (uint8[{','.join(map(str, out))}] y) <float ys = {{0.9}}, uint8 yz = {{128}}> {{ y = QLinearMatMul(x, xs, xz, w, ws, wz, ys, yz) }}", kind)


def cases():
    """name, opset, graph, inputs"""
    image = np.arange(32, dtype=F32).reshape(1, 1, 4, 8)
    for scales in ("1.0, 1.0, 0.6, 0.6", "1.0, 1.0, 2.3, 1.7"):
        for nearest in ("floor", "ceil", "round_prefer_floor"):
            yield (f"Resize of opset 11, tf_half_pixel_for_nn, {nearest}, {scales}", 11,
                   "(float[1,1,4,8] x) => (float[1,1,_h,_w] y) <float[0] roi = {}, float[4] s = {" + scales + '}> { y = Resize<mode = "nearest", '
                   f'coordinate_transformation_mode = "tf_half_pixel_for_nn", nearest_mode = "{nearest}">(x, roi, s) }}', {"x": image})
    for scales in ("1.0, 1.0, 0.6, 0.6", "1.0, 1.0, 2.0, 3.0", "1.0, 1.0, 0.5, 1.0"):
        yield (f"Resize of opset 10, {scales}", 10,
               "(float[1,1,4,8] x) => (float[1,1,_h,_w] y) <float[4] s = {" + scales + '}> { y = Resize<mode = "nearest">(x, s) }', {"x": image})
    for coordinates in ("half_pixel", "pytorch_half_pixel", "asymmetric"):
        for nearest in ("floor", "ceil"):
            yield (f"Resize to sizes whose quotient is no binary number, {coordinates}, {nearest}", 18,
                   '(float[1,1,7,3] x) => (float[1,1,9,7] y) <int64[4] s = {1,1,9,7}> { y = Resize<mode = "nearest", '
                   f'coordinate_transformation_mode = "{coordinates}", nearest_mode = "{nearest}">(x, , , s) }}', {"x": floats(1, 1, 7, 3)})
    for begin, end, step in ((-9, -10, -1), (-9, -2, -1), (9, -9, -2), (-4, -9, -1), (3, -5, -3), (-9, 9, 1), (2, -9, -1)):
        yield (f"Slice from {begin} to {end} by {step}", 18,
               f"(float[4] x) => (float[_n] y) <int64[1] b = {{{begin}}}, int64[1] e = {{{end}}}, int64[1] a = {{0}}, int64[1] s = {{{step}}}> {{ y = Slice(x, b, e, a, s) }}",
               {"x": floats(4)})
    # Three operands or more are taken two by two; one is summed up.
    for equation, shapes in (("ab,bc,cd->ad", ((2, 3), (3, 4), (4, 5))), ("bi,oij,bj->bo", ((2, 3), (5, 3, 4), (2, 4))),
                             ("bhnd,bhde,bhn->bhne", ((1, 2, 5, 3), (1, 2, 3, 4), (1, 2, 5))), ("ij,k,jk->i", ((6, 2), (7,), (2, 7))),
                             ("ab,bc,cd,d", ((2, 3), (3, 4), (4, 5), (5,))), ("...i,ij,...j->...", ((2, 3, 4), (4, 5), (2, 3, 5))),
                             ("a,a,a->", ((9,), (9,), (9,))), ("aa,ab,b->a", ((3, 3), (3, 4), (4,))), ("bij->bj", ((2, 3, 4),)),
                             ("ij->", ((3, 4),)), ("...ij->j...", ((2, 3, 4, 5),)), ("bji", ((2, 3, 4),)), ("bij,bik->bj", ((2, 3, 4), (2, 3, 5))), ("iik,jk->j", ((3, 3, 4), (5, 4))),
                             ("...k,mj->...j", ((2, 3, 4), (5, 6)))):
        feeds = {name: floats(*shape) for name, shape in zip("pqrs", shapes)}
        result = np.einsum(equation, *feeds.values()).shape
        operands = ", ".join(f"float[{','.join(map(str, v.shape))}] {k}" for k, v in feeds.items())
        yield (f"Einsum {equation}", 12, f"({operands}) => (float{list(result) or ''} y) {{ y = Einsum<equation = \"{equation}\">({', '.join(feeds)}) }}", feeds)
    for onesided in (0, 1):
        yield (f"STFT of a signal without a last axis, onesided = {onesided}", 17,
               f"(float[2,40] x, float[16] w) => (float[_a,_b,_c,2] y) <int64 step = {{7}}, int64 n = {{16}}> {{ y = STFT<onesided = {onesided}>(x, step, w, n) }}",
               {"x": floats(2, 40), "w": floats(16)})
    yield ("STFT of a signal without a last axis, of any length, without a window", 17,
           "(float[B,N] x) => (float[_a,_b,_c,2] y) <int64 step = {5}, int64 n = {12}> { y = STFT(x, step, , n) }", {"x": floats(2, 40)})
    # Parts of a sequence that are known before a run, and one that is not.
    for split, place, attributes in (("<int64 n = {2}, int64 i = {1}>", "(x, n)", "axis = 1"), ("<int64 n = {2}, int64 i = {-1}>", "(x, n)", "axis = -2"),
                                     ("<int64[3] n = {1,3,1}, int64 i = {1}>", "(x, n)", "axis = 1"), ("<int64[3] n = {1,3,1}, int64 i = {-3}>", "(x, n)", "axis = 1, keepdims = 0"),
                                     ("<int64 i = {3}>", "(x)", "axis = 1"), ("<int64 i = {-2}>", "(x)", "axis = 1, keepdims = 0"),
                                     ("<int64[2] n = {0,5}, int64 i = {0}>", "(x, n)", "axis = 1")):
        yield (f"SplitToSequence{place} with {attributes} and {split}", 11,
               f"(float[3,5,4] x) => (float[_a] y) {split} {{ s = SplitToSequence<{attributes}>{place} p = SequenceAt(s, i) m = Neg(p) f = Constant<value = int64[1] {{-1}}>() y = Reshape(m, f) }}",
               {"x": floats(3, 5, 4)})
    yield ("SplitToSequence of a size that a run tells, which is read whole, too", 11,
           "(float[B,5,4] x) => (float[_a,5,4] y, int64 z) <int64 n = {2}, int64 i = {1}> { s = SplitToSequence<axis = 0>(x, n) y = SequenceAt(s, i) z = SequenceLength(s) }",
           {"x": floats(3, 5, 4)})
    yield ("SplitToSequence, of which a part and the length are read", 11,
           "(float[3,5,4] x) => (float[_a,5,4] y, int64 z) <int64 n = {2}, int64 i = {1}> { s = SplitToSequence<axis = 0>(x, n) y = SequenceAt(s, i) z = SequenceLength(s) }",
           {"x": floats(3, 5, 4)})
    yield recurrent("GRU", 3, ["Sigmoid", "LeakyRelu"], "0.5")
    yield recurrent("RNN", 1, ["Affine"], "0.5", ", activation_beta = [0.25]")
    yield recurrent("LSTM", 4, ["HardSigmoid", "Tanh", "Tanh"] * 2, "0.3, 0.4", ", activation_beta = [0.45, 0.55]", 2)
    yield recurrent("LSTM", 4, ["Sigmoid", "ScaledTanh", "Elu"], "0.7, 0.8", ", activation_beta = [0.9]")
    yield matrix_scales("one of each column", [3, 4], [4, 5], [], [5])
    yield matrix_scales("of each column of a batch", [2, 3, 4], [2, 4, 5], [], [2, 1, 5])
    yield ("MatMulInteger, zero points of each column of a batch", 21,
           "(uint8[2,3,4] x, uint8[2,4,5] w, uint8[2,1,5] z) => (int32[2,3,5] y) <uint8 zero = {3}> { y = MatMulInteger(x, w, zero, z) }",
           {"x": rng.integers(0, 255, (2, 3, 4)).astype(U8), "w": rng.integers(0, 255, (2, 4, 5)).astype(U8), "z": rng.integers(0, 255, (2, 1, 5)).astype(U8)})

    words = texts("a", "", "zwölf", "a b")
    yield "texts: Identity, and an input and a constant as outputs", 18, "(string[4] x) => (string[4] y, string[4] x, string[2] c) <string[2] c = {\"u\", \"v\"}> { y = Identity(x) }", {"x": words}
    yield "texts: Where", 18, "(bool[2,1] c, string[4] x, string[1] z) => (string[2,4] y) { y = Where(c, x, z) }", {"c": np.array([[True], [False]]), "x": words, "z": texts("other")}
    yield "texts: Equal and Where", 19, "(string[4] x, string[1] z) => (string[4] y) { e = Equal(x, z) y = Where(e, z, x) }", {"x": words, "z": texts("a")}
    yield "texts: Squeeze of Unsqueeze", 18, "(string[4] x) => (string[4] y) <int64[1] a = {0}> { u = Unsqueeze(x, a) y = Squeeze(u, a) }", {"x": words}
    yield "texts: Cast to the same", 18, "(string[4] x) => (string[4] y) { y = Cast<to = 8>(x) }", {"x": words}
    yield ("texts: Gather of a constant", 18, "(float[1] x) => (string[2] y, float[1] z) <string[3] c = {\"u\", \"v\", \"w\"}, int64[2] i = {2, -3}> { y = Gather(c, i) z = Neg(x) }",
           {"x": floats(1)})
    numbers = np.array([1, 0.1, 1e10, -2.5, np.pi, 1e-7, np.nan, np.inf, -np.inf, 123456789, 0.0, -0.0, 1 / 3])
    for kind, code in (("float", F32), ("double", np.float64)):
        yield f"texts: Cast from {kind}", 18, f"({kind}[13] x) => (string[13] y) {{ y = Cast<to = 8>(x) }}", {"x": numbers.astype(code)}
    whole = np.array([0, 1, 2, 200])
    for kind, code in (("int64", I64), ("int32", np.int32), ("uint8", U8), ("uint64", np.uint64), ("bool", np.bool_)):
        yield f"texts: Cast from {kind}", 18, f"({kind}[4] x) => (string[4] y) {{ y = Cast<to = 8>(x) }}", {"x": whole.astype(code)}
    said = texts("1.5", "-2", "1e3", " 4 ", "INF", "-inf", "NaN", "7x")
    for kind, code in (("float", 1), ("double", 11)):
        yield f"texts: Cast to {kind}", 18, f"(string[8] x) => ({kind}[8] y) {{ y = Cast<to = {code}>(x) }}", {"x": said}
    for kind, code in (("int64", 7), ("int32", 6), ("bool", 9)):
        yield f"texts: Cast to {kind}", 18, f"(string[4] x) => ({kind}[4] y) {{ y = Cast<to = {code}>(x) }}", {"x": texts("15", "0", " +3", "1.9")}
    # Sizes that a model declares, and that are others: what only a run tells has no size of that name.
    x = {"x": floats(4, 3)}
    for operator, sizes, more in (("Slice", "int64[1] b, int64[1] e", {"b": [0], "e": [2]}), ("Expand", "int64[2] s", {"s": [4, 3]}),
                                  ("Tile", "int64[2] r", {"r": [2, 1]}), ("Reshape", "int64[2] s", {"s": [2, 6]})):
        names = ", ".join(part.split()[1] for part in sizes.split(","))
        yield (f"{operator} to a size that has the input's name", 18,
               f"(float[N,M] x, {sizes}) => (float[_a] y, int64[2] z) <float[N,M] t, int64[1] a = {{1}}> {{ t = {operator}(x, {names}) y = ReduceSum<keepdims = 0>(t, a) z = Shape(t) }}",
               x | {k: np.array(v, I64) for k, v in more.items()})
    yield "NonZero of a size that has the input's name", 18, "(float[N] x) => (int64[1,N] y) { y = NonZero(x) }", {"x": np.array([1, 0, 2, 0], F32)}
    yield ("Loop with a state that grows, and is declared with its first size", 18,
           "(float[1,3] x, int64 n) => (float[_m,3] y) <bool go = {1}> { y = Loop<body = turn (int64 i, bool c, float[1,3] all) => (bool more, float[_k,3] next) "
           "<int64[1] last = {-1}, int64[1] end = {2147483647}> { more = Identity(c) row = Slice(all, last, end) twice = Add(row, row) next = Concat<axis = 0>(all, twice) }>(n, go, x) }",
           {"x": floats(1, 3), "n": np.array(3, I64)})
    numbers = {"x": np.array([[1, 2, 3], [4, 5, 6]], np.int32)}
    for operator in ("ReduceLogSum", "ReduceLogSumExp"):
        yield f"{operator} of integers, opset 13", 13, f"(int32[2,3] x) => (int32[2,1] y) {{ y = {operator}<axes = [1]>(x) }}", numbers
        yield f"{operator} of integers, opset 18", 18, f"(int32[2,3] x) => (int32[2,1] y) <int64[1] a = {{1}}> {{ y = {operator}(x, a) }}", numbers
    for size in (1, 3, 5, 9):  # odd ones are all that ONNX Runtime takes
        yield f"LRN over {size} channels", 18, f"(float[2,6,3,4] x) => (float[2,6,3,4] y) {{ y = LRN<size = {size}, alpha = 0.2, beta = 0.6, bias = 1.5>(x) }}", {"x": floats(2, 6, 3, 4)}
    # Filters that the model computes, one after the other: packed anew at each run.
    for kind, attributes, x, w, y in (
            ("Conv", "pads = [1,1,1,1]", (2, 4, 6, 5), (8, 4, 3, 3), "2,8,6,5"), ("Conv", "group = 4, strides = [2,2]", (1, 4, 9, 9), (8, 1, 3, 3), "1,8,4,4"),
            ("Conv", "group = 2, dilations = [2]", (1, 6, 12), (4, 3, 4), "1,4,6"), ("Conv", "pads = [1,0,1,1,1,0]", (1, 3, 4, 5, 6), (5, 3, 2, 2, 2), "1,5,5,5,6"),
            ("ConvTranspose", "strides = [2,2], pads = [1,0,1,1], output_padding = [1,0]", (1, 6, 5, 4), (6, 3, 3, 2), "1,3,10,7"),
            ("ConvTranspose", "group = 2, strides = [3]", (2, 4, 5), (4, 3, 2), "2,6,14")):
        sizes = ",".join(map(str, x)), ",".join(map(str, w))
        yield (f"{kind} with computed filters, {attributes}", 18,
               f"(float[{sizes[0]}] x, float[{sizes[1]}] w, float s, float[{y.split(',')[1]}] b) => (float[{y}] y) {{ v = Mul(w, s) t = {kind}<{attributes}>(x, v, b) r = Relu(t) y = Add(r, t) }}",
               {"x": floats(*x), "w": floats(*w), "s": np.array(0.5, F32), "b": floats(int(y.split(",")[1]))})


def as_texts(array):
    return array.astype(str) if array.dtype.kind in "OU" else array


def judge(report, number, name, opset, graph, feeds):
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> g {graph}')
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    outputs = [o.name for o in session.get_outputs()]
    want = {k: as_texts(v) for k, v in zip(outputs, session.run(outputs, feeds))}
    path, inputs, results = (report.folder / f"{number}.{suffix}" for suffix in ("onnx", "npz", "out.npz"))
    onnx.save(model, path)
    np.savez(inputs, **{k: as_texts(v) for k, v in feeds.items()})
    for backend in ("cpu", "reference"):
        done = harness.run("run", path, "--inputs", inputs, "--outputs", results, "--backend", backend, "--force")
        problem = done.tail() if done.code != harness.OK else None
        if not problem:
            with np.load(results) as found:
                got = {k: as_texts(found[k]) for k in found.files}
            problem = next((f"{k}: {got[k].tolist()}, wanted {v.tolist()}" for k, v in want.items() if v.dtype.kind == "U" and got[k].tolist() != v.tolist()), None) or \
                tolerance.differences({k: v for k, v in got.items() if v.dtype.kind != "U"}, {k: v for k, v in want.items() if v.dtype.kind != "U"})
        report.check(f"{name}, {backend}", problem)


def main():
    report = harness.Report()
    wanted = sys.argv[1] if len(sys.argv) > 1 else "*"
    for number, case in enumerate(cases()):
        if fnmatch.fnmatch(case[0], wanted):
            judge(report, number, *case)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
