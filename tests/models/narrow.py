"""Rewrites an f32 model as one that stores f16, bf16 or f64: initializers, constants, inputs, outputs, casts.

usage: narrow.py MODEL OUT f16|bf16|f64
"""
import sys

import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

TYPES = {"f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16, "f64": TensorProto.DOUBLE}


def narrow(model, to):
    """Changes the ModelProto in place."""
    code = TYPES[to]

    def tensor(t):
        if t.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(t).astype(helper.tensor_dtype_to_np_dtype(code))
            t.CopyFrom(helper.make_tensor(t.name, code, array.shape, array.tobytes(), raw=True))

    graph = model.graph
    # Scales and regions of a Resize are f32 whatever is resized.
    kept = {name for node in graph.node if node.op_type in ("Resize", "Upsample") for name in node.input[1:]}
    for stored in graph.initializer:
        if stored.name not in kept:
            tensor(stored)
    for value in [*graph.input, *graph.output, *graph.value_info]:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT and value.name not in kept:
            value.type.tensor_type.elem_type = code
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR and node.output[0] not in kept:
                tensor(attribute.t)
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = code
    return model


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[3] not in TYPES:
        sys.exit(__doc__)
    onnx.save(narrow(onnx.load(sys.argv[1]), sys.argv[3]), sys.argv[2])
