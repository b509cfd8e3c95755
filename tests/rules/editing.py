"""Rules are data: the same program with an edited copy of rules/ plans differently and computes the same.

Also: the shipped rules pass `rules check` and `rules coverage`, and the kernels that explain promises are the
kernels that run launches, fused, unfused and with the edited copy.
"""
import re
import shutil
import sys

import numpy as np
import onnx
from onnx import numpy_helper

import harness
import tolerance
from harness import DIFFERS, OK, UNSUPPORTED, USAGE, answer, run

# conv -> relu, then conv -> max-pool -> relu -> an operator of the user's -> a factor.
MODEL = """
<ir_version: 10, opset_import: ["" : 18, "com.example" : 1]>
agraph (float[2,3,8,8] x) => (float[2,4,4,4] y) {
  [Conv_0] a = Conv <pads = [1,1,1,1]> (x, W)
  [Relu_1] b = Relu (a)
  [Conv_2] c = Conv <pads = [1,1,1,1]> (b, V)
  [Pool_3] d = MaxPool <kernel_shape = [2,2], strides = [2,2]> (c)
  [Relu_4] e = Relu (d)
  LAST
}
"""
CUSTOM = "[SoftClamp_5] f = com.example.SoftClamp <limit = 2.0> (e)\n  [Mul_6] y = Mul (f, k)"
PLAIN = "[Tanh_5] f = Tanh (e)\n  [Mul_6] y = Mul (f, k)"

OPERATOR = """ferrule: 1
doc: Operators of com.example.

ops:
  - op: SoftClamp
    domain: com.example
    in: [x]
    attrs: {limit: 3.0}
    types: [float]
    class: [activation]
    expr: "limit * tanh(x / limit)"
    source: a test
"""


def weights(rng):
    return {"W": rng.standard_normal((4, 3, 3, 3)).astype(np.float32) / 4,
            "V": rng.standard_normal((4, 4, 3, 3)).astype(np.float32) / 4, "k": np.float32([[[0.5]]])}


def convolution(x, w):
    """3x3, padded by 1, in f64."""
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, w.astype(np.float64))


def expected(x, w, custom):
    c = convolution(np.maximum(convolution(x, w["W"]), 0), w["V"])
    n, ch, h, v = c.shape
    e = np.maximum(c.reshape(n, ch, h // 2, 2, v // 2, 2).max(axis=(3, 5)), 0)
    return (2 * np.tanh(e / 2) if custom else np.tanh(e)) * 0.5


def build(path, last, w):
    model = onnx.parser.parse_model(MODEL.replace("LAST", last))
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), n) for n, v in w.items())
    onnx.save(model, str(path))
    return path


def edited(report):
    """A copy of rules/ with one rule off, one operator and one fusion added."""
    copy = report.folder / "rules"
    shutil.copytree(harness.ROOT / "rules", copy)
    rule = copy / "anchors" / "conv_activation.yaml"
    text = rule.read_text()
    text, count = re.subn(r"^enabled:.*$", "enabled: false", text, flags=re.MULTILINE)
    if not count:
        text = text.replace("phase: anchors\n", "phase: anchors\nenabled: false\n", 1)
    rule.write_text(text)
    (copy / "ops" / "my_company.yaml").write_text(OPERATOR)
    shutil.copy(harness.ROOT / "examples/add_fusion/rules/rewrites/relu_before_pool.yaml", copy / "rewrites")
    return copy


def layers(report, what, *arguments):
    value, problem = answer(run("explain", *arguments, "--json"))
    report.check(f"explain {what}", problem)
    return value["layers"] if value else []


def computes(report, what, model, wanted, plan, *extra):
    """Runs the model: the numbers, and as many kernels as explain promised."""
    out = report.folder / "out.npz"
    value, problem = answer(run("run", model, "--inputs", report.folder / "in.npz", "--outputs", out, "--force", "--json", *extra))
    report.check(f"run {what}", problem)
    if problem:
        return
    with np.load(out) as results:
        got = results["y"]
    report.check(f"run {what}: the numbers", tolerance.difference(got, wanted.astype(got.dtype)))
    promised = sum(layer["kernels"] for layer in plan)
    report.check(f"run {what}: the kernels", None if value["kernels_launched"] == promised
                 else f"explain promises {promised}, run launched {value['kernels_launched']}")


def names(plan):
    return [" + ".join(layer["nodes"]) for layer in plan]


