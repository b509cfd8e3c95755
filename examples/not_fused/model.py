"""Two convolutions, each with a Relu behind it. What the first one computes is also an output of the model: somebody wanted
to look at it once. `mended.onnx` is the same without that output."""
import pathlib
import sys

from nets import node, save, weight

out = pathlib.Path(sys.argv[1])
NODES = [node("Conv", "x V", "c", "Conv_0", pads=[1, 1, 1, 1]),
         node("Relu", "c", "r", "Relu_1"),
         node("Conv", "r W", "d", "Conv_2", pads=[1, 1, 1, 1]),
         node("Relu", "d", "y", "Relu_3")]
WEIGHTS = {"V": weight(16, 8, 3, 3), "W": weight(8, 16, 3, 3)}
X, Y = {"x": [1, 8, 64, 64]}, {"y": [1, 8, 64, 64]}
save(out / "model.onnx", NODES, WEIGHTS, X, {**Y, "c": [1, 16, 64, 64]})
save(out / "mended.onnx", NODES, WEIGHTS, X, Y)
