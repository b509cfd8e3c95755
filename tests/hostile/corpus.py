"""Hostile models: bytes, headers, graphs, types, attributes, bombs, paths and strings made to break a reader.

Each is explained, and run if that went well. corpus.tsv says how either must end: well, or with one error of a certain kind, whose
exit code engine/base/diagnostics.def has; within two seconds of computing (where size is what is tried: SECONDS), inside a bounded
address space, with no control character of the model in its output.

usage: corpus.py [--keep DIR] [NAME-PART...]     --keep: writes the models there, to try one by hand
"""
import argparse
import fnmatch
import itertools
import math
import os
import pathlib
import random
import re
import resource
import struct
import sys

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, TensorProto, helper

import graphs
import harness
from harness import OK

CASES = []  # (name, maker, pattern of the message)
ADDRESS_SPACE = 4 << 30
# Names that a terminal, a source file or a log would act on.
NASTY = ["line\nbreak", "tab\tbell\a", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x1b]8;;http://x\x07link", "\x9b31m",
         "*/ #include <evil>", '"); system("id"); ("', "<script>alert(1)</script>", "=cmd|' /C calc'!A0",
         "\u202eltr", "\u2066isolate\u2069", "%s%n%s", "{}{0}{fmt}", "../../../etc/passwd", "a" * 100000, "", " ", "\r\r\r"]


def case(name, says=None):
    """Registers a maker: it gets a folder and returns a ModelProto, bytes, or the path of what it wrote."""
    def register(maker):
        CASES.append((name, maker, says))
        return maker
    return register


def text(source, change=None, **options):
    """A model out of ONNX text, changed afterwards where the text cannot say it."""
    m = harness.onnx_text(source, **options)
    if change:
        change(m)
    return m


def simple(name, source, says=None, change=None):
    case(name, says)(lambda folder: text(source, change))


ONE = "agraph (float[2,3] x) => (float[2,3] y) { [n] y = Relu (x) }"


def conv(attributes):
    """A convolution with a real weight and these attributes."""
    m = text(f"agraph (float[1,2,5,5] x, float[4,2,3,3] W) => (float[N,C,H,V] y) {{ [conv] y = Conv <{attributes}> (x, W) }}")
    del m.graph.input[1]
    m.graph.initializer.append(helper.make_tensor("W", TensorProto.FLOAT, [4, 2, 3, 3], [0.5] * 72))
    return m


def constant(m, name, dtype, dims, values):
    m.graph.initializer.append(helper.make_tensor(name, dtype, dims, values))


# --- bytes ---------------------------------------------------------------------------------------------
@case("bytes: nothing")
def _(folder):
    return b""


for seed, size in enumerate((1, 100, 1024, 65536, 1 << 20)):
    case(f"bytes: {size} random")(lambda folder, seed=seed, size=size: random.Random(seed).randbytes(size))

for seed in range(12):
    @case(f"bytes: bit flips {seed}")
    def _(folder, seed=seed):
        data = bytearray(conv("pads = [1,1,1,1]").SerializeToString())
        rng = random.Random(seed)
        for _ in range(1 + seed % 4):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(data)


@case("bytes: a sparse file of 1 TB")
def _(folder):
    path = folder / "sparse.onnx"
    with open(path, "wb") as f:
        f.truncate(1 << 40)
    return path


@case("bytes: 2 GiB and one")
def _(folder):
    path = folder / "large.onnx"
    with open(path, "wb") as f:
        f.truncate((1 << 31) + 1)
    return path


case("bytes: /dev/zero")(lambda folder: pathlib.Path("/dev/zero"))
case("bytes: a terminal's input")(lambda folder: pathlib.Path("/dev/stdin"))
case("bytes: deep groups")(lambda folder: b"\x3b" * 100000)
case("bytes: a length of 2^62")(lambda folder: b"\x3a" + b"\xff" * 8 + b"\x3f" + b"x")
case("bytes: fields of unknown numbers")(
    lambda folder: b"".join(struct.pack("<B", (15 << 3) | 2 & 7) + b"\x01z" for _ in range(1000)) + text(ONE).SerializeToString())


# --- header --------------------------------------------------------------------------------------------
def header(name, change, says=None):
    simple(f"header: {name}", ONE, says, change)


header("no IR version", lambda m: m.ClearField("ir_version"))
header("IR version 0", lambda m: setattr(m, "ir_version", 0))
header("IR version of the far future", lambda m: setattr(m, "ir_version", (1 << 63) - 1))
header("IR version negative", lambda m: setattr(m, "ir_version", -3))
header("no opset", lambda m: m.ClearField("opset_import"))
for version in (0, -1, 6, 9999, (1 << 63) - 1):
    header(f"opset {version}", lambda m, v=version: setattr(m.opset_import[0], "version", v))
header("the same domain twice", lambda m: m.opset_import.append(helper.make_opsetid("", 11)))
header("a domain nobody knows", lambda m: m.opset_import.append(helper.make_opsetid("com.nobody", 1)))
header("only a foreign domain", lambda m: setattr(m.opset_import[0], "domain", "com.nobody"))
header("no graph", lambda m: m.ClearField("graph"))
header("an empty graph", lambda m: m.graph.Clear())
header("no nodes, no outputs", lambda m: (m.graph.ClearField("node"), m.graph.ClearField("output")))
header("an input that is the output", lambda m: (m.graph.ClearField("node"), setattr(m.graph.output[0], "name", "x")))