def redefined(report):
    """A user's folder that gives Relu another meaning: only where it says so, and never for the oracle."""
    model = harness.model(report.folder / "relu.onnx", "agraph (float[64] x) => (float[64] y) { t = Relu (x) y = Abs (t) }")
    pack = report.folder / "mine"
    (pack / "ops").mkdir(parents=True)
    entry = pack / "ops" / "mine.yaml"

    def verify(replaces, *arguments):
        entry.write_text(f'ferrule: 1\nops:\n  - {{op: Relu, in: [x], types: [float], class: [activation], expr: "x + 1", {replaces}source: a test}}\n')
        # The shipped rewrites that name Relu are wrong about this one: without the flag they are proved again, and refused.
        return run("verify", model, "--rules", pack, "--backend", "cpu", "--allow-unproven", "*", *arguments)

    report.check("a second Relu is an error", harness.refusal(verify(""), USAGE, r"mine\.yaml:3", r"activation\.yaml:\d+", "replaces: true", seconds=60))
    done = verify("replaces: true, ")
    report.check("a Relu that replaces: fused and unfused are equal", harness.crash(done) or (None if done.code == OK else done.tail()))
    done = verify("replaces: true, ", "--oracle")
    report.check("a Relu that replaces: the oracle differs", harness.crash(done) or (None if done.code == DIFFERS else done.tail()))
    done = run("explain", model, "--rules", pack, "--allow-unproven", "*")
    report.check("a Relu that replaces: explain says so", None if done.code == OK and "operator Relu is what " in done.out + done.err else done.tail())
    entry.write_text('ferrule: 1\nops:\n  - {op: Concat, in: [x], expr: "x", source: a test}\n')
    report.check("a formula for what is computed in C++", harness.refusal(run("explain", model, "--rules", pack), USAGE, r"mine\.yaml:3", "Concat"))


def main():
    report = harness.Report()
    if not report.ready:
        return report.finish()
    rng = np.random.default_rng(5)
    w = weights(rng)
    x = rng.standard_normal((2, 3, 8, 8)).astype(np.float32)
    np.savez(report.folder / "in.npz", x=x)
    custom, plain = build(report.folder / "custom.onnx", CUSTOM, w), build(report.folder / "plain.onnx", PLAIN, w)
    copy = edited(report)

    # The shipped rules do not know the operator, and keep the pooling in front of the Relu.
    done = run("explain", custom)
    report.check("shipped rules: SoftClamp is unknown", harness.refusal(done, UNSUPPORTED, "SoftClamp_5", "com.example"))
    shipped = layers(report, "with the shipped rules", plain)
    report.check("shipped rules: Conv_0 takes Relu_1", None if "Conv_0 + Relu_1" in names(shipped) else names(shipped))
    report.check("shipped rules: Conv_2 is without Relu_4", None if any(
        {"Conv_2", "Relu_4"} <= set(layer["nodes"]) for layer in shipped) is False else names(shipped))
    computes(report, "with the shipped rules", plain, expected(x, w, False), shipped)

    # The copy: conv_activation is off, so Relu_1 stays alone; SoftClamp is pointwise and fuses with Mul.
    changed = layers(report, "with the edited copy", custom, "--rules", copy)
    report.check("edited copy: Conv_0 and Relu_1 are two layers", None if any(
        {"Conv_0", "Relu_1"} <= set(layer["nodes"]) for layer in changed) is False and changed else names(changed))
    report.check("edited copy: SoftClamp and Mul are one kernel", None if any(
        {"SoftClamp_5", "Mul_6"} <= set(layer["nodes"]) and layer["kernels"] == 1 for layer in changed) else names(changed))
    computes(report, "with the edited copy", custom, expected(x, w, True), changed, "--rules", copy)
    both = layers(report, "of one model, edited copy", plain, "--rules", copy)
    report.check("one model, one program, two plans", None if names(both) != names(shipped) else names(both))
    computes(report, "of one model, edited copy", plain, expected(x, w, False), both, "--rules", copy)

    # The added fusion decides something: with conv_activation on again, Conv_2 takes Relu_4.
    moved = layers(report, "with the added fusion", plain, "--rules", copy, "--enable", "conv_activation")
    report.check("added fusion: Conv_2 takes Relu_4", None if any(
        {"Conv_2", "Relu_4"} <= set(layer["nodes"]) for layer in moved) else names(moved))
    computes(report, "with the added fusion", plain, expected(x, w, False), moved, "--rules", copy, "--enable", "conv_activation")

    # Everything off: every node a layer, the same numbers.
    off = layers(report, "with --disable '*'", plain, "--disable", "*")
    report.check("--disable '*': nothing is fused", None if off and all(
        len(layer["nodes"]) <= 1 and not layer["rule"] for layer in off) else names(off))
    computes(report, "with --disable '*'", plain, expected(x, w, False), off, "--disable", "*")

    redefined(report)

    # All shipped rules; of the copy's, those that are not the same, and those whose groups hold the new operator. What
    # a proof does not decide in its time of computing is said there, and no failure here.
    changed, seconds = ["conv_*", "relu_before_pool", "pointwise*"], ["--seconds", "3"]
    for what, *arguments in (["rules check", "check"], ["rules check, edited copy", "check", "--rules", copy],
                             ["rules coverage", "coverage"],
                             ["rules coverage, edited copy", "coverage", *changed, *seconds, "--rules", copy]):
        done = run("rules", *arguments, timeout=600)
        found = "\n".join(re.findall(r"^(?:FAILED|WRONG|OPEN) .*", done.out, re.MULTILINE))
        report.check(what, harness.crash(done) or (None if done.code == OK else f"{found}\n{done.tail()}"))
        if what == "rules coverage":
            report.check("every condition is covered and decides", None if "conditions shown to be needed: " in done.out and
                         not re.search("never decide|nothing shows|no case reaches", done.out) else done.tail())
    fresh = report.folder / "pack"
    fresh.mkdir()
    run("rules", "new", fresh / "mine.yaml")
    done = run("rules", "test", "mine", "--rules", fresh, timeout=120)
    report.check("a rule made by `rules new` passes its tests", harness.crash(done) or (None if done.code == OK else done.tail()))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
