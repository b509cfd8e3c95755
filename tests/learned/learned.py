"""Models of ai.onnx.ml as scikit-learn's pipelines are exported, against ONNX Runtime's own kernels: each operator in its forms, on random
parameters and rows. Last line: "N passed, N failed".

usage: run [GLOB]
  GLOB: only the operators that match.
"""
import fnmatch
import itertools
import pathlib
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support")]

import harness  # noqa: E402
import tolerance  # noqa: E402

TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
rng = np.random.default_rng(11)


def f32(*shape, low=-1.0, high=1.0):
    return rng.uniform(low, high, shape).astype(np.float32)


def floats(*shape, low=-1.0, high=1.0):
    return [float(v) for v in f32(*shape, low=low, high=high).ravel()]


def labels(count, texts):
    return {"classlabels_strings": [f"class {k}" for k in range(count)]} if texts else {"classlabels_ints": [10 * k + 3 for k in range(count)]}


def forest(leaf, trees=3, depth=3, features=4, modes=("BRANCH_LEQ",), missing=False, whole=False):
    """Nodes of random trees; leaf(tree, node): pairs of a target or class and a weight. whole: they compare with whole numbers."""
    nodes = {name: [] for name in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids", "missing_value_tracks_true")}
    leaves = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(trees):
        inner = 2**depth - 1
        for node in range(2 * inner + 1):
            branch = node < inner and (node == 0 or rng.uniform() > 0.2)
            value = float(rng.integers(-2, 3)) if whole else floats(1)[0]
            row = (tree, node, int(rng.integers(features)) if branch else 0, value if branch else 0.0, str(rng.choice(modes)) if branch else "LEAF",
                   2 * node + 1 if branch else 0, 2 * node + 2 if branch else 0, int(missing and rng.integers(2)))
            for name, v in zip(nodes, row):
                nodes[name].append(v)
            if not branch:
                for target, weight in leaf(tree, node):
                    for name, v in zip(leaves, (tree, node, target, weight)):
                        leaves[name].append(v)
    if not missing:
        del nodes["missing_value_tracks_true"]
    return {f"nodes_{name}": v for name, v in nodes.items()}, leaves


def rows(kind, count=9, features=4):
    return f32(count, features, low=-1.5, high=1.5).astype(kind) if np.issubdtype(kind, np.floating) else rng.integers(-3, 4, (count, features)).astype(kind)


def classifier(classes, texts, named, low, post="NONE", base=(), **form):
    """A classifier whose leaves name `named` classes, with weights from `low` to 1; three trees together come to that."""
    nodes, leaves = forest(lambda *_: [(k, floats(1, low=low)[0] / 3) for k in named], **form)
    given = labels(classes, texts)
    if not texts:
        given = {"classlabels_int64s": given["classlabels_ints"]}
    out = {**nodes, **{f"class_{name}": v for name, v in leaves.items()}, **given, "post_transform": post}
    return {**out, "base_values": list(base)} if base else out


def cases():
    """(operator, attributes, operands, how many results)."""
    op = "TreeEnsembleClassifier"
    for post, texts in itertools.product(TRANSFORMS, (False, True)):
        low = 0.6 if post == "PROBIT" else -1  # probit wants scores between 0 and 1, and is steep at the ends and cancels at 1/2
        yield op, classifier(3, texts, (0, 1, 2), low, post), [rows(np.float32)], 2
        yield op, classifier(2, texts, (0, 1), low, post), [rows(np.float32)], 2
        if post != "PROBIT":
            yield op, classifier(2, texts, (1,), low, post), [rows(np.float32)], 2
            yield op, classifier(2, texts, (0,), 0, post), [rows(np.float32)], 2
            yield op, classifier(3, texts, (0, 1, 2), low, post, base=floats(3)), [rows(np.float32)], 2
            yield op, classifier(2, texts, (0,), low, post, base=floats(1)), [rows(np.float32)], 2
            yield op, classifier(2, texts, (0, 1), low, post, base=floats(1)), [rows(np.float32)], 2
            yield op, classifier(2, texts, (0,), low, post, base=floats(2)), [rows(np.float32)], 2
    for kind in (np.float32, np.float64, np.int32, np.int64):
        yield op, classifier(3, False, (0, 1, 2), -1, modes=MODES, whole=True), [rows(kind)], 2
        yield op, classifier(2, True, (1,), -1, modes=MODES, whole=True), [rows(kind)], 2
    for mode in MODES:
        yield op, classifier(4, False, (0, 1, 2, 3), -1, modes=(mode,)), [rows(np.float32)], 2
    for modes in (("BRANCH_LEQ",), MODES):
        x = rows(np.float32, 20)
        x[rng.uniform(size=x.shape) < 0.4] = np.nan
        yield op, classifier(3, False, (0, 1, 2), -1, missing=True, modes=modes), [x], 2
        yield op, classifier(3, False, (0, 1, 2), -1, modes=modes), [x], 2
    # Trees that vote, and exact halves: a forest of five with the weight of a fifth each.
    nodes, leaves = forest(lambda tree, node: [(int(rng.integers(3)), 1.0 / 5)], trees=5)
    voting = {**nodes, **{f"class_{name}": v for name, v in leaves.items()}, "classlabels_int64s": [0, 1, 2], "post_transform": "NONE"}
    yield op, voting, [rows(np.float32, 40)], 2
    nodes, leaves = forest(lambda tree, node: [(1, float(rng.integers(2)) / 10)], trees=10)
    halves = {**nodes, **{f"class_{name}": v for name, v in leaves.items()}, "classlabels_int64s": [0, 1], "post_transform": "NONE"}
    yield op, halves, [rows(np.float32, 40)], 2

    op = "TreeEnsembleRegressor"
    for post, how, targets in itertools.product(TRANSFORMS[:4], ("SUM", "AVERAGE", "MIN", "MAX"), (1, 3)):
        nodes, leaves = forest(lambda tree, node: [(k, floats(1)[0]) for k in range(targets)])
        model = {**nodes, **{f"target_{name}": v for name, v in leaves.items()}, "n_targets": targets, "aggregate_function": how, "post_transform": post}
        yield op, model, [rows(np.float32)], 1
        yield op, {**model, "base_values": floats(targets)}, [rows(np.float32)], 1
    nodes, leaves = forest(lambda *_: [(0, floats(1)[0])], missing=True, modes=MODES)
    x = rows(np.float32, 20)
    x[::3, ::2] = np.nan
    yield op, {**nodes, **{f"target_{name}": v for name, v in leaves.items()}, "n_targets": 1}, [x], 1

    nan = float("nan")
    x = f32(5, 3)
    x[1:3, ::2] = np.nan
    yield "Imputer", {"imputed_value_floats": [0.5], "replaced_value_float": nan}, [x], 1
    yield "Imputer", {"imputed_value_floats": [0.5, 1.5, -2.0], "replaced_value_float": nan}, [x], 1
    yield "Imputer", {"imputed_value_floats": [0.5, 1.5], "replaced_value_float": nan}, [x], 1
    yield "Imputer", {"imputed_value_floats": [7.0], "replaced_value_float": 1.0}, [np.float32([[1, 2], [3, 1]])], 1
    yield "Imputer", {"imputed_value_floats": [7.0, 8.0], "replaced_value_float": nan}, [np.float32([nan, nan])], 1
    yield "Imputer", {"imputed_value_int64s": [7, 8], "replaced_value_int64": -1}, [np.int64([[-1, 2], [3, -1]])], 1
    yield "Imputer", {"imputed_value_int64s": [7], "replaced_value_int64": -1}, [np.int64([[-1, 2], [3, -1]])], 1

    for zeros in (0, 1):
        yield "OneHotEncoder", {"cats_int64s": [3, 1, 7], "zeros": zeros}, [np.int64([[3], [7], [1], [1]])], 1
    yield "OneHotEncoder", {"cats_int64s": [3, 1, 7]}, [np.int64([3, 4, 1])], 1
    yield "OneHotEncoder", {"cats_int64s": [3, 1, 7]}, [np.float32([[3.0, 1.5], [7.0, 9.0]])], 1
    yield "OneHotEncoder", {"cats_strings": ["a", "b"]}, [np.array([["b", "c"], ["a", "a"]])], 1

    yield "FeatureVectorizer", {"inputdimensions": [2, 3]}, [f32(4, 2), f32(4, 3)], 1
    yield "FeatureVectorizer", {"inputdimensions": [2, 1]}, [np.int64([[1, 2], [3, 4]]), np.int64([[5], [6]])], 1
    yield "FeatureVectorizer", {"inputdimensions": [3, 2]}, [f32(4, 2), f32(4, 3)], 1
    yield "FeatureVectorizer", {"inputdimensions": [4]}, [f32(4)], 1

    yield "CategoryMapper", {"cats_int64s": [5, 6], "cats_strings": ["a", "b"], "default_int64": 9}, [np.array([["b", "c"], ["a", "a"]])], 1
    yield "CategoryMapper", {"cats_int64s": [5, 6], "cats_strings": ["a", "b"], "default_string": "?"}, [np.int64([6, 7, 5])], 1

    for kind in (np.float32, np.int64):
        yield "Scaler", {"offset": floats(4), "scale": floats(4)}, [rows(kind)], 1
    yield "Scaler", {"offset": [0.5], "scale": [2.0]}, [rows(np.float32)], 1
    for norm, kind in itertools.product(("MAX", "L1", "L2"), (np.float32, np.float64, np.int64)):
        yield "Normalizer", {"norm": norm}, [rows(kind)], 1
    yield "Normalizer", {"norm": "L2"}, [np.float32([[0, 0], [3, 4]])], 1
    yield "Binarizer", {"threshold": 0.25}, [rows(np.float32)], 1
    yield "ArrayFeatureExtractor", {}, [rows(np.float32), np.int64([2, 0, 2])], 1
    yield "ArrayFeatureExtractor", {}, [np.array([["a", "b", "c"]]), np.int64([[2, 1]])], 1
    yield "LabelEncoder", {"keys_strings": ["a", "b"], "values_int64s": [4, 5]}, [np.array(["b", "x", "a"])], 1
    yield "LabelEncoder", {"keys_int64s": [4, 5], "values_strings": ["a", "b"], "default_string": "none"}, [np.int64([5, 4, 3])], 1
    yield "LabelEncoder", {"keys_floats": [1.5, 2.5], "values_floats": [4.0, 5.0]}, [np.float32([2.5, 1.5, 2.0])], 1
    yield "LabelEncoder", {"keys_int64s": [4, 5], "values_floats": [0.5, 1.5], "default_float": -3.0}, [np.int64([5, 4, 3])], 1

    for post, texts, kind in itertools.product(TRANSFORMS[:4], (False, True), (np.float32, np.int64)):
        yield "LinearClassifier", {"coefficients": floats(3, 4), "intercepts": floats(3), **labels(3, texts), "post_transform": post}, [rows(kind)], 2
        yield "LinearClassifier", {"coefficients": floats(4), "intercepts": floats(1), **labels(2, texts), "post_transform": post}, [rows(kind)], 2
        yield "LinearClassifier", {"coefficients": floats(2, 4), "intercepts": floats(2), **labels(2, texts), "post_transform": post}, [rows(kind)], 2
    for post, targets in itertools.product(TRANSFORMS[:4], (1, 3)):
        yield "LinearRegressor", {"coefficients": floats(targets, 4), "intercepts": floats(targets), "targets": targets, "post_transform": post}, [rows(np.float32)], 1

    for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID"):
        params = {"kernel_type": kernel, "kernel_params": [0.3, 0.4, 2.0]}
        vectors = {"support_vectors": floats(5, 4), "n_supports": 5, "coefficients": floats(5), "rho": floats(1)}
        for one_class in (0, 1):
            yield "SVMRegressor", {**params, **vectors, "one_class": one_class}, [rows(np.float32)], 1
        yield "SVMRegressor", {**params, "n_supports": 0, "coefficients": floats(4), "rho": floats(1)}, [rows(np.float32)], 1
        for classes, post, likely, texts in itertools.product((2, 3, 4), TRANSFORMS[:4], (False, True), (False, True)):
            pairs = classes * (classes - 1) // 2
            counts = [int(n) for n in rng.integers(1, 4, classes)]
            found = {"vectors_per_class": counts, "support_vectors": floats(sum(counts), 4), "coefficients": floats((classes - 1) * sum(counts)),
                     "rho": floats(pairs), **labels(classes, texts), "post_transform": post}
            if likely:
                found |= {"prob_a": floats(pairs, low=-2, high=-0.5), "prob_b": floats(pairs)}
            yield "SVMClassifier", {**params, **found}, [rows(np.float32)], 2
    linear = {"kernel_type": "LINEAR", "kernel_params": [0.0, 0.0, 0.0]}
    for classes, post, low in itertools.product((2, 3), TRANSFORMS[:4], (-1, 0)):
        yield "SVMClassifier", {**linear, "coefficients": floats(classes, 4, low=low), "rho": floats(1), **labels(classes, False), "post_transform": post}, \
            [rows(np.float32)], 2
    yield "SVMClassifier", {**linear, "coefficients": floats(2, 4), "rho": floats(1), **labels(2, True)}, [rows(np.int64)], 2


def type_of(array):
    return TensorProto.STRING if array.dtype.kind in "UO" else helper.np_dtype_to_tensor_dtype(array.dtype)


def model_of(nodes, operands, results, wanted=None):
    """wanted: results as they are, for their types; without, they are left for ONNX Runtime to find."""
    inputs = [helper.make_tensor_value_info(name, type_of(o), o.shape) for name, o in operands.items()]
    outputs = [onnx.ValueInfoProto(name=r) if wanted is None else helper.make_tensor_value_info(r, type_of(w), [None] * w.ndim)
               for r, w in zip(results, wanted or results)]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)], ir_version=8)


