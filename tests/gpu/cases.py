"""Kernel cases for a GPU: small models, a kernel or two each, as ONNX text. Every kind of kernel, element type, broadcast and layout
that the backend has; `ferrule verify --oracle` runs each against the interpreter. No GPU is needed to list them. Inputs called w and b
become constants, as weights are in models. Those in INTERPRETED have no kernel: the host computes them."""
import numpy as np
import onnx
import onnx.compose
from onnx import helper

import harness

INTERPRETED = {"product", "integers"}
FLOATS = {"f32": "float", "f16": "float16", "bf16": "bfloat16"}


def write(path, text):
    """The case as a model."""
    model = harness.onnx_text("g " + text, opset=20)
    rng = np.random.default_rng(1)
    for value in [v for v in model.graph.input if v.name in ("w", "b")]:
        t = value.type.tensor_type
        dims = [d.dim_value for d in t.shape.dim]
        numbers = rng.uniform(-0.5, 0.5, int(np.prod(dims)))
        model.graph.initializer.append(helper.make_tensor(value.name, t.elem_type, dims, numbers.tolist()))
        model.graph.input.remove(value)
    onnx.save(model, path)


def joined(path, chosen):
    """Several cases as one model; names of values and nodes begin with their case's name and a colon."""
    whole = None
    for name, text in chosen:
        write(path, text)
        one = onnx.compose.add_prefix(onnx.load(path), f"{name}:")
        for n, node in enumerate(one.graph.node):
            node.name = f"{name}:{n}"
        if whole is None:
            whole = one
            continue
        for part in ("node", "input", "output", "initializer"):
            getattr(whole.graph, part).extend(getattr(one.graph, part))
    onnx.save(whole, path)


def unary(ops, floats):
    for op in ops:
        for t in floats:
            yield f"{op}_{t}", f"({FLOATS[t]}[3,5,64] x) => ({FLOATS[t]}[3,5,64] y) {{ y = {op}(x) }}"


def pointwise(floats):
    yield from unary(["Relu", "Sigmoid", "Tanh", "Exp", "Erf", "HardSwish", "Gelu", "Elu", "Softplus", "Neg", "Abs", "Floor", "Ceil", "Round",
                      "Sqrt", "Reciprocal", "Sin", "Cos", "Mish", "LeakyRelu", "Selu", "Sign"], floats)
    shapes = {"same": ("[4,6,33]", "[4,6,33]"), "channel": ("[2,8,5,7]", "[8,1,1]"), "row": ("[64,128]", "[128]"), "column": ("[64,128]", "[64,1]"),
              "scalar": ("[3,100]", ""), "both": ("[4,1,33]", "[6,1]")}
    results = {"both": "[4,6,33]"}
    for op in ("Add", "Sub", "Mul", "Div", "Max", "Min"):
        for kind, (a, b) in shapes.items():
            for t in floats if op == "Add" else ["f32"]:
                yield f"{op}_{kind}_{t}", f"({FLOATS[t]}{a} x, {FLOATS[t]}{b} k) => ({FLOATS[t]}{results.get(kind, a)} y) {{ y = {op}(x, k) }}"
    for t in ("int32", "int64", "uint8", "double"):
        yield f"add_{t}", f"({t}[7,33] x, {t}[33] k) => ({t}[7,33] y) {{ a = Add(x, k) y = Max(a, k) }}"
    yield "compare", "(float[7,33] x, float[33] k) => (bool[7,33] y, float[7,33] z) { y = Greater(x, k) z = Where(y, x, k) }"
    yield "cast", "(float[7,33] x) => (int32[7,33] y, float16[7,33] z) { y = Cast<to=6>(x) z = Cast<to=10>(x) }"
    yield "two_results", "(float[9,64] x) => (float[9,64] y, float[9,64] z) { a = Exp(x) y = Add(a, x) z = Tanh(a) }"
    yield "large", "(float[1024,4099] x) => (float[1024,4099] y) { y = Sigmoid(x) }"


