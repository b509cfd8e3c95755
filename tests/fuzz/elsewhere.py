"""ONNX Runtime for tests/fuzz: lines "model TAB inputs.npz TAB outputs.npz" in, for each "ok" or what ONNX Runtime says."""
import re
import sys

import numpy as np
import onnxruntime

options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
options.log_severity_level = 4
options.intra_op_num_threads = options.inter_op_num_threads = 1


def run(model, inputs, outputs):
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    with np.load(inputs) as arrays:
        given = {i.name: arrays[i.name] for i in session.get_inputs()}
    names = [o.name for o in session.get_outputs()]
    with np.errstate(all="ignore"):
        np.savez(outputs, **dict(zip(names, session.run(names, given))))


def said(text):
    """One line, without what is another one each time."""
    text = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : |Load model from \S+ failed:|\S*\.onnx\S*", "", text.strip().splitlines()[0] if text.strip() else "")
    return re.sub(r"\s+", " ", text).strip()[:300]


for line in sys.stdin:
    try:
        run(*line.rstrip("\n").split("\t"))
        print("ok", flush=True)
    except Exception as reason:  # pybind's have no common base
        print(said(str(reason)) or type(reason).__name__, flush=True)
