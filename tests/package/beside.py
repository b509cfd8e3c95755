"""ferrule in one process with other runtimes, imported before them and after: beside.py MODEL. Which are there is said; each gives the right
result, and how many threads ferrule takes can be set."""
import importlib.util
import itertools
import subprocess
import sys

RUN = r'''
import importlib, os, sys
import numpy as np
model, order = sys.argv[1], sys.argv[2:]
modules = {name: importlib.import_module(name) for name in order}
import ferrule
x = np.random.default_rng(0).standard_normal((2, 3, 48, 192)).astype(np.float32)

def threads():
    return len(os.listdir("/proc/self/task"))

def by_ferrule(**options):
    (y,) = ferrule.Session(model, backend="cpu", **options).run({"x": x}).values()
    return y

want = by_ferrule(no_fusion=True, threads=1)
before = threads()
results = {"ferrule, 1 thread": by_ferrule(threads=1)}
assert threads() == before, (before, threads())
if "torch" in modules:
    torch = modules["torch"]
    torch.set_num_threads(2)
    a = torch.randn(300, 300, dtype=torch.float64)
    assert torch.allclose(a @ torch.linalg.inv(a), torch.eye(300, dtype=torch.float64), atol=1e-6)
    before = threads()
results["ferrule, 3 threads"] = by_ferrule(threads=3)
# torch's OpenMP is ours, too, and has a thread already.
assert threads() - before in ((1, 2) if "torch" in modules else (2,)), (before, threads())
if "onnxruntime" in modules:
    ort = modules["onnxruntime"]
    o = ort.SessionOptions()
    o.intra_op_num_threads = 2
    results["onnxruntime"] = ort.InferenceSession(model, o, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
if "openvino" in modules:
    compiled = modules["openvino"].compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": 2, "INFERENCE_PRECISION_HINT": "f32"})
    results["openvino"] = compiled(x)[0]
if "torch" in modules:
    assert torch.get_num_threads() == 2
results["ferrule, once more"] = by_ferrule(threads=2)
for name, y in results.items():
    np.testing.assert_allclose(y, want, rtol=1e-3, atol=1e-5, err_msg=name)
'''
model = sys.argv[1]
there = [name for name in ("onnxruntime", "openvino", "torch") if importlib.util.find_spec(name)]
passed = 0
for others in [[name] for name in there] + ([there] if len(there) > 1 else []):
    for order in (["ferrule", *others], [*others, "ferrule"]):
        done = subprocess.run([sys.executable, "-c", RUN, model, *order], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{order}: status {done.returncode}\n{done.stderr[-2000:]}")
        passed += 1
assert passed == 8, f"only {there} are there"
print(f"{passed} orders")
