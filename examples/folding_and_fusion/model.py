"""Four pieces of networks as exporters write them: a convolution, a depthwise one, each with BatchNormalization and Relu;
a linear layer with its weights transposed by a node; an LSTM cell written in primitives, its biases added by a node."""
import pathlib
import sys

import numpy as np

from nets import RANDOM, node, save, weight

out = pathlib.Path(sys.argv[1])
NORM = "gamma beta mean var"


def norm(channels):
    return {"gamma": weight(channels) + 1, "beta": weight(channels), "mean": weight(channels),
            "var": (0.5 + RANDOM.random(channels)).astype(np.float32)}


def convolution(name, channels, size, group):
    shape = [1, channels, size, size]
    save(out / f"{name}.onnx",
         [node("Conv", "x W", "c", "Conv_0", pads=[1, 1, 1, 1], group=group),
          node("BatchNormalization", f"c {NORM}", "n", "Norm_1"), node("Relu", "n", "y", "Relu_2")],
         {"W": weight(channels, channels // group, 3, 3), **norm(channels)}, {"x": shape}, {"y": shape})


def linear(rows, features):
    save(out / "linear.onnx",
         [node("Transpose", "W", "T", "Transpose_0", perm=[1, 0]), node("MatMul", "x T", "m", "MatMul_1"), node("Relu", "m", "y", "Relu_2")],
         {"W": weight(features, features)}, {"x": [rows, features]}, {"y": [rows, features]})


def lstm_cell(batch, hidden):
    gates = [node("Transpose", "W", "WT", "Transpose_0", perm=[1, 0]), node("Transpose", "R", "RT", "Transpose_1", perm=[1, 0]),
             node("Add", "b_x b_h", "b", "Add_2"),
             node("MatMul", "x WT", "from_x", "MatMul_3"), node("MatMul", "h RT", "from_h", "MatMul_4"),
             node("Add", "from_x from_h", "both", "Add_5"), node("Add", "both b", "all", "Add_6"),
             node("Split", "all sizes", "i f g o", "Split_7", axis=1)]
    cell = [node("Sigmoid", "i", "i1", "Sigmoid_8"), node("Sigmoid", "f", "f1", "Sigmoid_9"), node("Tanh", "g", "g1", "Tanh_10"),
            node("Sigmoid", "o", "o1", "Sigmoid_11"), node("Mul", "f1 c", "kept", "Mul_12"), node("Mul", "i1 g1", "new", "Mul_13"),
            node("Add", "kept new", "c_next", "Add_14"), node("Tanh", "c_next", "t", "Tanh_15"), node("Mul", "o1 t", "h_next", "Mul_16")]
    state = [batch, hidden]
    save(out / "lstm_cell.onnx", gates + cell,
         {"W": weight(4 * hidden, hidden), "R": weight(4 * hidden, hidden), "b_x": weight(4 * hidden), "b_h": weight(4 * hidden),
          "sizes": np.array([hidden] * 4, np.int64)},
         {"x": state, "h": state, "c": state}, {"h_next": state, "c_next": state})


convolution("conv", 16, 112, 1)
convolution("depthwise", 32, 112, 32)
linear(64, 256)
lstm_cell(16, 128)
