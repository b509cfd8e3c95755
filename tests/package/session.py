"""ferrule.Session: session.py MODEL (model.txt of this folder)."""
import ctypes
import gc
import itertools
import os
import pickle
import resource
import sys
import threading
import time

import numpy as np
import onnx

import ferrule

MODEL = sys.argv[1]
BIAS = np.array([1, -2, 3, -4], np.float32)


def expected(x):
    return np.maximum(x + BIAS, 0)


def raises(code, says, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except ferrule.Error as e:
        assert e.code == code and says in str(e), (e.code, str(e))
        return e
    raise AssertionError(f"no error {code}")


def resident():
    with open("/proc/self/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * resource.getpagesize()


assert ferrule.__version__ == "0.1.0"
session = ferrule.Session(MODEL, backend="cpu", threads=1)
(x_port,), (y_port, s_port) = session.inputs, session.outputs
assert (x_port.name, x_port.type, x_port.shape, x_port.dtype, x_port.optional) == ("x", "float", ("N", 4), np.float32, False)
assert s_port.shape == ()

x = np.linspace(-5, 5, 12, dtype=np.float32).reshape(3, 4)
out = session.run({"x": x})
assert list(out) == ["y", "s"] and np.array_equal(out["y"], expected(x)) and out["s"].shape == ()
assert list(session.run({"x": x}, ["s"])) == ["s"]
# Neither order nor alignment of the caller's matters; results stay when all else goes.
for given in (np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2], x.astype(">f4"),
              np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(3, 4)):
    assert np.array_equal(session.run({"x": given})["y"], expected(x))
y = session({"x": x})["y"]
copy = y.copy()
other = ferrule.Session(MODEL, backend="cpu")
del out, other
gc.collect()
for _ in range(10):
    session.run({"x": x * 0})
assert np.array_equal(y, copy)
assert np.array_equal(np.from_dlpack(session.run({"x": x})["y"]), expected(x))
assert session.run({"x": np.empty((0, 4), np.float32)})["y"].shape == (0, 4)

into = np.full((3, 4), 7, np.float32)
session.run_into({"x": x}, {"y": into})
assert np.array_equal(into, expected(x))
raises("usage", "y", session.run_into, {"x": x}, {"y": np.empty((3, 5), np.float32)})
try:
    session.run_into({"x": x}, {"y": np.empty((4, 3), np.float32).T})
    raise AssertionError
except ValueError:
    pass

raises("unknown_input", "z", session.run, {"z": x})
raises("missing_input", "x", session.run, {})
raises("input_mismatch", "f64", session.run, {"x": x.astype(np.float64)})
raises("usage", "nothing", session.run, {"x": x}, ["nothing"])
raises("file_not_found", "nowhere", ferrule.Session, "nowhere.onnx")
raises("not_onnx", "", ferrule.Session, b"no model")
raises("rule_unknown", "no_such_rule", ferrule.Session, MODEL, enable=["no_such_rule"])
assert pickle.loads(pickle.dumps(raises("missing_input", "x", session.run, {}))).code == "missing_input"

with open(MODEL, "rb") as f:
    of_bytes = ferrule.Session(f.read(), backend="cpu")
assert np.array_equal(of_bytes.run({"x": x})["y"], expected(x))
for s in (session, of_bytes):
    again = pickle.loads(pickle.dumps(s))
    assert np.array_equal(again.run({"x": x})["y"], expected(x))

lines = []
logged = ferrule.Session(MODEL, backend="cpu", log=lambda level, text: lines.append((level, text)), log_level="verbose")
logged.run({"x": x})
assert any(level == "verbose" for level, _ in lines), lines

plan = session.plan({"x": (3, 4)})
assert plan["layers"][0]["rule"] == "rows" and "layers for" in str(plan) and "<table>" in plan._repr_html_()
assert session.journal({"x": (3, 4)})["steps"]
assert session.device({"x": (3, 4)})["backend"] == "cpu"
assert session.metadata["metadata"] == {"labels": "a,b"}
for s in (session, of_bytes):
    explained = s.explain({"x": (3, 4)})
    assert "kernels" in str(explained) and "Relu_1" in explained._repr_html_(), str(explained)
assert "Add_0" in str(session.why("Add_0", "Relu_1"))
assert isinstance(session.missed(), dict)
verified = session.verify({"x": (3, 4)})
assert "y" in str(verified) and verified["ok"], verified
raises("", "no_such_node", session.why, "no_such_node")

# OpenMP may be the application's, too: how many threads it has is what the application has said.
openmp = [line.split(maxsplit=5)[5].strip() for line in open("/proc/self/maps", encoding="utf-8") if "libgomp" in line]
if openmp:  # there is none in a build under ThreadSanitizer
    openmp = ctypes.CDLL(openmp[0])
    openmp.omp_set_num_threads(5)
    ferrule.Session(MODEL, backend="cpu", threads=3).run({"x": x})
    assert openmp.omp_get_max_threads() == 5, openmp.omp_get_max_threads()

# Any number of threads.
wrong = []
seconds = float(os.environ.get("FERRULE_SECONDS", "10"))
until = time.monotonic() + seconds
runs = []


def work(seed):
    random = np.random.default_rng(seed)
    for k in itertools.count():
        if time.monotonic() > until:
            runs.append(k)
            return
        v = random.standard_normal((1 + (seed + k) % 3, 4), np.float32)
        if not np.array_equal(session.run({"x": v})["y"], expected(v)):
            wrong.append((seed, k))


threads = [threading.Thread(target=work, args=(k,)) for k in range(16)]
[t.start() for t in threads]
[t.join() for t in threads]
assert not wrong, wrong[:10]
assert len(runs) == 16 and min(runs) > 0, runs
print(f"16 threads, {seconds:.0f} s: {sum(runs)} runs")

# Sessions come and go: after the first hundred what is in use does not grow; the allocator may keep some more of what is free.
class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]


