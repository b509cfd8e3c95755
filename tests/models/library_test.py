"""No convolution and no product of floats runs in oneDNN's reference code, a hundred times slower than its other kernels: on
this processor, and limited to AVX2. Asked of tails that models have, and of whole models (those kept here and, where
it is, the shared test material). Last line: "N passed, N failed, N skipped".
"""
import os
import pathlib
import re
import sys
import tempfile

import onnx

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE.parent / "golden"), str(HERE)]

import golden  # noqa: E402
import harness  # noqa: E402
from kernels_test import located  # noqa: E402

TARGETS = ("host", "cpu-avx2")
MODELS = ("bert_mini", "gpt2_mini", "llama_step", "ppocr_v2_cls", "rfb320", "open_nsfw", "minilm_l6_int8")
# A tail: its lines, from p (the product or convolution) to y. r: of the result's size; B: for each column or channel.
TAILS = {
    "none": "y = Identity(p)",
    "bias": "y = Add(p, B)",
    "bias, residual": "t = Add(p, B)\n y = Add(t, r)",
    "residual, bias": "t = Add(p, r)\n y = Add(t, B)",
    "bias, residual, Relu": "t = Add(p, B)\n u = Add(t, r)\n y = Relu(u)",
    "bias, Relu": "t = Add(p, B)\n y = Relu(t)",
    "bias, Sigmoid": "t = Add(p, B)\n y = Sigmoid(t)",
    "Swish": "t = Sigmoid(p)\n y = Mul(p, t)",
    "bias, Gelu": "t = Add(p, B)\n y = Gelu(t)",
    "bias, Tanh, residual": "t = Add(p, B)\n u = Tanh(t)\n y = Add(u, r)",
    "bias, factor": "t = Add(p, B)\n y = Mul(t, B)",
    "gate": "t = Sigmoid(p)\n y = Mul(t, r)",
    "HardSwish": "t = Add(p, B)\n y = HardSwish(t)",
}
# oneDNN 3.2 has no kernel for AVX2 of groups with a sum behind another step than the bias. No model known has it.
ONLY_REFERENCE = {("Conv of groups", "bias, Tanh, residual")}
ANCHORS = {
    "MatMul": ("float[2,12,64] x, float[2,12,32] r", "float[2,12,32] y", "float[64,32] W, float[32] B", "p = MatMul(x, W)"),
    "MatMul of two": ("float[2,12,64] x, float[2,64,32] z, float[2,12,32] r", "float[2,12,32] y", "float[32] B", "p = MatMul(x, z)"),
    "Gemm": ("float[12,64] x, float[12,32] r", "float[12,32] y", "float[32,64] W, float[32] B, float[32] C", "p = Gemm<transB=1>(x, W, C)"),
    "Conv": ("float[1,16,14,14] x, float[1,32,14,14] r", "float[1,32,14,14] y", "float[32,16,3,3] W, float[32,1,1] B",
             "p = Conv<pads=[1,1,1,1]>(x, W)"),
    "Conv 1x1": ("float[1,16,14,14] x, float[1,32,14,14] r", "float[1,32,14,14] y", "float[32,16,1,1] W, float[32,1,1] B", "p = Conv(x, W)"),
    "Conv of groups": ("float[1,16,14,14] x, float[1,32,14,14] r", "float[1,32,14,14] y", "float[32,4,3,3] W, float[32,1,1] B",
                       "p = Conv<pads=[1,1,1,1], group=4>(x, W)"),
    "ConvTranspose": ("float[1,16,7,7] x, float[1,32,14,14] r", "float[1,32,14,14] y", "float[16,32,2,2] W, float[32,1,1] B",
                      "p = ConvTranspose<strides=[2,2]>(x, W)"),
}


def graph(anchor):
    """The anchor once with each tail, on inputs of its own."""
    inputs, result, weights, line = ANCHORS[anchor]
    all_inputs, results, lines = [], [], []
    for k, (name, tail) in enumerate(TAILS.items()):
        if (anchor, name) in ONLY_REFERENCE:
            continue
        def numbered(text, k=k):
            return re.sub(r"\b([ptuyxzr])\b", rf"\g<1>{k}", text)
        all_inputs.append(numbered(inputs))
        results.append(numbered(result))
        lines += numbered(f"{line}\n{tail}").splitlines()
    return f"agraph ({', '.join(all_inputs)}) => ({', '.join(results)}) <{weights}> {{\n" + "\n".join(lines) + "\n}"


def reference_code(model, target):
    """What of oneDNN's primitives is reference code, or how the program ended."""
    env = {**os.environ, "ONEDNN_VERBOSE": "profile_create"}
    done = harness.run("run", model, "--target", target, "--no-cache", env=env, timeout=300)
    if done.code != harness.OK:
        return done.tail()
    made = re.findall(r"^onednn_verbose,create.*,cpu,(?:convolution|deconvolution|matmul|inner_product),.*$", done.out, re.MULTILINE)
    slow = [line for line in made if ",ref" in line]
    return slow[0][:400] if slow else None


def main():
    report = harness.Report()
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        for anchor in ANCHORS:
            model = scratch / "model.onnx"
            onnx.save(golden.build(graph(anchor)), str(model))
            for target in TARGETS:
                report.check(f"{anchor}, {target}", reference_code(model, target))
        for name in MODELS:
            model = located(name, scratch)
            for target in TARGETS:
                if model is None:
                    report.skip(f"{name}, {target}", "it is in the shared test material only")
                else:
                    report.check(f"{name}, {target}", reference_code(model, target))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