# --- graph ---------------------------------------------------------------------------------------------
simple("graph: a cycle", "agraph (float[2] x) => (float[2] y) { a = Add(x, b) b = Relu(a) y = Relu(b) }", "cycl")
simple("graph: a self-loop", "agraph (float[2] x) => (float[2] y) { y = Add(x, y) }", "cycl")
simple("graph: a dangling input", "agraph (float[2] x) => (float[2] y) { y = Add(x, ghost) }", "ghost")
simple("graph: an output twice", "agraph (float[2] x) => (float[2] y) { y = Abs(x) y = Relu(x) }", r"\by\b")
simple("graph: a missing output", "agraph (float[2] x) => (float[2] z) { y = Abs(x) }", r"\bz\b")
simple("graph: one node, one output name twice", "agraph (float[4] x) => (float[2] y) { y, y = Split<axis=0, num_outputs=2>(x) }")
simple("graph: an input twice", "agraph (float[2] x, float[3] x) => (float[2] y) { y = Abs(x) }")
simple("graph: not sorted", "agraph (float[2] x) => (float[2] y) { y = Relu(t) t = Abs(x) }")
simple("graph: a node of nothing", ONE, change=lambda m: m.graph.node.add(op_type="Relu", name="void"))
simple("graph: a node without an operator", ONE, change=lambda m: m.graph.node[0].ClearField("op_type"))
simple("graph: too many inputs", ONE, change=lambda m: m.graph.node[0].input.extend(["x"] * 5))
simple("graph: too many outputs", ONE, change=lambda m: m.graph.node[0].output.extend(["a", "b"]))
simple("graph: an empty name in the middle", "agraph (float[1] x) => (float[1] y) { y = Clip(x) }",
       change=lambda m: m.graph.node[0].input.extend(["", "x"]))
simple("graph: one of any number of inputs is empty", "agraph (float[2] x) => (float[4] y) { y = Concat<axis=0>(x, x) }",
       change=lambda m: m.graph.node[0].input.__setitem__(0, ""))
simple("graph: a required input is empty", "agraph (float[2] x) => (float[2] y) { y = Add(x, x) }",
       change=lambda m: m.graph.node[0].input.__setitem__(0, ""))
simple("graph: an output that is an initializer", ONE,
       change=lambda m: (constant(m, "k", 1, [1], [1.0]), setattr(m.graph.output[0], "name", "k")))
simple("graph: two initializers of one name", ONE,
       change=lambda m: (constant(m, "k", 1, [1], [1.0]), constant(m, "k", 1, [1], [2.0])))
simple("graph: an initializer that a node writes", ONE, change=lambda m: constant(m, "y", 1, [2, 3], [1.0] * 6))
simple("graph: an initializer without a name", ONE, change=lambda m: constant(m, "", 1, [1], [1.0]))


