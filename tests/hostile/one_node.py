"""Models of one node for every operator of the onnx package, made to break whoever takes inputs, outputs and attributes for
granted: optional inputs left out or empty, all optional outputs wanted, too few and too many of both, rank 0 and sizes 0, other
element types, attributes left out or out of range, parameters that are constant or computed, every version of the operator.

Two sources: the operators' schemas, all versions of them, with inputs at random; and ONNX's own node tests, which are right,
with up to three things changed. build/test_hostile plans each for a CPU and a GPU and runs it on the CPU and in the
interpreter, many in a process; whatever ends a process, does not end or reports a bug of ours is a failure.

usage: one_node.py [--seed N] [--count N] [--keep DIR] [NAME-PART...]
  --count N    models of each source (two by default times the operators' versions: half a minute)
  --keep DIR   where the models that fail are left; NAME-PART...: only operators whose name has such a part
"""
import argparse
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile

import numpy as np
from onnx import AttributeProto, TensorProto, defs, helper, numpy_helper

import harness

SEED, COUNT = 14, 900
BINARY = pathlib.Path(os.environ.get("FERRULE_BUILD", harness.ROOT / "build")) / "test_hostile"
OLDEST, NEWEST = 7, 28
INTEGERS = (-1, 0, 1, 2, 3, 7, -2, 1 << 31, -(1 << 63), (1 << 63) - 1)
FLOATS = (0.0, 1.0, -1.0, 0.5, 1e30, float("nan"), float("inf"))
WORDS = ("", "x", "linear", "nearest", "cubic", "constant", "reflect", "edge", "wrap", "mean", "sum", "none", "forward", "bidirectional",
         "SAME_UPPER", "VALID", "NOTSET", "max", "min", "mul", "add", "tanh", "LEFT", "RIGHT", "DCR", "CRD", "i,j", "ij->i", "align_corners",
         "asymmetric", "tf_crop_and_resize", "half_pixel", "not_larger", "bilinear", "avg")
SIZES = (0, 1, 1, 2, 3, 4, 5)
LONG = (257, 300, 600)  # lists that shape inference does not follow any more


class Builder:
    """A node, the types and perhaps the values of what it reads, and what is asked of its results."""

    def __init__(self, rng, schema, opset):
        self.rng, self.schema, self.opset = rng, schema, opset
        self.inputs = []       # (element type, dims or None, array or None, constant?) or None where left out
        self.attributes = []
        self.outputs = 1

    def chance(self, p):
        return self.rng.random() < p

    def model(self):
        rng, nodes, ports, constants, names = self.rng, [], [], [], []
        for k, given in enumerate(self.inputs):
            names.append("" if given is None else f"x{k}")
            if given is None:
                continue
            dtype, dims, array, constant = given
            if constant:
                constants.append(tensor(rng, names[-1], dtype, dims, array))
                continue
            shape = dims
            if dims is not None and self.chance(0.1):
                shape = [f"d{j}" if self.chance(0.5) else d for j, d in enumerate(dims)]
            ports.append(helper.make_tensor_value_info(names[-1], dtype, None if self.chance(0.03) else shape))
        results = [f"y{k}" for k in range(self.outputs)]
        if len(results) > 1 and self.chance(0.15):
            results[rng.randrange(len(results))] = ""
        node = helper.make_node(self.schema.name, names, results, name="node", domain=self.schema.domain)
        node.attribute.extend(self.attributes)
        wanted = [r for r in results if r]
        if ports and self.inputs[0] and self.inputs[0][0] == TensorProto.FLOAT and node.input and node.input[0] == "x0" and self.chance(0.3):
            before, after = rng.choice((("Abs", "Relu"), ("Relu", "Exp"), ("Neg", "Sigmoid")))
            nodes.append(helper.make_node(before, ["x0"], ["before"], name="before"))
            node.input[0] = "before"
            if wanted and wanted[0] == "y0":
                nodes.append(helper.make_node(after, ["y0"], ["after"], name="after"))
                wanted[0] = "after"
        if len(wanted) > 1 and self.chance(0.3):  # named, and read by nobody
            wanted = rng.sample(wanted, rng.randrange(1, len(wanted)))
        if self.chance(0.05) and wanted:
            wanted.append(wanted[0])
        nodes.insert(1 if nodes else 0, node)
        outputs = [helper.make_tensor_value_info(name, self.result_type(0 if name == "after" else int(name[1:])), None) for name in wanted]
        graph = helper.make_graph(nodes, "g", ports, outputs, constants)
        opsets = [helper.make_opsetid("", self.opset if not self.schema.domain else NEWEST)]
        if self.schema.domain:
            opsets.append(helper.make_opsetid(self.schema.domain, self.opset))
        return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()

    def result_type(self, k):
        """What the schema says of result k: the type of an operand, or the first that it may have. (onnx's own inference
        aborts on some of these models.)"""
        formal = self.schema.outputs[min(k, len(self.schema.outputs) - 1)]
        for of, given in zip(self.schema.inputs, self.inputs):
            if given and of.type_str == formal.type_str:
                return given[0]
        to = [a.i for a in self.attributes if a.name in ("to", "dtype", "output_dtype")]
        allowed = [TYPES[t] for t in formal.types if t in TYPES]
        return to[0] if to and to[0] in allowed else next((t for t in COMMON if t in allowed), TensorProto.FLOAT)


