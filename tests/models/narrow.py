"""Rewrites an f32 model as one that stores f16 or bf16: initializers, constants, inputs, outputs, casts.

usage: narrow.py MODEL OUT f16|bf16
"""
import sys

import ml_dtypes
import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, numpy_helper

TYPES = {"f16": (TensorProto.FLOAT16, np.float16), "bf16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16)}


def narrow(model, to):
    """Changes the ModelProto in place."""
    code, dtype = TYPES[to]

    def tensor(t):
        if t.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(t).astype(dtype)
            t.CopyFrom(onnx.helper.make_tensor(t.name, code, array.shape, array.tobytes(), raw=True))

    graph = model.graph
    for stored in graph.initializer:
        tensor(stored)
    for value in [*graph.input, *graph.output, *graph.value_info]:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = code
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                tensor(attribute.t)
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = code
    return model


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[3] not in TYPES:
        sys.exit(__doc__)
    onnx.save(narrow(onnx.load(sys.argv[1]), sys.argv[3]), sys.argv[2])
