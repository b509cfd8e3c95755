"""Runs whole models and compares them with stored outputs of an unfused reference.

Each model: with every rule on, with `--disable '*'`, and with rules that `explain` shows firing switched
off in turn: each rule on the first model where it fires, and on every model with --full (or
FERRULE_TEST_FULL=1). Then what the plan must look like, and that the kernels that explain promises are
the kernels that were launched. Two of the models are also made to store f16 and bf16 and verified against
the interpreter, with all instructions and as on a processor that has nothing for bf16. Last line: "N passed, N failed,
N skipped" (a model that cannot be had is skipped, and said so).

usage: check.py [--full] [--ferrule build/ferrule] [--backend NAME] [--keep DIR] [MODEL...]
"""
import argparse
import os
import pathlib
import sys
import tempfile

import numpy as np
import onnx

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support")]

import fetch  # noqa: E402
import harness  # noqa: E402
import narrow  # noqa: E402
import tolerance  # noqa: E402

# Operators that stand alone only when fusion failed: one value in, the same shape out.
ACTIVATIONS = {
    "Relu", "LeakyRelu", "PRelu", "Elu", "Selu", "Celu", "Gelu", "Mish", "Clip", "Sigmoid",
    "HardSigmoid", "HardSwish", "Tanh", "Softplus", "Softsign", "ThresholdedRelu", "Erf",
}
ARITHMETIC = {"Add", "Sub", "Mul", "Div", "Min", "Max", "Neg", "Abs", "Exp", "Log", "Sqrt", "Pow"}
CONVOLUTIONS = {"Conv", "ConvTranspose"}
PRODUCTS = CONVOLUTIONS | {"Gemm", "MatMul"}


def ferrule(options, *arguments, env=None):
    return harness.run(*arguments, "--backend", options.backend, "--threads", options.threads, timeout=300, env=env)


def run(options, model, wanted, *extra):
    """Runs a model on its stored inputs; returns (launched kernels, None) or (None, problem)."""
    folder = model.parent
    with tempfile.TemporaryDirectory(dir=options.keep) as scratch:
        out = pathlib.Path(scratch) / "outputs.npz"
        answer, problem = harness.answer(ferrule(options, "run", model, "--inputs", folder / "inputs.npz", "--outputs",
                                                 out, "--force", "--json", *extra))
        if problem:
            return None, problem
        try:
            with np.load(out) as got:
                problem = tolerance.differences(got, wanted)
        except (OSError, ValueError) as reason:
            problem = f"run ended well, but its outputs cannot be read: {reason}"
    return (None, problem) if problem else (answer, None)


def rules_in(plan):
    """Every rule that fired: those that made layers, and rewrites, which explain counts apart."""
    layers = (layer["rule"] for layer in plan["layers"] if layer["rule"])
    return list(dict.fromkeys([*plan.get("rules", {}), *layers]))


class Model:
    """The ONNX graph as written, to judge a plan against it."""

    def __init__(self, path):
        graph = onnx.load(str(path), load_external_data=False).graph
        self.nodes = list(graph.node)
        self.constants = {t.name for t in graph.initializer}
        self.outputs = {o.name for o in graph.output}
        self.producer, self.readers, self.by_name = {}, {}, {}
        for index, node in enumerate(self.nodes):
            for value in node.output:
                self.producer[value] = index
            for value in node.input:
                self.readers.setdefault(value, set()).add(index)
            if node.op_type == "Constant":
                self.constants.update(node.output)
            # A node without a name is called after its operator and its place, as TensorRT does.
            self.by_name.setdefault(node.name or f"{node.op_type}_{index}", index)

    def indices(self, layer):
        """The layer's nodes, or None when one is not known by that name."""
        found = [self.by_name.get(name) for name in layer["nodes"]]
        return None if None in found else found

    def operators(self, layer):
        """The layer's operator types."""
        found = self.indices(layer)
        return None if found is None else {self.nodes[i].op_type for i in found}

    def single_source(self, layer):
        """The one value from outside that the layer reads, when nothing else reads it; else None."""
        inside = set(self.indices(layer))
        outside = {value for i in inside for value in self.nodes[i].input
                   if value and value not in self.constants and self.producer.get(value) not in inside}
        if len(outside) != 1:
            return None
        (value,) = outside
        if value in self.outputs or self.readers[value] - inside:
            return None
        return value