def tensor(rng, name, dtype, dims, array):
    if array is not None:
        return numpy_helper.from_array(array, name)
    dims = [d if isinstance(d, int) else 1 for d in dims or []]
    count = int(np.prod(dims, dtype=np.int64))
    if dtype == TensorProto.STRING:
        return helper.make_tensor(name, dtype, dims, [rng.choice(WORDS).encode() for _ in range(count)])
    values = [rng.choice((0, 1, 2, 3, -1)) if dtype not in UNSIGNED else rng.choice((0, 1, 2, 3)) for _ in range(count)]
    return helper.make_tensor(name, dtype, dims, [v & 1 for v in values] if dtype == TensorProto.BOOL else values)


UNSIGNED = (TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64, TensorProto.UINT4, TensorProto.BOOL)
TYPES = {f"tensor({name.lower()})": number for name, number in TensorProto.DataType.items()}
COMMON = [t for t in (TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL, TensorProto.FLOAT16, TensorProto.DOUBLE,
                      TensorProto.UINT8, TensorProto.INT8)]


# --- out of a schema ---------------------------------------------------------------------------------------
def element_type(rng, schema, formal, chosen):
    if formal.type_str in chosen:
        return chosen[formal.type_str]
    allowed = [TYPES[t] for t in sorted(formal.types) if t in TYPES]
    usual = [t for t in COMMON if t in allowed]
    pick = TensorProto.FLOAT if TensorProto.FLOAT in usual and rng.random() < 0.7 else rng.choice(usual or allowed or [TensorProto.FLOAT])
    if allowed and rng.random() < 0.15:
        pick = rng.choice(allowed)
    if rng.random() < 0.02:
        pick = rng.choice(COMMON)
    chosen[formal.type_str] = pick
    return pick


def dims_for(rng, base):
    """Most often the shape of the first input, else something like it, else anything."""
    way = rng.random()
    if way < 0.45:
        return list(base)
    if way < 0.6:
        return [d if rng.random() < 0.5 else 1 for d in base][rng.randrange(len(base) + 1):]
    if way < 0.8:
        return [len(base)] if rng.random() < 0.5 else [rng.choice(LONG if rng.random() < 0.1 else SIZES)]
    if way < 0.88:
        return []
    return [rng.choice(SIZES) for _ in range(rng.randrange(6))]


def value(rng, attribute):
    kind = attribute.type
    if kind == defs.OpSchema.AttrType.INT:
        return rng.choice(INTEGERS if rng.random() < 0.3 else (0, 1, 2, -1, 3))
    if kind == defs.OpSchema.AttrType.INTS:
        return [rng.choice(INTEGERS if rng.random() < 0.1 else (0, 1, 1, 2, 3)) for _ in range(rng.choice((0, 1, 2, 2, 4, 3)))] or None
    if kind == defs.OpSchema.AttrType.FLOAT:
        return rng.choice(FLOATS)
    if kind == defs.OpSchema.AttrType.FLOATS:
        return [rng.choice(FLOATS) for _ in range(rng.randrange(1, 5))]
    if kind == defs.OpSchema.AttrType.STRING:
        return rng.choice(WORDS)
    if kind == defs.OpSchema.AttrType.STRINGS:
        return [rng.choice(WORDS) for _ in range(rng.randrange(1, 4))]
    if kind == defs.OpSchema.AttrType.TENSOR:
        return helper.make_tensor("t", rng.choice(COMMON[:3]), rng.choice(([], [1], [3])), [1, 2, 3][:1])
    return None


