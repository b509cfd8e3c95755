"""Convolution, Relu and MaxPool three times: plain; a quantization pair in front of the pool, as an exporter that
quantizes every tensor places it; the same pair behind the pool."""
import pathlib
import sys

import numpy as np

from nets import node, save, weight

out = pathlib.Path(sys.argv[1])
WEIGHTS = {"W": weight(32, 16, 3, 3), "B": weight(32)}
SCALE = {"scale": np.float32(0.05), "zero": np.int8(0)}
FRONT = [node("Conv", "x W B", "c", "Conv_0", pads=[1, 1, 1, 1]), node("Relu", "c", "r", "Relu_1")]


def pool(x, y):
    return node("MaxPool", x, y, "MaxPool_2", kernel_shape=[2, 2], strides=[2, 2])


def pair(x, y):
    return [node("QuantizeLinear", f"{x} scale zero", "q", "Quantize_3"), node("DequantizeLinear", "q scale zero", y, "Dequantize_4")]


X, Y = {"x": [1, 16, 160, 160]}, {"y": [1, 32, 80, 80]}
save(out / "plain.onnx", FRONT + [pool("r", "y")], WEIGHTS, X, Y)
save(out / "between.onnx", FRONT + pair("r", "d") + [pool("d", "y")], {**WEIGHTS, **SCALE}, X, Y)
save(out / "behind.onnx", FRONT + [pool("r", "p")] + pair("p", "y"), {**WEIGHTS, **SCALE}, X, Y)
