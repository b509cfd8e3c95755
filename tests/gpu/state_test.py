"""Sessions that run more than once on the stub libraries of a GPU: a library that does in a capture what none allows, runs that fail or are
cancelled and the ones behind them, many shapes. Last line: "N passed, N failed".

Each case is a Python program on the wheel's own package, in a process of its own, because the stubs take their orders from the environment.
"""
import os
import pathlib
import subprocess
import sys

import onnx

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE)]

import harness  # noqa: E402
import stubs  # noqa: E402

HEAD = """
import os, sys
import numpy as np
import ferrule
notes = []
def session(**more):
    return ferrule.Session(sys.argv[1], backend="cuda", log=lambda level, text: notes.append(text), **more)
def right(s, want, **inputs):
    got = s.run(inputs)
    for name, value in want.items():
        assert np.allclose(got[name], value, 1e-4, 1e-5), (name, got[name], value)
x = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
"""

# A product (cuBLASLt), a convolution (cuDNN), and what is generated.
BOTH = "(float[3,4] x) => (float[3,5] y, float[1,2,3,4] z) <float[4,5] w = {%s}, float[2,1,1,1] k = {0.5, -1.5}, int64[4] s = {1,1,3,4}> " \
       "{ p = MatMul(x, w) y = Tanh(p) i = Reshape(x, s) c = Conv(i, k) z = Relu(c) }" % ", ".join(str((n % 5 - 2) / 4) for n in range(20))
BOTH_RUNS = """
w = np.array([(n % 5 - 2) / 4 for n in range(20)], np.float32).reshape(4, 5)
want = dict(y=np.tanh(x @ w), z=np.maximum(x[None, None] * np.array([0.5, -1.5], np.float32).reshape(1, 2, 1, 1), 0))
s = session()
for _ in range(4): right(s, want, x=x)
"""

# Equal layers: what replaces the first is loaded when the second is captured.
TWINS = "(float[3,4] a, float[3,4] b, float[1,1,4,5] i, float[1,1,4,5] j) => (float[3,5] p, float[3,5] q, float[1,2,4,5] c, float[1,2,4,5] d) " \
        "<float[4,5] w = {%s}, float[2,1,1,1] k = {0.5, -1.5}> { p = MatMul(a, w) q = MatMul(b, w) c = Conv(i, k) d = Conv(j, k) }" % ", ".join(str((n % 5 - 2) / 4) for n in range(20))
TWINS_RUNS = """
w, k = np.array([(n % 5 - 2) / 4 for n in range(20)], np.float32).reshape(4, 5), np.array([0.5, -1.5], np.float32).reshape(1, 2, 1, 1)
i = np.linspace(-1, 1, 20, dtype=np.float32).reshape(1, 1, 4, 5)
s = session()
for _ in range(4): right(s, dict(p=x @ w, q=(2 * x) @ w, c=i * k, d=2 * i * k), a=x, b=2 * x, i=i, j=2 * i)
print(sum("a generated kernel runs it" in n for n in notes), "replaced,", sum("no CUDA graph" in n for n in notes), "not captured, of", len(notes))
"""

# Two graphs: the host computes what is between them.
TWO = "(float[3,4] x) => (float[3,4] y) <int64 axis = {1}> { t = Tanh(x) c = CumSum(t, axis) y = Sigmoid(c) }"
TWO_RUNS = """
s = session()
for _ in range(4): right(s, dict(y=1 / (1 + np.exp(-np.cumsum(np.tanh(x), 1)))), x=x)
notes = [n for n in notes if "CumSum" not in n]
"""


def program(report, what, text, model, wanted=None, log=None, **orders):
    """Runs it; `wanted`: a part of what it must print."""
    path = report.folder / f"{abs(hash(model))}.onnx"
    if not path.exists():
        harness.model(path, "g " + model)
    script = report.folder / "program.py"
    script.write_text(HEAD + text)
    if log:
        log.unlink(missing_ok=True)
        orders["log"] = log
    env = os.environ | stubs.environment(report, **orders)
    env |= {"PYTHONPATH": str(harness.ROOT / "runtime" / "python"), "FERRULE_LIBRARY": str(harness.ROOT / "build" / "libferrule.so.0")}
    done = subprocess.run([sys.executable, script, path], capture_output=True, text=True, timeout=300, env=env)
    problem = done.stderr[-1500:] if done.returncode or "stub: wrong use" in done.stderr else None
    if not problem and wanted is not None and wanted not in done.stdout:
        problem = f"printed {done.stdout!r}, wanted {wanted!r}"
    report.check(what, problem)


