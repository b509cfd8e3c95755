"""A residual block's end: Conv_0 on the shortcut, Conv_3 on the main path, both of x; Add and Relu behind."""
import pathlib
import sys

from nets import node, save, weight

SHAPE = [1, 64, 56, 56]
save(pathlib.Path(sys.argv[1]) / "model.onnx",
     [node("Conv", "x V", "s", "Conv_0"),
      node("Conv", "x W B", "c", "Conv_3"),
      node("Add", "c s", "t", "Add_4"),
      node("Relu", "t", "y", "Relu_5")],
     {"V": weight(64, 64, 1, 1), "W": weight(64, 64, 1, 1), "B": weight(64)}, {"x": SHAPE}, {"y": SHAPE})