def out_of_schema(rng, schema, opset):
    b = Builder(rng, schema, opset)
    base = [rng.choice(SIZES if rng.random() < 0.2 else (1, 2, 3, 4)) for _ in range(rng.choice((0, 1, 2, 3, 4, 4, 5)))]
    chosen = {}
    option = defs.OpSchema.FormalParameterOption
    for formal in schema.inputs:
        for _ in range(rng.randrange(4) if formal.option == option.Variadic else 1):
            if rng.random() < (0.4 if formal.option == option.Optional else 0.02):
                b.inputs.append(None)
                continue
            dims = dims_for(rng, base) if b.inputs else base
            dtype = element_type(rng, schema, formal, chosen)
            b.inputs.append((dtype, dims, None, rng.random() < (0.5 if b.inputs and dtype != TensorProto.FLOAT else 0.15)))
    if rng.random() < 0.5:
        while b.inputs and b.inputs[-1] is None:
            b.inputs.pop()
    if rng.random() < 0.03:
        b.inputs.append((TensorProto.FLOAT, base, None, False))
    for name, attribute in sorted(schema.attributes.items()):
        if attribute.required or rng.random() < 0.35:
            if (v := value(rng, attribute)) is not None:
                b.attributes.append(made_attribute(name, v))
    most = min(schema.max_output, 4)
    b.outputs = rng.choice((schema.min_output, most, most, max(1, schema.min_output)))
    return b.model()


def made_attribute(name, v):
    if isinstance(v, list) and v and isinstance(v[0], int):
        return helper.make_attribute(name, v, attr_type=AttributeProto.INTS)
    return helper.make_attribute(name, v)


# --- out of ONNX's own tests -----------------------------------------------------------------------------------
def is_tensor(type_proto):
    return type_proto.HasField("tensor_type")


def node_tests(parts):
    """ONNX's tests of one node whose inputs are tensors."""
    from onnx.backend.test.case.node import collect_testcases
    out = []
    for test in collect_testcases(None):
        graph = test.model.graph
        if len(graph.node) != 1 or not all(is_tensor(i.type) for i in graph.input) or any(a.g.node for a in graph.node[0].attribute):
            continue
        domain = graph.node[0].domain
        if domain in ("", "ai.onnx") and not (parts and not any(p in graph.node[0].op_type for p in parts)):
            out.append(test)
    return out


def changed(rng, test):
    node, graph = test.model.graph.node[0], test.model.graph
    opset = min(NEWEST, max(o.version for o in test.model.opset_import if o.domain in ("", "ai.onnx")))
    schema = defs.get_schema(node.op_type, opset)
    b = Builder(rng, schema, opset)
    b.attributes = [AttributeProto.FromString(a.SerializeToString()) for a in node.attribute]
    b.outputs = len(node.output)
    arrays = dict(zip((i.name for i in graph.input), test.data_sets[0][0]))
    for name in node.input:
        if not name:
            b.inputs.append(None)
            continue
        info = next(i for i in graph.input if i.name == name).type.tensor_type
        array = arrays[name] if isinstance(arrays[name], np.ndarray) and arrays[name].dtype.kind in "fiub" else None
        if array is not None and helper.np_dtype_to_tensor_dtype(array.dtype) != info.elem_type:
            array = None
        few = int(np.prod(array.shape)) < 1000 if array is not None else False
        constant = few and rng.random() < (0.5 if array.dtype.kind in "iub" and b.inputs else 0.15)
        b.inputs.append((info.elem_type, [d.dim_value for d in info.shape.dim], array, constant))
    for _ in range(rng.randrange(4)):
        rng.choice(CHANGES)(rng, b)
    return b.model()


def change_outputs(rng, b):
    b.outputs = rng.choice((min(b.schema.max_output, 5), b.schema.min_output, b.outputs + 1))


def change_input(rng, b):
    if b.inputs:
        at = rng.randrange(len(b.inputs))
        way = rng.randrange(3)
        if way == 0:
            b.inputs[at] = None
        elif way == 1:
            del b.inputs[at:]
        else:
            b.inputs.append(b.inputs[at])


def change_dims(rng, b):
    at = [k for k, i in enumerate(b.inputs) if i and i[1] is not None]
    if not at:
        return
    k = rng.choice(at)
    dtype, dims, _, constant = b.inputs[k]
    dims, way = list(dims), rng.randrange(6)
    if way == 0 or not dims:
        dims = []
    elif way == 1:
        size = rng.choice(dims)
        for other in at:  # wherever the size stands: the sizes still agree
            t, d, array, c = b.inputs[other]
            if size in d:
                b.inputs[other] = (t, [0 if s == size else s for s in d], None, c)
        return
    elif way == 2:
        dims[rng.randrange(len(dims))] = rng.choice(SIZES)
    elif way == 3:
        del dims[rng.randrange(len(dims))]
    elif way == 4:
        dims.insert(0, 1)
    else:
        dims.append(rng.choice(SIZES))
    b.inputs[k] = (dtype, dims, None, constant)


