"""A convolution with its Relu, a MaxPool, and a product at the end."""
import pathlib
import sys

from nets import node, save, weight

save(pathlib.Path(sys.argv[1]) / "model.onnx",
     [node("Conv", "x V B", "c", "Conv_0", pads=[1, 1, 1, 1]),
      node("Relu", "c", "r", "Relu_1"),
      node("MaxPool", "r", "p", "MaxPool_2", kernel_shape=[2, 2], strides=[2, 2]),
      node("Conv", "p W C", "d", "Conv_3", pads=[1, 1, 1, 1]),
      node("Sigmoid", "d", "s", "Sigmoid_4"),
      node("Mul", "d s", "m", "Mul_5"),
      node("GlobalAveragePool", "m", "g", "GlobalAveragePool_6"),
      node("Flatten", "g", "f", "Flatten_7"),
      node("Gemm", "f U D", "y", "Gemm_8")],
     {"V": weight(16, 8, 3, 3), "B": weight(16), "W": weight(32, 16, 3, 3), "C": weight(32), "U": weight(32, 10), "D": weight(10)},
     {"x": [1, 8, 112, 112]}, {"y": [1, 10]})