def captures(report):
    """Whatever goes wrong in a capture, the plan is launched kernel by kernel from then on, and that is said once."""
    log = report.folder / "capture.log"

    def case(what, text=BOTH_RUNS, model=BOTH, captures=1, **orders):
        program(report, what, text + "print(sum('no CUDA graph' in n for n in notes), 'of', len(notes), 'notes')", model, "1 of 1 notes", log=log, **orders)
        lines = log.read_text().splitlines()
        report.check(f"{what}: no graph is launched", next((line for line in lines if line.startswith("graph launch")), None))
        times = lines.count("a stream captures")
        report.check(f"{what}: captured once", None if times <= captures else f"{times} times")

    program(report, "a capture that goes well", BOTH_RUNS + "print(len(notes), 'notes')", BOTH, "0 notes", log=log)
    report.check("a capture that goes well: graphs are launched", None if "graph launch" in log.read_text() else log.read_text())
    case("a library that allocates while it is captured", library="allocates")
    case("a library that waits while it is captured", library="waits")
    case("a product that is refused while it is captured", fail="cublasLtMatmul:2=15")
    case("a capture that cannot begin", fail="cuStreamBeginCapture_v2:1=1")
    case("a capture that cannot end", fail="cuStreamEndCapture:1=1")
    case("a graph that is too large", fail="cuGraphInstantiateWithFlags:1=2")
    case("the second of two captures cannot end: neither is launched", TWO_RUNS, TWO, captures=2, fail="cuStreamEndCapture:2=1")
    # The first of two equal layers fails in the first run, the second in the capture, and once more where it is launched plainly.
    for library, call, code in (("cuBLASLt", "cublasLtMatmul", 13), ("cuDNN", "cudnnBackendExecute", 3000)):
        for failing, wanted in (((1,), "1 replaced, 0 not captured, of 1"), ((1, 3), "1 replaced, 1 not captured, of 2"), ((1, 3, 4), "2 replaced, 1 not captured, of 3")):
            program(report, f"{library} fails in calls {failing}: nothing is replaced while it is captured", TWINS_RUNS, TWINS, wanted,
                    fail=",".join(f"{call}:{n}={code}" for n in failing))


GATHER = "(float[3,4] x, int64[2] i) => (float[2,4] y) { y = Gather<axis=0>(x, i) }"
OPEN = "(float[N,4] x) => (float[N,4] y) { y = Softmax<axis=-1>(x) }"


def failures(report):
    """A run that fails leaves nothing behind for the next."""
    program(report, "an index out of range in a run that fails otherwise", """
s = session()
try:
    s.run(dict(x=x, i=np.array([0, 7])))
    raise SystemExit("the order was not followed")
except ferrule.Error as e:
    assert "cuMemcpyDtoHAsync" in str(e), e
right(s, dict(y=x[[2, 1]]), x=x, i=np.array([2, 1]))
try:
    s.run(dict(x=x, i=np.array([0, 7])))
    raise SystemExit("an index out of range is not said")
except ferrule.Error as e:
    assert "index 7" in str(e), e
right(s, dict(y=x[[2, 1]]), x=x, i=np.array([2, 1]))
""", GATHER, fail="cuMemcpyDtoHAsync_v2:1=1")
    program(report, "--require-device does not compute on the host", """
try:
    session(require_device=True).run(dict(x=x))
    raise SystemExit("the host computed it")
except ferrule.Error as e:
    assert "it is interpreted" in str(e) and "CumSum_0" in str(e), e
""", "(float[3,4] x) => (float[3,4] y) <int64 axis = {1}> { c = CumSum(x, axis) y = Sigmoid(c) }")


# Streams, graphs, pinned memory and handles of both libraries. The stream that is nobody's is one more.
HELD = "(float[N,1,3,4] x) => (float[N,1,3,3] y, float[N,2,3,4] z) <float[2,1,1,1] k = {0.5, -1.5}, float[4,3] w = {%s}> " \
       "{ p = MatMul(x, w) y = Tanh(p) c = Conv(x, k) z = Relu(c) }" % ", ".join(map(str, range(12)))
LIMIT = 64  # engine/base/limits.h: plans