def in_use():
    info = mallinfo2()
    return info.uordblks + info.hblkhd


mallinfo2 = ctypes.CDLL("libc.so.6").mallinfo2
mallinfo2.restype = Mallinfo
sessions = int(os.environ.get("FERRULE_SESSIONS", "200"))
for k in range(sessions):
    ferrule.Session(MODEL, backend="cpu", threads=1).run({"x": x})
    if k == 99:
        gc.collect()
        before, used = resident(), in_use()
gc.collect()
grown, more = resident() - before, in_use() - used
print(f"{sessions - 100} sessions: {more} bytes more in use, {grown} more resident")
assert more < 64 << 10 and grown < 8 << 20


# What is no tensor: an optional may be left out, a sequence is not passed.
def parsed(text):
    return ferrule.Session(onnx.parser.parse_model('<ir_version: 9, opset_import: ["": 18]> ' + text).SerializeToString(), backend="cpu")


some, index = np.array([1, -2, 3, -4], np.float32), np.int64(0)
out = parsed("g (float[4] x) => (seq(float[N]) s, float[4] y) { y = Relu (x)\n s = SplitToSequence (y) }")
assert [p.type for p in out.outputs] == ["sequence", "float"]
raises("no_tensor", "output s is of type sequence", out.run, {"x": some})
raises("no_tensor", "name the outputs that are tensors", out.run_into, {"x": some}, {"s": some.copy()})
assert np.array_equal(out.run({"x": some}, ["y"])["y"], np.maximum(some, 0))
into = parsed("g (seq(float[N]) s, int64 i) => (float[M] y) { y = SequenceAt (s, i) }")
for given in ({"i": index}, {"i": index, "s": some}):
    raises("no_tensor", "input s is of type sequence", into.run, given)
may = parsed("g (optional(float[N]) o) => (bool there) { there = OptionalHasElement (o) }")
assert may.inputs[0].optional and not may.run({})["there"] and may.run({"o": some})["there"]
raises("no_tensor", "output p is of type optional", parsed("g (optional(float[N]) o) => (optional(float[N]) p) { p = Identity (o) }").run, {})

session.cancel()
raises("cancelled", "", session.run, {"x": x})
print("fine", os.path.basename(MODEL))