def judge_plan(model, layers):
    """Problems of a plan with every rule on."""
    unknown = [name for layer in layers for name in layer["nodes"] if name not in model.by_name]
    if unknown:
        yield "node names", f"not in the model: {', '.join(unknown[:5])}"
        return
    yield "node names", None
    alone = [layer["name"] for layer in layers
             if "BatchNormalization" in model.operators(layer) and not model.operators(layer) & PRODUCTS]
    yield "no BatchNormalization", "left: " + ", ".join(alone[:5]) if alone else None
    alone = [layer["name"] for layer in layers
             if layer["nodes"] and model.operators(layer) <= {"Identity", "Dropout"}]
    yield "no Identity", "left: " + ", ".join(alone[:5]) if alone else None

    in_convolution = {i for layer in layers if model.operators(layer) & CONVOLUTIONS
                      for i in model.indices(layer)}
    alone = []
    for layer in layers:
        operators = model.operators(layer)
        if operators and operators & ACTIVATIONS and operators <= ACTIVATIONS | ARITHMETIC:
            value = model.single_source(layer)
            if value is not None and model.producer.get(value) in in_convolution:
                alone.append(layer["name"])
    yield "no activation of its own behind a convolution", \
        "left: " + ", ".join(alone[:5]) if alone else None


def check_model(options, report, name):
    """All checks of one model."""
    try:
        folder = fetch.locate(name)
    except fetch.Unavailable as reason:
        report.skip(name, reason)
        return
    path = folder / "model.onnx"
    with np.load(folder / "outputs.npz") as stored:
        wanted = dict(stored)
    with np.load(folder / "inputs.npz") as stored:
        shapes = [f"{key}:{'x'.join(map(str, value.shape))}" for key, value in stored.items()]

    plan, problem = harness.answer(ferrule(options, "explain", path, "--json",
                                           *(part for shape in shapes for part in ("--shapes", shape))))
    report.check(f"{name} explain", problem)
    if plan:
        for what, problem in judge_plan(Model(path), plan["layers"]):
            report.check(f"{name} {what}", problem)

    answer, problem = run(options, path, wanted)
    report.check(f"{name} with every rule", problem)
    if answer and plan:
        promised = sum(layer["kernels"] for layer in plan["layers"])
        launched = answer.get("kernels_launched")
        report.check(f"{name} kernels", None if launched == promised else
                     f"explain promises {promised} kernels, run launched {launched}")

    _, problem = run(options, path, wanted, "--disable", "*")
    report.check(f"{name} with --disable '*'", problem)
    if not plan:
        return
    rules = rules_in(plan)
    for rule in rules:
        if rule in report.switched_off and not options.full:
            continue
        report.switched_off.add(rule)
        _, problem = run(options, path, wanted, "--disable", rule)
        report.check(f"{name} without {rule}", problem)
    print(f"{name}: {len(plan['layers'])} layers; rules that fire: {', '.join(rules) or 'none'}",
          flush=True)


# Convolutions with every tail, depthwise ones, products, poolings; Softmax is left to the interpreter.
NARROW = {"mnist_cntk": [], "ppocr_v2_cls": ["--shapes", "x:1x3x48x192"]}


def check_narrow(options, report, name):
    """A model stored in f16 and bf16, fused, against the unfused one and against the interpreter."""
    try:
        original = onnx.load(str(fetch.model_file(name)))
    except fetch.Unavailable as reason:
        report.skip(name, reason)
        return
    for to in ("f16", "bf16"):
        with tempfile.TemporaryDirectory(dir=options.keep) as scratch:
            path = pathlib.Path(scratch) / f"{name}_{to}.onnx"
            model = onnx.ModelProto()
            model.CopyFrom(original)
            onnx.save(narrow.narrow(model, to), str(path))
            for what, arguments, env in [("against unfused", [], {}), ("against the interpreter", ["--oracle"], {}),
                                         ("with AVX2 alone", ["--oracle"], {"ONEDNN_MAX_CPU_ISA": "AVX2"})]:
                done = ferrule(options, "verify", path, *NARROW[name], *arguments, env=env)
                report.check(f"{name} in {to} {what}", None if done.code == harness.OK else done.tail())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", default=list(fetch.MODELS))
    parser.add_argument("--ferrule", default=harness.PROGRAM)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--full", action="store_true", default=bool(os.environ.get("FERRULE_TEST_FULL")),
                        help="every model without each of its rules")
    parser.add_argument("--keep", help="folder for temporary files (default: the system's)")
    options = parser.parse_args()
    harness.PROGRAM = options.ferrule
    report = harness.Report()
    report.switched_off = set()  # rules without which a model was run
    for name in options.models if report.ready else ():
        if name not in fetch.MODELS:
            parser.error(f"no model named {name}; there are {', '.join(fetch.MODELS)}")
        check_model(options, report, name)
        if name in NARROW:
            check_narrow(options, report, name)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