def chain(count, op="Relu", wide=1):
    """count nodes in a row; wide=2: a ladder, each rung reading both values before it."""
    nodes, last = [], ["x"] * wide
    for k in range(count):
        new = [f"v{k}_{j}" for j in range(wide)]
        for j, name in enumerate(new):
            nodes.append(helper.make_node(op, [last[j]] if wide == 1 else list(last), [name], name=f"n{k}_{j}"))
        last = new
    value = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [value("x", 1, [2, 3])], [value(last[0], 1, [2, 3])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


case("graph: a chain of 3,000")(lambda folder: chain(3000))
case("graph: a chain of 3,000 Identity")(lambda folder: chain(3000, "Identity"))
case("graph: a ladder of 500, two wide")(lambda folder: chain(500, "Add", 2))


@case("graph: 3,000 readers of one value")
def _(folder):
    m = chain(1)
    for k in range(3000):
        m.graph.node.append(helper.make_node("Abs", ["v0_0"], [f"w{k}"]))
        m.graph.output.append(helper.make_tensor_value_info(f"w{k}", 1, [2, 3]))
    return m


@case("graph: a node of 20,000 inputs")
def _(folder):
    m = chain(1)
    m.graph.node[0].op_type = "Sum"
    m.graph.node[0].input[:] = ["x"] * 20000
    return m


@case("graph: 1,000 diamonds")
def _(folder):
    m = chain(0)
    last = "x"
    for k in range(1000):
        m.graph.node.extend([helper.make_node("Abs", [last], [f"l{k}"]), helper.make_node("Neg", [last], [f"r{k}"]),
                             helper.make_node("Add", [f"l{k}", f"r{k}"], [f"d{k}"])])
        last = f"d{k}"
    m.graph.output[0].name = last
    return m


# --- types and shapes ----------------------------------------------------------------------------------
def dims(*sizes):
    def change(m):
        shape = m.graph.input[0].type.tensor_type.shape
        del shape.dim[:]
        for s in sizes:
            shape.dim.add(dim_value=s)
        out = m.graph.output[0].type.tensor_type.shape
        del out.dim[:]
        for k in range(len(sizes)):
            out.dim.add(dim_param=f"d{k}")
    return change


for dtype in (0, 99, -1):  # 0: not given; `run` asks for it
    simple(f"types: element type {dtype}", ONE, change=lambda m, t=dtype: setattr(m.graph.input[0].type.tensor_type, "elem_type", t))
simple("types: a negative dimension", ONE, change=dims(-5, 3))
simple("types: 2^63 elements", ONE, change=dims(1 << 31, 1 << 32))
simple("types: a count that wraps to 0", ONE, change=dims(1 << 32, 1 << 32))
simple("types: the largest dimension", ONE, change=dims((1 << 63) - 1))
simple("types: no elements", ONE, change=dims(0, 3))
simple("types: no elements, the other size beyond any", ONE, change=dims(1 << 60, 0))
simple("types: rank 64", ONE, change=dims(*[1] * 64))
simple("types: rank 1,025", ONE, change=dims(*[1] * 1025))
simple("types: declared is not inferred", "agraph (float[2,3] x) => (float[7,3] y) { y = Relu(x) }")
# What is declared decides how much memory a result has; what the body makes is more.
for _size in (5, 7):
    simple(f"types: scans of 6 are declared as {_size}", f"""agraph (float[1,1,6] x) => (float[3,1,1,{_size}] y) <bool go = {{1}}> {{
           f, y = Loop ("", go, x) <body = b (int64 i, bool c, float[] s) => (bool more, float[1,1,6] n, float[] r) <int64 last = {{2}}> {{
             n = Tanh(s) more = Less(i, last) r = Identity(s) }}> }}""")
simple("types: declared type is not inferred", "agraph (float[2,3] x) => (int64[2,3] y) { y = Relu(x) }")
simple("types: one symbol, two sizes", "agraph (float[N,3] x, float[N,3] z, float[2,3] k, float[4,3] l) => (float[N,3] y) "
       "{ a = Add(x, k) b = Add(z, l) y = Add(a, b) }")
simple("types: a sequence", ONE, change=lambda m: m.graph.input[0].type.sequence_type.elem_type.tensor_type.SetInParent() or
       setattr(m.graph.input[0].type.sequence_type.elem_type.tensor_type, "elem_type", 1))
simple("types: no type at all", ONE, change=lambda m: m.graph.input[0].ClearField("type"))


def data(name, change, **kw):
    """A model with an initializer k of 2x3 floats that `change` damages."""
    def damage(m):
        constant(m, "k", TensorProto.FLOAT, [2, 3], [1.0] * 6)
        m.graph.node[0].op_type = "Add"
        m.graph.node[0].input.append("k")
        change(m.graph.initializer[0])
    simple(f"data: {name}", ONE, change=damage, **kw)


def raw(content):
    return lambda t: (t.ClearField("float_data"), setattr(t, "raw_data", content))


data("too few values", lambda t: t.float_data.pop())
data("too many values", lambda t: t.float_data.append(1.0))
data("no values", lambda t: t.ClearField("float_data"))
data("raw data too short", raw(bytes(23)))
data("raw data too long", raw(bytes(25)))
data("raw data and values", lambda t: setattr(t, "raw_data", bytes(24)))
data("strings in raw data", lambda t: (raw(bytes(24))(t), setattr(t, "data_type", TensorProto.STRING)))
data("values of another type", lambda t: (t.ClearField("float_data"), t.int64_data.extend([1] * 6)))
data("a type that is none", lambda t: setattr(t, "data_type", 77))
data("negative dimensions", lambda t: t.dims.__setitem__(0, -2))
data("dimensions whose product wraps", lambda t: t.dims.extend([1 << 32, 1 << 32]))
data("2^40 elements, no data", lambda t: (t.ClearField("float_data"), t.dims.__setitem__(0, 1 << 40)))
simple("data: no elements, the other size beyond any", "agraph (float[2] x) => (float[a,b] y) { y = Relu (k) }",
       change=lambda m: constant(m, "k", TensorProto.FLOAT, [1 << 60, 0], []))
data("rank 5,000", lambda t: t.dims.extend([1] * 5000))
data("NaN, infinity, denormal, -0", lambda t: (t.ClearField("float_data"),
     t.float_data.extend([math.nan, math.inf, -math.inf, 1e-40, -0.0, 3e38])))
data("an odd count of int4", lambda t: (t.ClearField("float_data"), setattr(t, "data_type", TensorProto.INT4), t.dims.__setitem__(0, 1),
     setattr(t, "raw_data", b"\x11\x22")))


def sparse(name, indices, shape=(2, 3)):
    @case(f"data: sparse, {name}")
    def _(folder):
        m = text(ONE)
        values = helper.make_tensor("k", TensorProto.FLOAT, [len(indices)], [1.0] * len(indices))
        where = helper.make_tensor("i", TensorProto.INT64, [len(indices)], indices)
        m.graph.sparse_initializer.append(helper.make_sparse_tensor(values, where, list(shape)))
        m.graph.node[0].op_type = "Add"
        m.graph.node[0].input.append("k")
        return m


sparse("not sorted", [4, 1])
sparse("out of bounds", [1, 6])
sparse("negative", [-1, 2])
sparse("twice the same", [2, 2])
sparse("2^62 elements", [1, 2], (1 << 31, 1 << 31))


# --- attributes ----------------------------------------------------------------------------------------
def attribute(name, source, change=None):
    simple(f"attribute: {name}", source, change=change)


def add_attribute(m, name, value):
    m.graph.node[0].attribute.append(helper.make_attribute(name, value))


attribute("of the wrong type", "agraph (float[2,3] x) => (float[3,2] y) { y = Transpose<perm = 1.5>(x) }")
attribute("twice", "agraph (float[2,3] x) => (float[3,2] y) { y = Transpose<perm = [1,0]>(x) }",
          change=lambda m: add_attribute(m, "perm", [0, 1]))
attribute("missing", "agraph (float[2,3] x) => (float[2,3] y) { y = Cast(x) }")
attribute("without a name", ONE, change=lambda m: add_attribute(m, "", 1))
attribute("without a type", ONE, change=lambda m: m.graph.node[0].attribute.add(name="alpha"))
attribute("axis out of range", "agraph (float[2,3] x) => (float[2,3] y) { y = Softmax<axis = 7>(x) }")
attribute("axis the least integer", "agraph (float[2,3] x) => (float[2,3] y) { y = Softmax<axis = -9223372036854775808>(x) }")
attribute("Concat axis out of range", "agraph (float[2,3] x) => (float[2,6] y) { y = Concat<axis = 2>(x, x) }")
attribute("Cast to 99", "agraph (float[2,3] x) => (float[2,3] y) { y = Cast<to = 99>(x) }")
attribute("perm with a repeat", "agraph (float[2,3] x) => (float[2,2] y) { y = Transpose<perm = [0,0]>(x) }")
attribute("perm of another rank", "agraph (float[2,3] x) => (float[3,2] y) { y = Transpose<perm = [1,0,2]>(x) }")
attribute("perm out of range", "agraph (float[2,3] x) => (float[3,2] y) { y = Transpose<perm = [1,900000000]>(x) }")
for name, given in {
    "pads of 2^63-1": "pads = [9223372036854775807,9223372036854775807,1,1]", "negative pads": "pads = [-9,-9,-9,-9]",
    "pads of half the length": "pads = [1,1]", "strides 0": "strides = [0,0]", "strides negative": "strides = [-1,-1]",
    "dilations 0": "dilations = [0,0]", "dilations of 2^60": "dilations = [1152921504606846976,1]",
    "kernel 0": "kernel_shape = [0,0]", "kernel that is not the weight's": "kernel_shape = [5,5]",
    "kernel of another rank": "kernel_shape = [3,3,3,3,3,3]", "group 0": "group = 0", "group negative": "group = -1",
    "group that does not divide": "group = 3", "auto_pad unknown": 'auto_pad = "SAMEISH"',
    "auto_pad and pads": 'auto_pad = "SAME_UPPER", pads = [1,1,1,1]',
}.items():
    case(f"attribute: Conv with {name}")(lambda folder, given=given: conv(given))
case("attribute: Conv on rank 2")(lambda folder: (lambda m: (dims(2, 5)(m), m)[1])(conv("group = 1")))


def fed(name, source, **inputs):
    """ONNX text whose extra inputs become int64 initializers."""
    @case(f"input: {name}")
    def _(folder):
        m = text(source)
        for key, values in inputs.items():
            m.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(values, np.int64), key))
        return m


