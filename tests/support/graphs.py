"""Graphs of any size, as ONNX files: `GRAPHS[name](nodes)` is a model's bytes. They need no package.

  chain      pointwise operators, each reading the one before
  ladder     two rails; every rung an Add and a Mul of both
  fan-out    one value that all nodes read, each with a graph output of its own
  branches   the same, every reader followed by a second node
  fan-in     one value that all nodes read, summed by one node
  diamonds   two branches of pointwise operators that meet in an Add, 100 nodes each, one after the other
  rails      as many inputs as nodes and outputs, one of each beside the others
  inputs     one node that reads nothing but graph inputs, each its own
  unused     inputs that nothing reads
  constants  nodes that add an initializer of their own to one value, each with an output
  sum        one node that sums initializers
  windows    convolutions of one value, each with weights and an output of its own
  pieces     one node with that many outputs, all of the graph's
  parts      a value taken apart, an operator on every part, and the results joined again
"""
import math
import struct

# ONNX text: a convolution with its norm and activation, one with an activation, and what is put behind them ("e" -> "y").
TWO_CONVS = """
agraph (float[1,2,8,8] x) => (float[1,2,8,8] y)
<float[2,2,1,1] W = {1.0, -2.0, 3.0, 0.5}, float[2,2,1,1] V = {0.5, 1.0, -1.0, 2.0}, float[2] g = {1.0, 2.0}, float[2] b = {0.0, 1.0},
 float[2] m = {0.1, 0.2}, float[2] v = {1.0, 0.5}> {
  [conv1] c = Conv (x, W)
  [norm1] n = BatchNormalization (c, g, b, m, v)
  [relu1] r = Relu (n)
  [conv2] d = Conv (r, V)
  [relu2] e = Relu (d)
  %s
}
"""
OPERATORS = ("Tanh", "Sigmoid", "Relu", "Abs", "Softplus", "Neg", "Sqrt")


# --- ONNX files, written field by field: a Python object a node would take longer than what is measured.

def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number, value):
    """A field of a protobuf message: text or bytes by their length, integers as they are."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def node(operator, inputs, *outputs, attributes=b""):
    return field(1, b"".join(field(1, name) for name in inputs) + b"".join(field(2, name) for name in outputs) + field(3, "n_" + outputs[0]) +
                 field(4, operator) + attributes)


def port(name, sizes=(1, 8)):
    dims = b"".join(field(1, field(1, size)) for size in sizes)
    return field(1, name) + field(2, field(1, field(1, 1) + field(2, dims)))  # f32


def constant(name, value, sizes=(1, 8)):
    dims = b"".join(field(1, size) for size in sizes)
    return field(5, dims + field(2, 1) + field(8, name) + field(9, struct.pack("<f", value) * math.prod(sizes)))


AXIS_0 = field(5, field(1, "axis") + field(3, 0) + field(20, 2))


def model(nodes, inputs, outputs, constants=(), sizes=(1, 8), results=None):
    graph = b"".join(nodes) + field(2, "scale") + b"".join(constants)
    graph += b"".join(field(11, port(name, sizes)) for name in inputs) + b"".join(field(12, port(name, results or sizes)) for name in outputs)
    return field(1, 8) + field(8, field(1, "") + field(2, 17)) + field(7, graph)


# --- graphs

def operator(index):
    return OPERATORS[index % len(OPERATORS)]


def branch(nodes, start, length):
    """`length` operators behind the value `start`; the last one's result."""
    value = start
    for _ in range(length):
        result = f"t{len(nodes)}"
        nodes.append(node(operator(len(nodes)), [value], result))
        value = result
    return value


def chain(count):
    nodes = []
    return model(nodes, ["x"], [branch(nodes, "x", count)])


def ladder(count):
    nodes, left, right = [], "x", "z"
    for rung in range(count // 2):
        nodes.append(node("Add", [left, right], f"a{rung}"))
        nodes.append(node("Mul", [left, right], f"b{rung}"))
        left, right = f"a{rung}", f"b{rung}"
    return model(nodes, ["x", "z"], [left, right])


def fan_out(count):
    names = [f"y{index}" for index in range(count)]
    return model([node(operator(index), ["x"], name) for index, name in enumerate(names)], ["x"], names)


def branches(count):
    names = [f"y{index}" for index in range(count // 2)]
    nodes = []
    for index, name in enumerate(names):
        nodes += [node(operator(index), ["x"], f"t{index}"), node(operator(index + 1), [f"t{index}"], name)]
    return model(nodes, ["x"], names)


def fan_in(count):
    names = [f"t{index}" for index in range(count - 1)]
    nodes = [node(operator(index), ["x"], name) for index, name in enumerate(names)]
    return model(nodes + [node("Sum", names, "y")], ["x"], ["y"])


def diamonds(count):
    nodes, value = [], "x"
    for _ in range(count // 100):
        left, right = branch(nodes, value, 50), branch(nodes, value, 49)
        value = f"t{len(nodes)}"
        nodes.append(node("Add", [left, right], value))
    return model(nodes, ["x"], [value])


def rails(count):
    names = [f"{index}" for index in range(count)]
    return model([node(operator(index), ["x" + name], "y" + name) for index, name in enumerate(names)], ["x" + n for n in names], ["y" + n for n in names])


def inputs(count):
    names = [f"x{index}" for index in range(count)]
    return model([node("Sum", names, "y")], names, ["y"])


def unused(count):
    return model([node("Relu", ["x0"], "y")], [f"x{index}" for index in range(count)], ["y"])


def constants(count):
    names = [f"{index}" for index in range(count)]
    return model([node("Add", ["x", "c" + name], "y" + name) for name in names], ["x"], ["y" + name for name in names],
                 [constant("c" + name, index / count) for index, name in enumerate(names)])


def sum_of_constants(count):
    names = [f"c{index}" for index in range(count)]
    return model([node("Sum", ["x"] + names, "y")], ["x"], ["y"], [constant(name, index / count) for index, name in enumerate(names)])


def windows(count):
    names = [f"{index}" for index in range(count)]
    return model([node("Conv", ["x", "c" + name], "y" + name) for name in names], ["x"], ["y" + name for name in names],
                 [constant("c" + name, index / count, (2, 2, 1, 1)) for index, name in enumerate(names)], (1, 2, 2, 2))


def pieces(count):
    names = [f"y{index}" for index in range(count)]
    return model([node("Split", ["x"], *names, attributes=AXIS_0)], ["x"], names, sizes=(count, 1), results=(1, 1))


def parts(count):
    names = [f"{index}" for index in range(count)]
    nodes = [node("Split", ["x"], *("x" + name for name in names), attributes=AXIS_0)]
    nodes += [node(operator(index), ["x" + name], "t" + name) for index, name in enumerate(names)]
    return model(nodes + [node("Concat", ["t" + name for name in names], "y", attributes=AXIS_0)], ["x"], ["y"], sizes=(count, 1))


GRAPHS = {"chain": chain, "ladder": ladder, "fan-out": fan_out, "branches": branches, "fan-in": fan_in, "diamonds": diamonds, "rails": rails,
          "inputs": inputs, "unused": unused, "constants": constants, "sum": sum_of_constants, "windows": windows, "pieces": pieces,
          "parts": parts}
