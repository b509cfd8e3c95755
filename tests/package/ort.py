"""ferrule.ort as the programs of others use onnxruntime: ort.py MODEL (model.txt of this folder)."""
import sys
import threading
import warnings

import numpy as np
from onnx import parser

import ferrule.ort

sys.modules["onnxruntime"] = ferrule.ort

import onnxruntime as ort  # noqa: E402  pylint: disable=wrong-import-position
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument, NoSuchFile  # noqa: E402  pylint: disable=wrong-import-position
from onnxruntime.capi import _pybind_state  # noqa: E402  pylint: disable=wrong-import-position

MODEL = sys.argv[1]
BIAS = np.array([1, -2, 3, -4], np.float32)
x = np.linspace(-5, 5, 12, dtype=np.float32).reshape(3, 4)
want = np.maximum(x + BIAS, 0)


def raises(kind, says, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except kind as e:
        assert says in str(e), str(e)
        return
    raise AssertionError(f"no {kind.__name__}")


assert _pybind_state.SessionOptions is ort.SessionOptions
assert _pybind_state.InvalidArgument is InvalidArgument is ort.InvalidArgument
assert "CPUExecutionProvider" in ort.get_available_providers() and ort.get_device() in ("CPU", "GPU")
ort.set_default_logger_severity(3)
options = ort.SessionOptions()
options.intra_op_num_threads = 1
options.inter_op_num_threads = 1
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
options.log_severity_level = 3
options.enable_cpu_mem_arena = False
options.add_session_config_entry("session.intra_op.allow_spinning", "0")
assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    options.no_such_option = 1
assert "no_such_option" in str(seen[0].message)

session = ort.InferenceSession(MODEL, sess_options=options, providers=["CPUExecutionProvider"])
assert session.get_providers() == ["CPUExecutionProvider"]
(i,), (y, s) = session.get_inputs(), session.get_outputs()
assert (i.name, i.type, i.shape) == ("x", "tensor(float)", ["N", 4]) and (y.name, s.name) == ("y", "s") and s.shape == []
meta = session.get_modelmeta()
assert meta.custom_metadata_map == {"labels": "a,b"} and meta.graph_name == "bias_relu"

for names in (None, []):
    got = session.run(names, {"x": x})
    assert isinstance(got, list) and len(got) == 2 and np.array_equal(got[0], want)
got = session.run(["s", "y"], {i.name: x}, ort.RunOptions())
assert got[0].shape == () and np.array_equal(got[1], want)
assert np.array_equal(session.run(["y"], {"x": x.tolist()})[0], want)

raises(ValueError, "Required inputs (['x']) are missing", session.run, None, {})
raises(InvalidArgument, "Invalid input name: z", session.run, None, {"x": x, "z": x})
raises(InvalidArgument, "(tensor(double)) , expected: (tensor(float))", session.run, None, {"x": x.astype(np.float64)})
raises(InvalidArgument, "INVALID_ARGUMENT", session.run, None, {"x": x[0]})
raises(InvalidArgument, "Invalid output name", session.run, ["nothing"], {"x": x})
raises(NoSuchFile, "NO_SUCHFILE", ort.InferenceSession, "nowhere.onnx")
raises(ort.InvalidProtobuf, "INVALID_PROTOBUF", ort.InferenceSession, b"no model")

value = ort.OrtValue.ortvalue_from_numpy(x)
assert value.shape() == [3, 4] and value.data_type() == "tensor(float)" and value.device_name() == "cpu"
assert np.array_equal(session.run_with_ort_values(["y"], {"x": value})[0].numpy(), want)
binding = session.io_binding()
binding.bind_cpu_input("x", x)
binding.bind_output("y")
session.run_with_iobinding(binding)
assert np.array_equal(binding.copy_outputs_to_cpu()[0], want)
into = np.zeros((3, 4), np.float32)
binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
binding.bind_output("y", "cpu", 0, np.float32, into.shape, into.ctypes.data)
binding.bind_output("s")
session.run_with_iobinding(binding)
assert np.array_equal(into, want) and [v.shape() for v in binding.get_outputs()] == [[3, 4], []]
binding.clear_binding_outputs()
kept = ort.OrtValue.ortvalue_from_shape_and_type([3, 4], np.float32)
binding.bind_ortvalue_output("y", kept)
session.run_with_iobinding(binding)
assert np.array_equal(kept.numpy(), want)

done = threading.Event()
answers = []
session.run_async(["y"], {"x": x}, lambda results, data, error: (answers.append((results, data, error)), done.set()), "mine")
assert done.wait(60) and np.array_equal(answers[0][0][0], want) and answers[0][1:] == ("mine", "")

options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
with open(MODEL, "rb") as f:
    plain = ort.InferenceSession(f.read(), options, providers=[("CPUExecutionProvider", {"arena": "no"})])
assert np.array_equal(plain.run(None, {"x": x})[0], want)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    ort.InferenceSession(MODEL, providers=["TensorrtExecutionProvider", "CPUExecutionProvider"])
assert any("TensorrtExecutionProvider" in str(w.message) for w in seen)

# Sizes that only a run knows: the backend for processors cannot have them, the session runs all the same.
dynamic = ort.InferenceSession(parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (int64[1, M] y) { y = NonZero(x) }')
                               .SerializeToString(), providers=["CPUExecutionProvider"])
assert dynamic.run(None, {"x": np.array([0, 3, 0, 4], np.float32)})[0].tolist() == [[1, 3]]
print("fine")
