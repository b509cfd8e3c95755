"""What the cases share: models, inputs, and the table of cases. A case gets the module, onnxruntime or ferrule.ort, and returns what is compared."""
import warnings

import numpy as np
import onnx
from onnx import numpy_helper, parser

CASES = {}
def case(function):
    CASES[function.__name__.replace("_", " ")] = function
    return function


def model(text, opset=17):
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}').SerializeToString()


ADD = model('g (float[N, 4] x) => (float[N, 4] y, float s) <float[4] b = {1, -2, 3, -4}> { a = Add(x, b)  y = Relu(a)  s = ReduceSum<keepdims = 0>(y) }')
TYPES = model("""g (float16[2] h, bool[2] t, int64[2] i, uint8[2] u, double[2] d, int8[2] c) => (float16[2] h1, bool[2] t1, int64[2] i1, uint8[2] u1, double[2] d1, int8[2] c1)
  { h1 = Add(h, h)  t1 = Not(t)  i1 = Add(i, i)  u1 = Add(u, u)  d1 = Add(d, d)  c1 = Add(c, c) }""")
SCALAR = model("g (float x, int64 n) => (float y, int64 m) { y = Neg(x)  m = Neg(n) }")
STRINGS = model("g (string[N] x) => (string[N] y) { y = Identity(x) }")
SAME = model("g (float[2] x) => (float[2] y) { y = Identity(x) }")
WEIGHT = model("g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {10, 20}> { y = Add(x, w) }")
SIZES = model("g (float[N, C, 3] x, float r) => (float[N, C, 3] y) { z = Relu(x)  y = Add(z, r) }")
X = np.linspace(-5, 5, 12, dtype=np.float32).reshape(3, 4)


def described():
    m = onnx.load_from_string(ADD)
    m.producer_name, m.producer_version, m.domain, m.model_version, m.doc_string, m.graph.name = "maker", "2.1", "org.example", 7, "of a model", "net"
    m.graph.doc_string = "of a graph"
    onnx.helper.set_model_props(m, {"labels": "a,b", "k": ""})
    return m.SerializeToString()


def outside(folder):
    """A model with its weights in another file."""
    m = onnx.load_from_string(ADD)
    (b,) = (t for t in m.graph.initializer if t.name == "b") if m.graph.initializer else (None,)
    del m.graph.initializer[:]
    m.graph.initializer.append(numpy_helper.from_array(np.arange(4, dtype=np.float32), "b"))
    onnx.save(m, folder / "outside.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert b is not None
    return str(folder / "outside.onnx")


def session(ort, data=ADD, **named):
    named.setdefault("providers", ["CPUExecutionProvider"])
    return ort.InferenceSession(data, **named)


def args(all_):
    return [(a.name, a.type, list(a.shape), str(a)) for a in all_]


def warned(call):
    """What it returns, and whether it warns."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        return call(), len(seen) > 0