fed("Reshape to [-1,-1]", "agraph (float[2,3] x) => (float[a,b] y) { y = Reshape(x, s) }", s=[-1, -1])
fed("Reshape to [-7]", "agraph (float[2,3] x) => (float[a] y) { y = Reshape(x, s) }", s=[-7])
fed("Reshape to another count", "agraph (float[2,3] x) => (float[a] y) { y = Reshape(x, s) }", s=[5])
fed("Reshape to 2^32 x 2^32 x 6", "agraph (float[2,3] x) => (float[a,b,c] y) { y = Reshape(x, s) }", s=[1 << 32, 1 << 32, 6])
fed("Slice with step 0", "agraph (float[4] x) => (float[a] y) { y = Slice(x, b, e, ax, st) }", b=[0], e=[4], ax=[0], st=[0])
fed("Slice with extreme bounds", "agraph (float[4] x) => (float[a] y) { y = Slice(x, b, e, ax, st) }",
    b=[-(1 << 63)], e=[(1 << 63) - 1], ax=[0], st=[-(1 << 63)])
simple("Split into more parts than there are elements", "agraph (float[1,4] x) => (float[1,4] y, float[1,4] z) { y, z = Split<axis=0, num_outputs=3>(x) }")
simple("a greatest of no rows and many columns", "agraph (float[0,8388608] x, int64[1] a) => (float[8388608] y) <int64[1] a = {0}> { y = ReduceMax<keepdims=0>(x, a) }")
fed("Split into negative parts", "agraph (float[4] x) => (float[a] y, float[b] z) { y, z = Split<axis=0>(x, s) }", s=[-4, 8])
fed("Split of another sum", "agraph (float[4] x) => (float[a] y, float[b] z) { y, z = Split<axis=0>(x, s) }", s=[3, 3])
fed("Gather far outside", "agraph (float[4] x) => (float[1] y) { y = Gather(x, i) }", i=[1 << 40])
fed("Gather of a constant, far outside", "agraph (float[4] x) => (float[4] y) { c = Gather(k, i) f = Cast<to=1>(c) y = Add(x, f) }",
    k=[1, 2, 3], i=[-(1 << 40)])
