"""No rule makes a plan worse: with it a model is as many kernels as without it, or fewer.

Asked of small graphs where a rule once cost kernels, each with the count that it should have, and of whole models (those
kept here and, where it is, the shared test material). Counts are those of `explain`, which backends launch
(check.py). Last line: "N passed, N failed, N skipped".
"""
import json
import os
import pathlib
import sys
import tempfile

import onnx

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE.parent / "golden")]

import fetch  # noqa: E402
import golden  # noqa: E402
import harness  # noqa: E402

# What asks for a fusion that may cost kernels, and how a run does without it.
RULES = ("conv_activation", "conv_gelu", "conv_residual", "deconv_activation", "deconv_residual", "gemm_activation",
         "gemm_residual", "attention", "qdq_conv", "qdq_conv_pool", "qdq_gemm", "qdq_pool", "qdq_separable")
MODELS = ("ppocr_v2_cls", "rfb320", "light_squeezenet", "open_nsfw", "bert_mini", "gpt2_mini", "llama_step", "ppocr_cls_qdq_u8s8", "rfb320_qdq_s8")
TARGETS = ("cpu-avx512", "sm_75", "sm_90")

# Open: a tail that is free in a product's call keeps the product from being merged with its sibling (SwiGLU on a CPU).
OPEN = {("llama_step", "cpu-avx512", "gemm_activation")}

ATTENTION = """
agraph (float[1,4,32,64] q, float[1,4,64,32] k, float[1,4,32,64] v) => (float[1,4,32,64] y) {
  s = MatMul(q, k)
  p = Softmax<axis=-1>(s)
  y = MatMul(p, v)
}"""
QUANTIZED = """
agraph (uint8[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,3,3] W, float[4,4,3,3] V, float s = {0.5}, uint8 z = {3}> {
  a = DequantizeLinear(x, s, z)
  b = Conv<pads=[1,1,1,1]>(a, W)
  c = QuantizeLinear(b, s, z)
  d = DequantizeLinear(c, s, z)
  e = Conv<pads=[1,1,1,1]>(d, V)
  f = QuantizeLinear(e, s, z)
  y = DequantizeLinear(f, s, z)
}"""
SWIGLU = """
agraph (float16[4,64] x, float16[4,64] z) => (float16[4,128] y) <float16[64,128] W, float16[64,128] V> {
  a = MatMul(x, W)
  s = Sigmoid(a)
  g = Mul(a, s)
  b = MatMul(z, V)
  y = Mul(g, b)
}"""
NORM = """
agraph (float[4,64] x) => (float[4,64] y) <float[64,64] W, float[64] B, float[64] g, float two = {2.0}, float c = {0.125}> {
  t = MatMul(x, W)
  u = Tanh(t)
  v = Mul(u, c)
  y = LayerNormalization<axis=-1>(v, g, B)
}"""
TAIL = """
agraph (float[1,8,8,8] x, float[1,8,8,8] r) => (float[1,8,8,8] y) <float[8,8,3,3] W> {
  t = Conv<pads=[1,1,1,1]>(x, W)
  s = Sigmoid(t)
  y = Mul(s, r)
}"""
# name, graph, target, options that ask for the rule, options that do without it, kernels with it
GRAPHS = [
    ("attention with tf32", ATTENTION, "sm_90", ("--enable", "tf32"), (), 1),
    ("attention with tf32 on Ampere", ATTENTION, "sm_80", ("--enable", "tf32"), (), 1),
    *(("integers in float", QUANTIZED, t, (), ("--disable", "qdq_*"), None) for t in ("sm_75", "sm_90", "cpu-avx512")),
    ("SwiGLU in f16", SWIGLU, "sm_90", (), ("--disable", "gemm_activation"), 3),
    ("a tail in front of a norm", NORM, "sm_90", (), ("--disable", "gemm_activation"), 2),
    ("a tail in front of what reads another tensor", TAIL, "sm_90", (), ("--disable", "conv_activation"), None),
]


def explained(model, target, options):
    """The plan of `explain --json`, or how it ended."""
    done = harness.run("explain", model, "--target", target, "--json", *options, timeout=300)
    return (json.loads(done.out), None) if done.code == harness.OK else (None, done.tail())


def kernels(plan):
    return sum(layer["kernels"] for layer in plan["layers"])


def compare(report, name, model, target, asked, without, wanted=None):
    """asked, without: options."""
    plans = []
    for options in (asked, without):
        plan, problem = explained(model, target, options)
        if problem:
            return report.check(f"{name}, {target}", problem)
        plans.append(kernels(plan))
    problem = None
    if plans[0] > plans[1]:
        problem = f"{plans[0]} kernels with {asked or 'the default'}, {plans[1]} with {without or 'the default'}"
    elif wanted is not None and plans[0] != wanted:
        problem = f"{plans[0]} kernels, not {wanted}"
    report.check(f"{name}, {target}", problem)


def located(name, scratch):
    """The model's file: kept, shared, or filled from a shared skeleton; None: it cannot be had."""
    shared = pathlib.Path(os.environ.get("FERRULE_SHARED") or harness.ROOT.parent / "shared" / "models")
    for folder in ("real", "quantized"):
        if (shared / folder / name / "model.onnx").is_file():
            return shared / folder / name / "model.onnx"
    skeleton = shared / "generated" / name / "skeleton.onnx"
    if skeleton.is_file():
        sys.path.insert(0, str(HERE / "generated"))
        import fill
        out = scratch / f"{name}.onnx"
        onnx.save(fill.materialize(onnx.load(str(skeleton), load_external_data=False)), str(out))
        return out
    try:
        return fetch.model_file(name) if name in fetch.MODELS else None
    except fetch.Unavailable:
        return None


def main():
    report = harness.Report()
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        for k, (name, text, target, asked, without, wanted) in enumerate(GRAPHS):
            model = scratch / f"graph{k}.onnx"
            onnx.save(golden.build(text), str(model))
            compare(report, name, model, target, asked, without, wanted)
        for name in MODELS:
            model = located(name, scratch)
            if not model:
                report.skip(name, "it is neither kept here nor in shared test material")
                continue
            for target in TARGETS:
                plan, problem = explained(model, target, ())
                if problem:
                    report.check(f"{name}, {target}", problem)
                    continue
                fired = {layer["rule"] for layer in plan["layers"]}
                for rule in sorted(fired.intersection(RULES)):
                    if (name, target, rule) in OPEN:
                        report.skip(f"{name} with {rule}, {target}", "an open case: the plan has more kernels than without the rule")
                        continue
                    compare(report, f"{name} with {rule}", model, target, (), ("--disable", rule))
                if target == "sm_90":
                    compare(report, f"{name} with tf32", model, target, ("--enable", "tf32"), ())
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
