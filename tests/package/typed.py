"""What mypy --strict says of a program. A line that ends with `# no: TEXT` is wrong, and mypy says so; all others are right."""
import numpy as np
from numpy.typing import NDArray

import ferrule
import ferrule.ort as ort
from ferrule.ort.capi.onnxruntime_pybind11_state import InvalidArgument


def own(x: NDArray[np.float32]) -> NDArray[np.float32]:
    session = ferrule.Session("model.onnx", threads=2, disable=["conv_*"], log=lambda level, text: print(level, text))
    port: ferrule.Port = session.inputs[0]
    print(port.name, port.shape, session.metadata["labels"], session.explain({"x": (1, 3)}).text)
    try:
        y = session.run({port.name: x}, outputs=["y"])["y"]
    except ferrule.Error as e:
        print(e.code, e.hint)
        raise
    session.run_into({"x": [1.0, 2.0]}, {"y": y})
    session.run([x])  # no: incompatible type
    session.explane()  # no: has no attribute
    ferrule.Session("model.onnx", thread=2)  # no: Unexpected keyword argument
    return y


def as_onnxruntime(x: NDArray[np.float32]) -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.graph_optimization_level = ort.ORT_ENABLE_ALL
    session = ort.InferenceSession("model.onnx", options, providers=["CPUExecutionProvider", ("CUDAExecutionProvider", {"device_id": 0})])
    (y,) = session.run(None, {session.get_inputs()[0].name: x})
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(x))
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    print(y, binding.copy_outputs_to_cpu()[0].shape)
    try:
        session.run(["z"], {"x": x})
    except InvalidArgument as e:
        print(e)
    options.intra_op_num_threads = "1"  # no: Incompatible types in assignment
    session.run({"x": x})  # no: Missing positional argument
    ort.InferenceSession(3)  # no: incompatible type