fed("Pad by 2^60", "agraph (float[4] x) => (float[a] y) { y = Pad(x, p) }", p=[1 << 60, 1 << 60])
fed("Pad below zero", "agraph (float[4] x) => (float[a] y) { y = Pad(x, p) }", p=[-3, -3])
# Lists that are too long for shape inference to follow their values, of operands without axes.
fed("Pad of a scalar with 600 pads", "agraph (float x) => (float y) { y = Pad(x, p) }", p=[1] * 600)
fed("Slice of a scalar with 300 starts", "agraph (float x) => (float y) { y = Slice(x, b, e) }", b=[0] * 300, e=[1] * 300)
fed("Tile of a scalar by 300", "agraph (float x) => (float y) { y = Tile(x, s) }", s=[1] * 300)
fed("Squeeze of a scalar along 300 axes", "agraph (float x) => (float y) { y = Squeeze(x, a) }", a=[0] * 300)
fed("Expand to 2^60", "agraph (float[1] x) => (float[a] y) { y = Expand(x, s) }", s=[1 << 60])
fed("Expand to more than the address space", "agraph (float[1] x) => (float[a] y) { y = Expand(x, s) }", s=[1 << 30])
fed("Expand to a negative size", "agraph (float[1] x) => (float[a] y) { y = Expand(x, s) }", s=[-4])
fed("Tile by 2^60", "agraph (float[2] x) => (float[a] y) { y = Tile(x, s) }", s=[1 << 60])
fed("Unsqueeze the same axis twice", "agraph (float[2] x) => (float[1,1,2] y) { y = Unsqueeze(x, a) }", a=[0, 0])
fed("Squeeze an axis of size 2", "agraph (float[2] x) => (float y) { y = Squeeze(x, a) }", a=[0])
fed("ReduceSum over axis 9", "agraph (float[2] x) => (float y) { y = ReduceSum(x, a) }", a=[9])

fed("Resize to a negative size", "agraph (float[1,1,4,4] x) => (float[a,b,c,d] y) { y = Resize(x, , , s) }", s=[-1, 1, 1, 0])
fed("OneHot of a negative depth", "agraph (int64[2] x) => (int64[a,b] y) { y = OneHot(x, d, v) }", d=-5, v=[0, 1])
fed("TopK of a negative k", "agraph (float[4] x) => (float[a] y, int64[a] i) { y, i = TopK(x, k) }", k=[-2])
fed("a slice backwards of nothing", "agraph (float[4] x) => (float[a] y) { s = Slice(e, b, b, z, b) y = Reshape(x, s) }", e=np.zeros(0), b=[-1], z=[0])
simple("input: random values for a complex input", "agraph (complex64[2] x) => (complex64[2] y) { y = Identity(x) }")
for _ratio, _mask in itertools.product(("", "r"), ("", "t", "one")):
    simple(f"output: Dropout's mask, ratio {_ratio or 'left out'}, training_mode {_mask or 'left out'}", f"""
           agraph (float[2,3] x, bool t, float r) => (float[2,3] y, bool[2,3] m) <bool one = {{1}}> {{ y, m = Dropout(x, {_ratio}, {_mask}) }}""".replace(", )", ")").replace(", , )", ")"))

# --- bombs ---------------------------------------------------------------------------------------------
fed("bomb: ConstantOfShape of 2^40", "agraph (float[1] x) => (float[a] y) { c = ConstantOfShape(s) y = Add(x, c) }", s=[1 << 40])
fed("bomb: ConstantOfShape of 2^40, folded", "agraph (float[1] x) => (float[1] y) { c = ConstantOfShape(s) r = ReduceSum<keepdims=0>(c) y = Add(x, r) }", s=[1 << 40])
fed("bomb: Range of 2^60", "agraph (float[1] x) => (float[a] y) { r = Range(b, e, d) f = Cast<to=1>(r) y = Add(x, f) }", b=0, e=1 << 60, d=1)
fed("bomb: Range with step 0", "agraph (float[1] x) => (float[a] y) { r = Range(b, e, d) f = Cast<to=1>(r) y = Add(x, f) }", b=0, e=4, d=0)
fed("bomb: Expand of a constant to 2^40", "agraph (float[1] x) => (float[1] y) { e = Expand(k, s) f = Cast<to=1>(e) r = ReduceSum<keepdims=0>(f) y = Add(x, r) }", k=[3], s=[1 << 20, 1 << 20])
fed("bomb: division of integers by 0", "agraph (int64[2] x) => (int64[2] y) { q = Div(k, z) y = Add(x, q) }", k=[1, -(1 << 63)], z=[0, -1])
fed("bomb: the least integer by -1", "agraph (int64[1] x) => (int64[1] y) { q = Div(k, z) m = Mod(k, z) s = Add(q, m) y = Add(x, s) }", k=[-(1 << 63)], z=[-1])
fed("bomb: shift by 200", "agraph (uint64[1] x) => (uint64[1] y) { c = Cast<to=13>(k) s = BitShift<direction=\"LEFT\">(c, c) y = Add(x, s) }", k=[200])