def rows(floats):
    for t in floats:
        f = FLOATS[t]
        for n in (1, 31, 128, 1000, 5000, 70000):
            m = max(2, min(300, 100000 // n))
            yield f"softmax_{n}_{t}", f"({f}[{m},{n}] x) => ({f}[{m},{n}] y) {{ y = Softmax<axis=-1>(x) }}"
            yield f"mean_{n}_{t}", f"({f}[{m},{n}] x) => ({f}[{m}] y) <int64[1] a = {{1}}> {{ y = ReduceMean<keepdims=0>(x, a) }}"
        yield f"topk_{t}", f"({f}[40,333] x) => ({f}[40,5] y, int64[40,5] i) <int64[1] k = {{5}}> {{ s = Softmax(x) y, i = TopK(s, k) }}"
        yield f"columns_{t}", f"({f}[300,77] x) => ({f}[77] y) <int64[1] a = {{0}}> {{ y = ReduceMax<keepdims=0>(x, a) }}"
        yield f"channels_{t}", f"({f}[2,5,9,33] x) => ({f}[2,1,9,33] y) <int64[1] a = {{1}}> {{ y = ReduceSum(x, a) }}"
        yield f"layer_norm_{t}", (f"({f}[6,7,96] x, {f}[96] g, {f}[96] b, {f}[6,7,96] r) => ({f}[6,7,96] y) "
                                  "{ s = Add(x, r) y = LayerNormalization<axis=-1>(s, g, b) }")
    for n in (1 << 20, 1 << 22):
        yield f"sum_{n}", f"(float[2,{n}] x) => (float[2,1] y) <int64[1] a = {{1}}> {{ y = ReduceSum(x, a) }}"
    yield "product", "(double[4,9] x) => (double[4,1] y) <int64[1] a = {1}> { y = ReduceProd(x, a) }"
    yield "integers", "(int32[40,90] x) => (int32[40,1] y) <int64[1] a = {1}> { y = ReduceSum(x, a) }"


def moves(floats):
    sizes = {"f32": "float", "f16": "float16", "u8": "uint8", "i64": "int64"}
    for t, f in sizes.items():
        yield f"transpose_{t}", f"({f}[3,65,40] x) => ({f}[40,3,65] y) {{ y = Transpose<perm=[2,0,1]>(x) }}"
        yield f"gather_{t}", f"({f}[9,33,4] x) => ({f}[9,3,4] y) <int64[3] i = {{5, -1, 0}}> {{ y = Gather<axis=1>(x, i) }}"
        yield f"concat_{t}", f"({f}[3,5,7] x, {f}[3,2,7] z) => ({f}[3,7,7] y) {{ y = Concat<axis=1>(x, z) }}"
        yield f"slice_{t}", (f"({f}[8,20] x) => ({f}[4,5] y) <int64[2] b = {{0, 18}}, int64[2] e = {{8, 0}}, int64[2] a = {{0, 1}}, int64[2] s = {{2, -4}}> "
                             "{ y = Slice(x, b, e, a, s) }")
        yield f"expand_{t}", f"({f}[3,1,7] x) => ({f}[2,3,5,7] y) <int64[4] s = {{2, 3, 5, 7}}> {{ y = Expand(x, s) }}"
    yield "pad", "(float[2,3,5] x) => (float[2,6,9] y) <int64[6] p = {0, 1, 2, 0, 2, 2}> { y = Pad(x, p) }"
    yield "split", "(float[4,10] x) => (float[4,3] y, float[4,7] z) <int64[2] s = {3, 7}> { y, z = Split<axis=1>(x, s) }"
    yield "nearest", "(float[1,3,5,6] x) => (float[1,3,10,12] y) <float[4] s = {1.0, 1.0, 2.0, 2.0}> { y = Resize<mode=\"nearest\">(x, , s) }"
    yield "depth_to_space", "(float[1,8,3,4] x) => (float[1,2,6,8] y) { y = DepthToSpace<blocksize=2>(x) }"


def conv(name, t, x, w, y, attrs="", bias=True, tail="", extra=""):
    f = FLOATS[t]
    b = f", {f}[{w.split(',')[0]}] b" if bias else ""
    call = f"c = Conv<{attrs}>(x, w{', b' if bias else ''})" if attrs else f"c = Conv(x, w{', b' if bias else ''})"
    return f"{name}_{t}", f"({f}[{x}] x, {f}[{w}] w{b}{extra.format(f=f)}) => ({f}[{y}] y) {{ {call} {tail or 'y = Identity(c)'} }}"


def library(floats):
    for t in floats:
        f = FLOATS[t]
        yield conv("conv_1x1", t, "2,64,14,14", "32,64,1,1", "2,32,14,14")
        yield conv("conv_3x3", t, "2,16,15,17", "24,16,3,3", "2,24,15,17", "pads=[1,1,1,1]")
        yield conv("conv_stride", t, "2,16,15,17", "24,16,3,3", "2,24,8,9", "pads=[1,1,1,1], strides=[2,2]")
        yield conv("conv_uneven", t, "2,8,15,17", "8,8,3,2", "2,8,14,17", "pads=[0,0,1,1]")
        yield conv("conv_dilated", t, "1,8,15,17", "8,8,3,3", "1,8,11,13", "dilations=[2,2]")
        yield conv("conv_groups", t, "1,16,9,9", "32,4,3,3", "1,32,7,7", "group=4")
        yield conv("depthwise", t, "2,32,14,14", "32,1,3,3", "2,32,14,14", "group=32, pads=[1,1,1,1]")
        yield conv("stem", t, "1,3,33,33", "16,3,7,7", "1,16,17,17", "pads=[3,3,3,3], strides=[2,2]")
        yield conv("conv_1d", t, "2,8,40", "16,8,3", "2,16,38")
        yield conv("conv_relu", t, "1,16,9,9", "16,16,3,3", "1,16,7,7", tail="y = Relu(c)")
        yield conv("conv_swish", t, "1,16,9,9", "16,16,3,3", "1,16,7,7", tail="s = Sigmoid(c) y = Mul(c, s)")
        yield conv("conv_gelu", t, "1,16,9,9", "16,16,3,3", "1,16,7,7", tail="y = Gelu(c)")
        yield conv("conv_add_relu", t, "1,16,9,9", "16,16,3,3", "1,16,7,7", tail="s = Add(c, r) y = Relu(s)", extra=", {f}[1,16,7,7] r")
        yield conv("conv_constant", t, "2,8,9,7", "8,8,3,3", "2,8,7,5", bias=False, tail="s = Add(c, b) y = Relu(s)", extra=", {f}[2,8,7,5] b")
        yield conv("conv_rows", t, "2,8,9,7", "8,8,3,3", "2,8,7,5", bias=False, tail="y = Mul(c, b)", extra=", {f}[7,1] b")
        yield conv("conv_1d_constant", t, "3,8,16", "8,8,2", "3,8,5", "strides=[3]", bias=False, tail="y = Add(c, b)", extra=", {f}[3,8,5] b")
        yield conv("conv_no_bias", t, "1,16,9,9", "16,16,1,1", "1,16,9,9", bias=False)
        yield f"deconv_{t}", f"({f}[1,16,8,8] x, {f}[16,8,2,2] w) => ({f}[1,8,16,16] y) {{ y = ConvTranspose<strides=[2,2]>(x, w) }}"
        yield f"matmul_{t}", f"({f}[5,70,64] x, {f}[5,64,33] k) => ({f}[5,70,33] y) {{ y = MatMul(x, k) }}"
        yield f"matmul_broadcast_{t}", f"({f}[2,3,17,64] x, {f}[64,40] k) => ({f}[2,3,17,40] y) {{ y = MatMul(x, k) }}"
        yield f"linear_gelu_{t}", f"({f}[33,64] x, {f}[64,48] k, {f}[48] b) => ({f}[33,48] y) {{ m = MatMul(x, k) s = Add(m, b) y = Gelu(s) }}"
        yield f"gemm_{t}", f"({f}[64,20] x, {f}[48,64] k, {f}[48] b) => ({f}[20,48] y) {{ g = Gemm<transA=1, transB=1, alpha=0.5>(x, k, b) y = Relu(g) }}"
        yield f"max_pool_{t}", f"({f}[2,16,15,15] x) => ({f}[2,16,8,8] y) {{ y = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x) }}"
        yield f"average_pool_{t}", f"({f}[2,16,15,15] x) => ({f}[2,16,7,7] y) {{ y = AveragePool<kernel_shape=[3,3], strides=[2,2]>(x) }}"
        yield f"global_pool_{t}", f"({f}[2,16,15,15] x) => ({f}[2,16,1,1] y) {{ y = GlobalAveragePool(x) }}"


# 0.125, 0, and what masks a key; halves are written as their bits.
SCALE = {"f32": "0.125", "f16": "12288", "bf16": "15872"}
ZERO = {"f32": "0.0", "f16": "0", "bf16": "0"}
MASKED = {"f32": "-3e38", "f16": "64512", "bf16": "65408"}  # minus infinity


def attentions(floats):
    """Those that cuDNN runs in halves, and one that a generated kernel does. Masks leave each query a key, but where the model makes NaN 0."""
    for t in floats:
        f, core = FLOATS[t], "p = Softmax<axis=-1>(u) y = MatMul(p, v) }"
        scale = f"{f} c = {{{SCALE[t]}}}"
        constants = f"<{scale}> "

        def first(b, h, sq, sk, d, dv, mask=""):
            return (f"({f}[{b},{h},{sq},{d}] q, {f}[{b},{h},{sk},{d}] k, {f}[{b},{h},{sk},{dv}] v{f', {f}[{mask}] m' if mask else ''}) => "
                    f"({f}[{b},{h},{sq},{dv}] y) ")

        begin = "{ t = Transpose<perm=[0,1,3,2]>(k) r = MatMul(q, t) s = Mul(r, c) "
        yield f"attention_{t}", (f"({f}[2,50,4,64] q, {f}[2,70,4,64] k, {f}[2,70,4,64] v, {f}[1,1,50,70] m) => ({f}[2,50,4,64] y) {constants}"
                                 "{ q2 = Transpose<perm=[0,2,1,3]>(q) k2 = Transpose<perm=[0,2,3,1]>(k) v2 = Transpose<perm=[0,2,1,3]>(v) "
                                 "s = MatMul(q2, k2) t = Mul(s, c) u = Add(t, m) p = Softmax<axis=-1>(u) o = MatMul(p, v2) y = Transpose<perm=[0,2,1,3]>(o) }")
        yield f"attention_plain_{t}", first(2, 8, 197, 197, 64, 64) + constants + begin + "u = Identity(s) " + core
        yield f"attention_heads_{t}", first(1, 2, 129, 300, 128, 40) + constants + begin + "u = Identity(s) " + core
        yield f"attention_query_{t}", first(3, 4, 1, 500, 64, 64, "3,1,1,500") + constants + begin + "u = Add(s, m) " + core
        yield f"attention_keys_{t}", first(2, 4, 77, 77, 80, 80, "2,1,1,77") + constants + begin + "u = Add(s, m) " + core
        # The first tiles of keys are masked altogether: the greatest score so far is minus infinity.
        hidden = ", ".join([MASKED[t]] * 270 + [ZERO[t]] * 30)
        yield f"attention_hidden_{t}", first(2, 2, 40, 300, 64, 64) + f"<{scale}, {f}[300] m = {{{hidden}}}> " + begin + "u = Add(s, m) " + core
        yield f"attention_some_{t}", (first(2, 2, 60, 200, 32, 32, "2,2,60,200") + f"<{scale}, {f} z = {{{ZERO[t]}}}, {f} n = {{{MASKED[t]}}}> " + begin +
                                      "l = Less(m, z) a = Where(l, n, z) u = Add(s, a) " + core)
        yield f"attention_one_head_{t}", (f"({f}[2,4,33,64] q, {f}[2,1,65,64] k, {f}[2,1,65,64] v) => ({f}[2,4,33,64] y) {constants}" + begin +
                                          "u = Identity(s) " + core)
        # Heads of one product for all three, whose parts are read where they lie.
        for size in (64, 12):
            yield f"attention_packed_{size}_{t}", (
                f"({f}[2,40,{9 * size}] x) => ({f}[2,3,40,{size}] y) <{scale}, int64[4] h = {{0, 0, 3, {size}}}> {{ qp, kp, vp = Split<axis = 2, num_outputs = 3>(x) qh = Reshape(qp, h) "
                "kh = Reshape(kp, h) vh = Reshape(vp, h) q = Transpose<perm = [0,2,1,3]>(qh) k = Transpose<perm = [0,2,3,1]>(kh) v = Transpose<perm = [0,2,1,3]>(vh) "
                "d = MatMul(q, k) u = Mul(d, c) p = Softmax<axis = -1>(u) y = MatMul(p, v) }")
        # The same by index, and by a Split, behind a Transpose, as vision transformers write it.
        for how, take in (("index", "q = Gather<axis = 0>(t, i0) k1 = Gather<axis = 0>(t, i1) v = Gather<axis = 0>(t, i2) "),
                          ("unbind", "qs, ks, vs = Split<axis = 0, num_outputs = 3>(t) q = Squeeze(qs, a) k1 = Squeeze(ks, a) v = Squeeze(vs, a) ")):
            yield f"attention_{how}_{t}", (
                f"({f}[2,40,16] n, {f}[16,192] w) => ({f}[2,4,40,16] y) <{scale}, int64[5] h = {{0, 40, 3, 4, 16}}, int64[1] a = {{0}}, int64 i0 = {{0}}, int64 i1 = {{1}}, int64 i2 = {{2}}> "
                "{ x = MatMul(n, w) r = Reshape(x, h) t = Transpose<perm = [2,0,3,1,4]>(r) " + take +
                "k = Transpose<perm = [0,1,3,2]>(k1) d = MatMul(q, k) u = Mul(d, c) p = Softmax<axis = -1>(u) y = MatMul(p, v) }")
        yield f"attention_odd_{t}", first(2, 3, 33, 44, 12, 12) + constants + begin + "u = Identity(s) " + core
        # Some queries have no key at all.
        gone = ", ".join([MASKED[t]] * (44 * 3) + [ZERO[t]] * (44 * 30))
        yield f"attention_safe_{t}", (first(2, 3, 33, 44, 16, 16) + f"<{scale}, {f} z = {{{ZERO[t]}}}, {f}[33,44] m = {{{gone}}}> " + begin +
                                      "u = Add(s, m) p = Softmax<axis=-1>(u) n = IsNaN(p) w = Where(n, z, p) y = MatMul(w, v) }")
        # And some in a mask that is computed: by the sign of one number a query.
        low = "-inf" if t == "f32" else MASKED[t]
        yield f"attention_guarded_{t}", (first(2, 3, 33, 44, 16, 16, "2,1,33,1") + f"<{scale}, {f} z = {{{ZERO[t]}}}, {f} low = {{{low}}}, {f}[44] none = {{{', '.join([ZERO[t]] * 44)}}}, int64[1] a = {{-1}}> " + begin +
                                         "l = Less(m, z) h = Where(l, low, none) u = Add(s, h) p = Softmax<axis=-1>(u) most = ReduceMax<keepdims=1>(h, a) "
                                         "g = Equal(most, low) w = Where(g, z, p) y = MatMul(w, v) }")


def all_cases(floats):
    """(name, ONNX text of a graph's signature and body) of every case."""
    for group in (pointwise, rows, moves, library, attentions):
        yield from group(floats)


def quick_cases():
    """One or two of each kind, for a rehearsal."""
    wanted = {"Relu_f32", "Add_channel_f32", "compare", "softmax_128_f32", "layer_norm_f32", "transpose_f32", "gather_f32", "concat_f32", "pad",
              "conv_3x3_f32", "conv_swish_f32", "depthwise_f32", "matmul_f32", "linear_gelu_f32", "max_pool_f32", "attention_f32", "attention_f16", "attention_safe_f16"}
    return [case for case in all_cases(["f32", "f16"]) if case[0] in wanted]