def pipelines():
    """(name, nodes, operands, results): operators behind each other, with results in between whose types only a run shows."""
    def node(op, inputs, outputs, **attributes):
        return helper.make_node(op, inputs, outputs, domain="ai.onnx.ml", **attributes)

    x = rows(np.float32, 12)
    x[2:5, 1] = np.nan
    yield "imputed, scaled, a forest", [
        node("Imputer", ["x0"], ["a"], imputed_value_floats=[0.25], replaced_value_float=float("nan")),
        node("Scaler", ["a"], ["b"], offset=floats(4), scale=floats(4, low=0.5)),
        node("TreeEnsembleClassifier", ["b"], ["label", "scores"], **classifier(3, True, (0, 1, 2), 0))], [x], ["label", "scores"]
    yield "columns together, normalized, a line", [
        node("FeatureVectorizer", ["x0", "x1"], ["a"], inputdimensions=[4, 2]),
        node("Normalizer", ["a"], ["b"], norm="L2"),
        node("LinearRegressor", ["b"], ["y"], coefficients=floats(6), intercepts=floats(1))], [rows(np.float32, 5), f32(5, 2)], ["y"]
    yield "words to columns, support vectors", [
        node("OneHotEncoder", ["x0"], ["a"], cats_strings=["u", "v", "w"]),
        helper.make_node("Reshape", ["a", "shape"], ["b"]),
        node("SVMRegressor", ["b"], ["y"], coefficients=floats(3), rho=floats(1), n_supports=0, kernel_type="LINEAR", kernel_params=[0.0, 0.0, 0.0])], [np.array([["u"], ["w"], ["z"]])], ["y"]
    yield "a forest's class as a number", [
        node("TreeEnsembleClassifier", ["x0"], ["label", "scores"], **classifier(2, True, (1,), 0)),
        node("LabelEncoder", ["label"], ["number"], keys_strings=["class 0", "class 1"], values_int64s=[0, 1]),
        helper.make_node("Cast", ["number"], ["y"], to=TensorProto.FLOAT)], [rows(np.float32)], ["y", "scores"]