@case("bomb: ConstantOfShape, doubled forty times")
def _(folder):
    m = text("agraph (float[1] x) => (float[a] y) { c0 = ConstantOfShape(s) }")
    m.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray([1024], np.int64), "s"))
    for k in range(40):
        m.graph.node.append(helper.make_node("Concat", [f"c{k}", f"c{k}"], [f"c{k + 1}"], axis=0))
    m.graph.node.append(helper.make_node("Add", ["x", "c40"], ["y"]))
    return m


def functions(name, bodies, first, says=None):
    """bodies: {name: [operators called in a row]}."""
    @case(f"bomb: {name}", says)
    def _(folder):
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
        made = []
        for function, calls in bodies.items():
            names = ["x", *(f"t{k}" for k in range(len(calls) - 1)), "y"]
            nodes = [helper.make_node(op, [a], [b], domain="local" if op in bodies else "")
                     for op, a, b in zip(calls, names, names[1:])]
            made.append(helper.make_function("local", function, ["x"], ["y"], nodes, opsets))
        value = [helper.make_tensor_value_info(n, 1, [2]) for n in "xy"]
        graph = helper.make_graph([helper.make_node(first, ["x"], ["y"], domain="local", name="call")], "g", value[:1], value[1:])
        return helper.make_model(graph, functions=made, opset_imports=opsets, ir_version=10)


functions("functions that double 31 times", {"F0": ["Relu"] * 2, **{f"F{k}": [f"F{k - 1}"] * 2 for k in range(1, 31)}}, "F30", "nodes")
functions("functions that double, the last unused", {"F0": ["Relu"] * 2, **{f"F{k}": [f"F{k - 1}"] * 2 for k in range(1, 31)}}, "F0")
functions("a chain of 101 calls", {"F0": ["Relu"], **{f"F{k}": [f"F{k - 1}"] for k in range(1, 102)}}, "F101")
functions("a function that calls itself", {"F": ["F"]}, "F")
functions("functions that call each other", {"F": ["G"], "G": ["H"], "H": ["F"]}, "F")


def nested(depth, hidden=None):
    """If bodies in each other; hidden: a function called in the innermost."""
    value = helper.make_tensor_value_info
    op, domain = (hidden, "local") if hidden else ("Relu", "")
    body = helper.make_graph([helper.make_node(op, ["x"], ["o0"], domain=domain)], "b0", [], [value("o0", 1, [2])])
    for k in range(1, depth + 1):
        other = helper.make_graph([helper.make_node("Abs", ["x"], [f"e{k}"])], f"e{k}", [], [value(f"e{k}", 1, [2])])
        node = helper.make_node("If", ["c"], [f"o{k}"], then_branch=body, else_branch=other)
        body = helper.make_graph([node], f"b{k}", [], [value(f"o{k}", 1, [2])])
    graph = helper.make_graph([*body.node], "g", [value("x", 1, [2]), value("c", TensorProto.BOOL, [])], [value(f"o{depth}", 1, [2])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("local", 1)], ir_version=10)


case("bomb: If in If, 20 deep")(lambda folder: nested(20))
case("bomb: If in If, 31 deep")(lambda folder: nested(31))


@case("bomb: If in If, 1,000 deep")
def _(folder):
    # By hand, because the library that would write it recurses, too: length-delimited fields around each other.
    def field(number, content):
        length, out = len(content), bytearray([number << 3 | 2])
        while length >= 128:
            out.append(length & 127 | 128)
            length >>= 7
        return bytes(out) + bytes([length]) + content
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["o"])], "b", [], [helper.make_tensor_value_info("o", 1, [2])]).SerializeToString()
    for _ in range(1000):
        branch = field(1, b"then_branch") + field(6, graph) + b"\xa0\x01\x05"
        node = field(1, b"c") + field(2, b"o") + field(4, b"If") + field(5, branch)
        graph = field(1, node) + field(2, b"b")
    return b"\x08\x0a" + field(7, graph) + field(8, b"\x0a\x00\x10\x12")


@case("bomb: a function hidden in a body that calls itself")
def _(folder):
    m = nested(2, "F")
    inner = nested(1, "F").graph.node[0]
    inner.output[0] = "y"
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    m.functions.append(helper.make_function("local", "F", ["x"], ["y"], [
        helper.make_node("Constant", [], ["c"], value=helper.make_tensor("c", TensorProto.BOOL, [], [True])), inner], opsets))
    return m


