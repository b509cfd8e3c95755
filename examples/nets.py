"""Small networks for the recipes in this folder: nodes and weights in, a model file out."""
import pathlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

RANDOM = np.random.default_rng(0)


def weight(*shape, scale=None):
    """Values of a size that keeps results in range."""
    scale = scale or 1 / np.sqrt(np.prod(shape[1:]) if len(shape) > 1 else 1)
    return (RANDOM.standard_normal(shape) * scale).astype(np.float32)


def node(op, inputs, output, name, **attributes):
    return helper.make_node(op, inputs.split(), output.split(), name=name, **attributes)


def save(path, nodes, weights, inputs, outputs):
    """inputs, outputs: name -> shape."""
    def value(name, shape):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    graph = helper.make_graph(
        nodes, pathlib.Path(path).stem, [value(*i) for i in inputs.items()], [value(*o) for o in outputs.items()],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in weights.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