def compared(got, want):
    if want.dtype.kind in "UO":
        return None if got.shape == want.shape and (got.astype(str) == want.astype(str)).all() else f"{got.tolist()}, wanted {want.tolist()}"
    return tolerance.difference(got, want)


def judge(report, number, cases):
    """Cases (what, nodes, operands, results) as one model, which is much faster; each by itself where that does not run."""
    nodes, operands, results, shapes = [], {}, [], []
    for k, (_, own, given, wanted) in enumerate(cases):
        for original in own:
            node = onnx.NodeProto()
            node.CopyFrom(original)
            node.name = f"n{len(nodes)}"
            node.input[:] = [f"c{k}_{name}" for name in original.input]
            node.output[:] = [f"c{k}_{name}" for name in original.output]
            nodes.append(node)
            shapes += [name for name in node.input if name.endswith("_shape")]
        operands |= {f"c{k}_x{j}": o for j, o in enumerate(given)}
        results.append([f"c{k}_{name}" for name in wanted])
    flat = [name for names in results for name in names]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4

    def model(wanted=None):
        made = model_of(nodes, operands, flat, wanted)
        made.graph.initializer.extend(helper.make_tensor(name, TensorProto.INT64, [2], [-1, 3]) for name in shapes)
        return made

    session = onnxruntime.InferenceSession(model().SerializeToString(), options, providers=["CPUExecutionProvider"])
    want = session.run(flat, {name: o.astype(object) if o.dtype.kind == "U" else o for name, o in operands.items()})
    path, inputs, outputs = (report.folder / f"{number}.{suffix}" for suffix in ("onnx", "npz", "out.npz"))
    onnx.save(model(want), path)
    np.savez(inputs, **operands)
    done = harness.run("run", path, "--inputs", inputs, "--outputs", outputs)
    if done.code != harness.OK:
        if len(cases) == 1:
            report.check(cases[0][0], done.tail())
        for k, case in enumerate(cases if len(cases) > 1 else ()):
            judge(report, f"{number}_{k}", [case])
        return
    by_name = dict(zip(flat, want))
    with np.load(outputs) as got:
        for (what, *_), names in zip(cases, results):
            report.check(what, next((f"{name}: {text}" for name in names if (text := compared(got[name], by_name[name]))), None))


def main():
    report = harness.Report()
    wanted = sys.argv[1] if len(sys.argv) > 1 else "*"
    chosen = []
    for op, attributes, operands, results in cases():
        if not fnmatch.fnmatch(op, wanted):
            continue
        names = [f"y{k}" for k in range(results)]
        node = helper.make_node(op, [f"x{k}" for k in range(len(operands))], names, "node", domain="ai.onnx.ml", **attributes)
        shown = {k: v for k, v in attributes.items() if not isinstance(v, list) or len(v) < 5}
        chosen.append((f"{op} {shown} of {[f'{o.dtype}{list(o.shape)}' for o in operands]}", [node], operands, names))
    for number in range(0, len(chosen), 24):
        judge(report, number, chosen[number:number + 24])
    if wanted == "*":
        for name, *case in pipelines():
            judge(report, name.replace(" ", "_"), [(name, *case)])
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