@case("bomb: a Loop without end")
def _(folder):
    value = helper.make_tensor_value_info
    body = helper.make_graph([helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Relu", ["a"], ["b"])], "body",
                             [value("i", 7, []), value("go", 9, []), value("a", 1, [2])], [value("on", 9, []), value("b", 1, [2])])
    m = text("agraph (float[2] x) => (float[2] y) { y = Relu(x) }")
    m.graph.node[0].CopyFrom(helper.make_node("Loop", ["n", "t", "x"], ["y"], body=body))
    constant(m, "n", TensorProto.INT64, [], [(1 << 63) - 1])
    constant(m, "t", TensorProto.BOOL, [], [True])
    return m


# --- external data -------------------------------------------------------------------------------------
def external(name, **entries):
    """An initializer whose data lies outside; entries: the key-value pairs; `prepare` makes files first."""
    prepare = entries.pop("prepare", None)

    @case(f"external data: {name}")
    def _(folder):
        inside = folder / "model"
        inside.mkdir()
        (inside / "good.bin").write_bytes(np.ones(6, np.float32).tobytes())
        (folder / "secret.bin").write_bytes(np.ones(6, np.float32).tobytes())
        if prepare:
            prepare(folder, inside)
        m = text(ONE)
        constant(m, "k", TensorProto.FLOAT, [2, 3], [1.0] * 6)
        m.graph.node[0].op_type = "Add"
        m.graph.node[0].input.append("k")
        t = m.graph.initializer[0]
        t.ClearField("float_data")
        t.data_location = TensorProto.EXTERNAL
        for key, value in entries.items():
            for item in value if isinstance(value, list) else [value]:
                entry = t.external_data.add()
                entry.key, entry.value = key, str(item).replace("$FOLDER", str(folder))
        path = inside / "model.onnx"
        path.write_bytes(m.SerializeToString())
        return path


def link(source, target, directory=False):
    return lambda folder, inside: os.symlink(str(source).replace("$FOLDER", str(folder)), inside / target, directory)


external("a plain file (must work)", location="good.bin")
external("offset and length (must work)", location="good.bin", offset=0, length=24)
external("in a folder beside (must work)", location="sub/good.bin",
         prepare=lambda f, i: ((i / "sub").mkdir(), (i / "sub" / "good.bin").write_bytes(bytes(24))))


@case("external data: the Hugging Face hub's cache (must work)")
def _(folder):
    # snapshots/REVISION holds links into blobs, both of the model and of its data.
    blobs, snapshot = folder / "blobs", folder / "snapshots" / "0123abcd"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    m = text(ONE)
    constant(m, "k", TensorProto.FLOAT, [2, 3], [1.0] * 6)
    m.graph.node[0].op_type = "Add"
    m.graph.node[0].input.append("k")
    t = m.graph.initializer[0]
    t.ClearField("float_data")
    t.data_location = TensorProto.EXTERNAL
    t.external_data.add(key="location", value="model.onnx.data")
    (blobs / "aaaa").write_bytes(m.SerializeToString())
    (blobs / "bbbb").write_bytes(bytes(24))
    (snapshot / "model.onnx").symlink_to("../../blobs/aaaa")
    (snapshot / "model.onnx.data").symlink_to("../../blobs/bbbb")
    return snapshot / "model.onnx"


external("no location")
external("an empty location", location="")
external("a file that is missing", location="nothing.bin")
external("a folder", location=".")
external("above", location="../secret.bin")
external("above, by a detour", location="sub/../../secret.bin", prepare=lambda f, i: (i / "sub").mkdir())
external("an absolute path", location="$FOLDER/secret.bin")
external("/proc/self/mem", location="/proc/self/mem")
external("/dev/zero", location="/dev/zero")
external("a link to an absolute path outside", location="out.bin", prepare=link("/etc/hostname", "out.bin"))
external("a link to /dev/zero", location="zero.bin", prepare=link("/dev/zero", "zero.bin"))
external("a link to itself", location="loop.bin", prepare=link("loop.bin", "loop.bin"))
external("through a linked folder", location="dir/hostname", prepare=link("/etc", "dir", True))
external("a FIFO", location="pipe.bin", prepare=lambda f, i: os.mkfifo(i / "pipe.bin"))
external("offset behind the end", location="good.bin", offset=1000)
external("offset and length that wrap", location="good.bin", offset=(1 << 63) - 4, length=24)
external("a negative offset", location="good.bin", offset=-4)
external("an offset that is no number", location="good.bin", offset="four")
external("an offset of 30 digits", location="good.bin", offset="9" * 30)
external("a length of 2^60", location="good.bin", length=1 << 60)
external("a length that is not the tensor's", location="good.bin", length=20)
external("a file that is too short", location="short.bin", prepare=lambda f, i: (i / "short.bin").write_bytes(bytes(20)))
external("two locations", location=["good.bin", "other.bin"])
external("an unknown key", location="good.bin", colour="red")
external("memory of the process", location="*/_ORT_MEM_ADDR_/*", offset=4096, length=24)
external("a NUL in the path", location="good.bin\0.txt")
external("a path of 1 MB", location="a" * (1 << 20))
external("escapes in the path", location="\x1b[31mred\x1b[0m\n.bin")
external("backslashes", location="..\\secret.bin")


# --- strings -------------------------------------------------------------------------------------------
for index, nasty in enumerate(NASTY):
    @case(f"strings: {index} as names")
    def _(folder, nasty=nasty):
        m = text("agraph (float[2,3] x) => (float[2,3] y) { t = Relu(x) y = Sigmoid(t) }")
        m.graph.node[0].name = nasty
        m.graph.node[0].output[0] = m.graph.node[1].input[0] = "t" + nasty
        m.graph.node[0].doc_string = m.graph.name = m.producer_name = nasty
        return m

    @case(f"strings: {index} in errors")
    def _(folder, nasty=nasty):
        m = text(ONE)
        m.graph.node[0].op_type = nasty
        m.graph.node[0].name = nasty
        return m

    @case(f"strings: {index} as a value that is missing")
    def _(folder, nasty=nasty):
        m = text(ONE)
        m.graph.node[0].input[0] = "v" + nasty
        return m


@case("strings: no UTF-8")
def _(folder):
    data = text(ONE, lambda m: setattr(m.graph.node[0], "name", "QQQQ")).SerializeToString()
    return data.replace(b"QQQQ", b"\xff\xfe\xc0\x80")


@case("strings: a NUL in a name")
def _(folder):
    return text(ONE, lambda m: setattr(m.graph.node[0], "name", "a\0b"))


@case("strings: metadata of 5 MB")
def _(folder):
    return text(ONE, lambda m: m.metadata_props.add(key="k" * 1000, value="v" * 5000000))


# --- size: nothing may take time or memory in the square of it -----------------------------------------------
SIZE = 100_000
SECONDS = {"ladder": 10, "constants": 8, "rails": 6}  # of computing; the others: 4
# Linear, but each costs much (a library's call to prepare, a kernel to compile, a part to place): 5 s are fewer of them.
FEWER = {"windows": 25_000, "diamonds": 5_000, "parts": 25_000, "constants": 50_000}
for graph, make in graphs.GRAPHS.items():
    case(f"size: {graph}")(lambda folder, make=make, size=FEWER.get(graph, SIZE): make(size))
case("size: a hundred parts")(lambda folder: graphs.parts(100))  # more than one kernel copies


# --- running them --------------------------------------------------------------------------------------
def table():
    """[(name or glob, how explain ends, how run ends)]: "ok", a kind of error, or "-": not run. The first that fits holds."""
    lines = (pathlib.Path(__file__).with_name("corpus.tsv")).read_text().splitlines()
    return [tuple(line.split("\t")[:3]) for line in lines if line and not line.startswith("#")]


def exit_codes():
    """The exit code of each kind of error."""
    text = (harness.ROOT / "engine/base/diagnostics.def").read_text()
    names = {"usage": harness.USAGE, "unsupported": harness.UNSUPPORTED, "limit": harness.LIMIT, "environment": harness.ENVIRONMENT}
    return {"ok": OK, **{code: names[exit] for code, exit in re.findall(r"FERRULE_DIAGNOSTIC\((\w+), (\w+)", text) if exit in names}}


def slowness():
    """How many seconds this processor, with what runs beside it, takes for a second's work of the one that the limits are meant for: at
    least 1, at most 3. That one, an Intel Xeon with AVX-512, explains 100,000 nodes in a chain while it does this 2.1 times."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    table = {}
    for k in range(1_000_000):
        table[str(k * 7919 % 1_000_003)] = k
    sorted(table)
    return min(3.0, max(1.0, (resource.getrusage(resource.RUSAGE_SELF).ru_utime - before) / 0.58))


def ended(command, wanted, seconds, says=None):
    """Runs the program: None, or why it did not end as wanted."""
    def computed():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime
    before = computed()
    done = harness.run(*command, timeout=60, memory=ADDRESS_SPACE, env={"NO_COLOR": "1"})
    spent = computed() - before
    patterns = [] if wanted == "ok" else [rf"error\[{wanted}\]", *([says] if says else [])]
    problem = harness.refusal(done, EXIT_CODES[wanted], *patterns, seconds=60)
    if problem is None and spent > seconds and spent > seconds * (slow := slowness()):
        problem = f"computed for {spent:.1f} s, {seconds} are allowed, {slow:.2f} times as much here; {done.tail()}"
    if problem is None and len(done.err) > 20000:
        problem = f"the message has {len(done.err)} characters"
    return problem


EXIT_CODES = exit_codes()


def try_case(report, keep, entry, expected):
    name, maker, says = entry
    folder = (keep or report.folder) / re.sub(r"[^A-Za-z0-9]+", "_", name)
    folder.mkdir()
    made = maker(folder)
    if isinstance(made, ModelProto):
        made = made.SerializeToString()
    path = made
    if isinstance(made, bytes):
        path = folder / "model.onnx"
        path.write_bytes(made)
    seconds = SECONDS.get(name.removeprefix("size: "), 4) if name.startswith("size: ") else 2
    explained, ran = expected
    report.check(name, ended(["explain", path], explained, seconds, says))
    if ran != "-":
        report.check(f"run {name}", ended(["run", path, "--seed", "1", "--threads", "2"], ran, seconds))


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("parts", nargs="*")
    options.add_argument("--keep", type=pathlib.Path)
    options = options.parse_args()
    if options.keep:
        options.keep.mkdir(parents=True)
    report = harness.Report()
    names = [c[0] for c in CASES]
    assert len(names) == len(set(names)), "two cases of one name"
    if report.ready:
        rows, used = table(), set()
        sizes = [c for c in CASES if c[0].startswith("size: ")]
        later = sizes if options.parts else harness.by_turns(report, sizes, 5)
        later = [c for c in sizes if c not in later]
        for entry in CASES:
            row = next((r for r in rows if r[0] == entry[0] or fnmatch.fnmatchcase(entry[0], r[0])), None)
            used.add(row)
            if row is None:
                report.check(entry[0], "corpus.tsv does not say how it must end")
            elif entry not in later and (not options.parts or any(p in entry[0] for p in options.parts)):
                try_case(report, options.keep, entry, row[1:])
        report.check("corpus.tsv", ", ".join(f"no case {r[0]}" for r in rows if r not in used) or None)
        most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        report.check("memory", None if most < 1024 else f"one of the runs had {most:.0f} MB resident")
        print(f"{len(CASES)} models, at most {most:.0f} MB resident")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