def many_shapes(report):
    """Plans go with their memory, and the device's memory suffices for one at a time."""
    text = """
def softmax(n):
    x = np.linspace(-1, 1, n * 4, dtype=np.float32).reshape(n, 4)
    e = np.exp(x)
    right(s, dict(y=e / e.sum(-1, keepdims=True)), x=x)
s = session()
"""
    program(report, "more shapes than plans are kept", text + "for n in list(range(1, 200)) + [1, 100]: softmax(n)", OPEN, memory=200 * 256 * 4)
    held = """
k, w = np.array([0.5, -1.5], np.float32).reshape(1, 2, 1, 1), np.arange(12, dtype=np.float32).reshape(4, 3)
s = session()
for n in range(1, 70):
    x = np.linspace(-1, 1, n * 12, dtype=np.float32).reshape(n, 1, 3, 4)
    for _ in range(2): right(s, dict(y=np.tanh(x @ w), z=np.maximum(x * k, 0)), x=x)
"""
    if (stubs.STUB / "libcudnn.so.9").exists():
        program(report, "what plans hold goes with them", held, HELD, alive=LIMIT + 1)
    # Its tables are in its source. Nothing is computed.
    program(report, "kernels go with their plans", "s = session()\nfor n in range(1, 70): s.run(dict(x=np.zeros((1, 1, n, 4), np.float32)))",
            "(float[1,1,N,4] x) => (float[1,1,M,8] y) <float[4] s = {1,1,2,2}> { y = Resize<mode=\"linear\">(x, , s) }", alive=LIMIT + 1, null=1)
    program(report, "shapes that do not fit beside each other", text + "for n in (2000, 3000, 2000, 3500): softmax(n)", OPEN, memory=150000)


# What libraries run, each with a tail that they take inside, in every form that the plain kernels must know.
LIBRARY = "(float[2,4,7,6] x, float[3,2,5,4] m, float[3,1,4,6] n, float[6] v, float[4,5] g) => (float[2,6,4,3] y, float[2,4,13,12] z, float[3,2,5,6] p, float[3,2,5] q, float[5,3] r) " \
          "<float[6,2,3,3] k = {%s}, float[4,2,3,3] d = {%s}, float[4,3] w = {%s}, float[3] b = {0.5, -0.25, 0.125}> " \
          "{ c = Conv<group=2, strides=[2,2], pads=[1,1,1,1]>(x, k) y = Relu(c) " \
          "e = ConvTranspose<group=2, strides=[2,2], pads=[1,1,1,1], output_padding=[0,1]>(x, d) z = Relu(e) " \
          "o = MatMul(m, n) p = Relu(o) q = MatMul(p, v) f = Gemm<transA=1, alpha=0.5, beta=2.0>(g, w, b) r = Relu(f) }" % tuple(
              ", ".join(str((n * 7 % 11 - 5) / 8) for n in range(count)) for count in (108, 72, 12))
LIBRARY_RUNS = """
rng = np.random.default_rng(3)
inputs = {n: rng.standard_normal(d).astype(np.float32) for n, d in dict(x=(2,4,7,6), m=(3,2,5,4), n=(3,1,4,6), v=(6,), g=(4,5)).items()}
want = ferrule.Session(sys.argv[1], backend="reference").run(inputs)
s = session(require_device=True)
for _ in range(3): right(s, want, **inputs)
print(sum("tail" in n for n in notes), "tails apart,", sum("generated kernel runs it" in n for n in notes), "generated")
"""


def refusals(report):
    """What a library refuses stays on the device: without its tail, then as a plain generated kernel."""
    program(report, "nothing is refused", LIBRARY_RUNS, LIBRARY, "0 tails apart, 0 generated")
    program(report, "cuDNN has no engine for tails", LIBRARY_RUNS, LIBRARY, "1 tails apart, 0 generated", engines="single")
    program(report, "cuDNN has no engine at all", LIBRARY_RUNS, LIBRARY, "0 tails apart, 2 generated", engines="none")
    program(report, "cuBLASLt fails when it is asked", LIBRARY_RUNS, LIBRARY, "1 tails apart, 0 generated", fail="cublasLtMatmulAlgoGetHeuristic:1=14")
    program(report, "cuBLASLt refuses a tail", LIBRARY_RUNS, LIBRARY, "1 tails apart, 0 generated", fail="cublasLtMatmulAlgoGetHeuristic:1=15")
    refused = ",".join(f"cublasLtMatmulAlgoGetHeuristic:{n}=15" for n in range(1, 10))
    program(report, "cuBLASLt refuses all", LIBRARY_RUNS, LIBRARY, "0 tails apart, 3 generated", fail=refused)
    for cc in (75, 80, 86, 89, 90, 100, 120):
        program(report, f"no library takes anything, sm_{cc}", LIBRARY_RUNS, LIBRARY, "0 tails apart, 5 generated", engines="none", fail=refused, cc=cc)
    program(report, "calls fail in the first run", LIBRARY_RUNS, LIBRARY, "0 tails apart, 2 generated", fail="cublasLtMatmul:1=13,cudnnBackendExecute:1=4000")


