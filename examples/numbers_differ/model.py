"""Three layers; the second one's results lie around a million, beyond the largest number of f16 (65504)."""
import pathlib
import sys

from nets import node, save, weight

save(pathlib.Path(sys.argv[1]) / "model.onnx",
     [node("Conv", "x V", "a", "Conv_0", pads=[1, 1, 1, 1]),
      node("Relu", "a", "b", "Relu_1"),
      node("Conv", "b W", "c", "Conv_2"),
      node("Relu", "c", "d", "Relu_3"),
      node("Conv", "d U", "y", "Conv_4")],
     {"V": weight(16, 8, 3, 3), "W": weight(16, 16, 1, 1, scale=3e5), "U": weight(8, 16, 1, 1, scale=1e-6)},
     {"x": [1, 8, 32, 32]}, {"y": [1, 8, 32, 32]})
