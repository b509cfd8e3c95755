"""Graphs of any size, as ONNX files: `GRAPHS[name](nodes)` is a model's bytes. They need no package.

  chain      pointwise operators, each reading the one before
  ladder     two rails; every rung an Add and a Mul of both
  fan-out    one value that all nodes read, each with a graph output of its own
  branches   the same, every reader followed by a second node
  fan-in     one value that all nodes read, summed by one node
  diamonds   two branches of pointwise operators that meet in an Add, 100 nodes each, one after the other
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


def node(operator, inputs, output):
    return field(1, b"".join(field(1, name) for name in inputs) + field(2, output) + field(3, "n_" + output) + field(4, operator))


def port(name):
    dims = b"".join(field(1, field(1, size)) for size in (1, 8))
    return field(1, name) + field(2, field(1, field(1, 1) + field(2, dims)))  # f32[1,8]


def model(nodes, inputs, outputs):
    graph = b"".join(nodes) + field(2, "scale")
    graph += b"".join(field(11, port(name)) for name in inputs) + b"".join(field(12, port(name)) for name in outputs)
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


GRAPHS = {"chain": chain, "ladder": ladder, "fan-out": fan_out, "branches": branches, "fan-in": fan_in, "diamonds": diamonds}