def versions(report):
    """A library for a newer CUDA than the driver's is left for an older one."""
    older = report.folder / "older"
    older.mkdir()
    for name in ("libnvrtc.so", "libcublasLt.so"):
        (older / f"{name}.12").write_bytes((stubs.STUB / f"{name}.13").read_bytes())
    path = f"{stubs.STUB}:{older}"
    for driver, version in ((13000, "13.0"), (12040, "12.4")):
        done = harness.run("doctor", env=stubs.environment(report, driver=driver) | {"LD_LIBRARY_PATH": path})
        problem = None if f"cuBLASLt: version {version}" in done.out and "driver for NVRTC's kernels" not in done.out else done.out
        report.check(f"a driver for CUDA {version}", problem)
    done = harness.run("doctor", env=stubs.environment(report, driver=12040, cudart=13000) | {"LD_LIBRARY_PATH": path})
    report.check("cuDNN for a newer CUDA than the driver's", None if "cuDNN for the driver's CUDA 12.4 cannot be loaded: libcudnn.so.9 is for CUDA 13.0; pip install nvidia-cudnn-cu12" in done.out
                 and "cuBLASLt: version 12.4" in done.out else done.out)
    done = harness.run("doctor", env=stubs.environment(report, driver=12040))
    report.check("no cuBLASLt for the driver: both versions are named", None if "cuBLASLt for the driver's CUDA 12.4 (libcublasLt.so.12) cannot be loaded" in done.out else done.out)


def surroundings(report):
    """What else is in the process: contexts of other devices, a device or a driver that has gone before the session."""
    program(report, "the caller's context is current again", """
import ctypes
driver, mine, now = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(4096), ctypes.c_void_p()
def check(when):
    driver.cuCtxGetCurrent(ctypes.byref(now))
    assert now.value == mine.value, (when, now.value)
driver.cuCtxSetCurrent(mine)
""" + BOTH_RUNS.replace("s = session()", "s = session()\ncheck('made')") + """
check("run")
try: s.run(dict(x=x[:2]))
except ferrule.Error: pass
check("failed")
del s
check("gone")
""", BOTH)
    program(report, "libraries are left alone when the device is lost", BOTH_RUNS.replace("range(4)", "range(0)") + """
try:
    s.run(dict(x=x))
    raise SystemExit("the order was not followed")
except ferrule.Error as e:
    assert "stopped working" in str(e), e
del s
""", BOTH, fail="kernel:1=719")
    program(report, "libraries are left alone behind the driver's end", BOTH_RUNS + """
import ctypes
ctypes.CDLL("libcuda.so.1").ferrule_stub_fail_next(b"cuCtxGetCurrent", 4)
del s
""", BOTH)


def four_bits(report):
    """Half bytes: moved by the host, copied as bytes, read out layer by layer."""
    path = report.folder / "i4.onnx"
    onnx.save(harness.onnx_text("g (float[2,3,4,5] x) => (float[2,4,5,3] y, float[2,3,20] z, int4[2,3,4,5] q) <float s = {0.25}, int4 o = {1}, int64[3] d = {2,3,20}> "
                                "{ q = QuantizeLinear(x, s, o) t = Transpose<perm = [0,2,3,1]>(q) y = DequantizeLinear(t, s, o) u = Reshape(q, d) z = DequantizeLinear(u, s, o) }", opset=21), path)
    for how in ((), ("--layers",)):
        done = stubs.run(report, "verify", path, "--seed", "1", "--backend", "cuda", "--oracle", *how)
        report.check(f"four bits {' '.join(how)}", stubs.wrong_use(done) or (None if done.code == harness.OK and "DIFFERS" not in done.out else done.tail()))


def main():
    report = harness.Report()
    if not report.ready or not stubs.there(report):
        return report.finish()
    stubs.KEPT.mkdir(exist_ok=True)
    if (stubs.STUB / "libcudnn.so.9").exists():
        captures(report)
        refusals(report)
        versions(report)
        surroundings(report)
    else:
        report.skip("captures", "built without cuDNN's headers: no stub of it is there")
    failures(report)
    four_bits(report)
    many_shapes(report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