def change_type(rng, b):
    at = [k for k, i in enumerate(b.inputs) if i]
    if at:
        k = rng.choice(at)
        old, new = b.inputs[k][0], rng.choice(COMMON if rng.random() < 0.7 else list(TYPES.values())[1:])
        for other in at if rng.random() < 0.8 else [k]:
            t, dims, array, constant = b.inputs[other]
            if t == old:
                b.inputs[other] = (new, dims, None, constant and new != TensorProto.UNDEFINED)


def change_constant(rng, b):
    at = [k for k, i in enumerate(b.inputs) if i]
    if at:
        k = rng.choice(at)
        dtype, dims, array, constant = b.inputs[k]
        if array is not None and array.dtype.kind in "iu" and rng.random() < 0.6:
            array = array.copy()
            flat = array.reshape(-1)
            if flat.size:
                info = np.iinfo(array.dtype)
                flat[rng.randrange(flat.size)] = rng.choice((0, 1, info.max, info.min, info.max // 2, 5))
            constant = True
        elif array is None or array.size < 1000:
            constant = not constant
        b.inputs[k] = (dtype, dims, array, constant)


def change_attribute(rng, b):
    names = sorted(b.schema.attributes)
    if not names:
        return
    name = rng.choice(names)
    old = next((a for a in b.attributes if a.name == name), None)
    b.attributes = [a for a in b.attributes if a.name != name]
    if old is not None and rng.random() < 0.3:
        return
    if old is not None and old.ints and rng.random() < 0.6:
        ints = list(old.ints)
        ints[rng.randrange(len(ints))] = rng.choice(INTEGERS)
        if rng.random() < 0.3:
            ints.append(rng.choice((0, 1, 2)))
        b.attributes.append(made_attribute(name, ints))
    elif (v := value(rng, b.schema.attributes[name])) is not None:
        b.attributes.append(made_attribute(name, v))


def change_opset(rng, b):
    b.opset = rng.randrange(OLDEST, NEWEST + 1)


CHANGES = (change_outputs, change_input, change_dims, change_dims, change_type, change_constant, change_attribute, change_attribute, change_opset)


# --- running them ----------------------------------------------------------------------------------------------
def models(seed, count, parts):
    """(name, bytes) of `count` models of each source."""
    schemas = sorted(((s, max(s.since_version, OLDEST)) for s in defs.get_all_schemas_with_history()
                      if s.domain in ("", "ai.onnx.ml") and s.since_version <= NEWEST and not s.deprecated
                      and (not parts or any(p in s.name for p in parts))), key=lambda s: (s[0].domain, s[0].name, s[0].since_version))
    schemas = [(s, opset) for s, opset in schemas if s.domain or defs.get_schema(s.name, opset).since_version == s.since_version]
    makers = [("schema", lambda rng, pick: out_of_schema(rng, *pick), schemas), ("test", changed, node_tests(parts))]
    for source, make, picks in makers:
        for k in range(count if picks else 0):
            rng = random.Random(f"{seed} {source} {k}")
            pick = picks[k % len(picks)] if source == "schema" else rng.choice(picks)
            try:
                data = make(rng, pick)
            except Exception:  # what Python's writer refuses: nobody gets such a file from it
                continue
            name = f"{pick[0].name}_{pick[1]}" if source == "schema" else pick.name
            yield f"{source} {k} {name}", data


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("parts", nargs="*")
    options.add_argument("--seed", default=SEED)
    options.add_argument("--count", type=int, default=COUNT)
    options.add_argument("--keep", type=pathlib.Path)
    options = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="ferrule-one-node-") as scratch:
        made = dict(models(options.seed, options.count, options.parts))
        pack = pathlib.Path(scratch) / "models"
        with open(pack, "wb") as out:
            for name, data in made.items():
                out.write(struct.pack("<II", len(name.encode()), len(data)) + name.encode() + data)
        done = subprocess.run([BINARY, "--no-colors", "--no-intro", "--no-version"], env={**os.environ, "FERRULE_HOSTILE_MODELS": str(pack)},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        print(re.sub(r"(?m)^(\[doctest\].*|=+)\n", "", done.stdout), end="")
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            for name in re.findall(r"(?m)^FAILED (.+?): ", done.stdout):
                (options.keep / (re.sub(r"\W+", "_", name) + ".onnx")).write_bytes(made[name])
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
