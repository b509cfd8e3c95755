"""Wrong rules are caught: shipped rewrites, each with one mistake seeded into its text and without the cases
that guard against it, must be refused by the check, by the proof at load, or be undone by the engine's
guarantees. What a user's rule of the same kind would meet is tried here: `--rules DIR` with that one file.
"""
import concurrent.futures
import re
import sys

import harness
from harness import ROOT, USAGE, refusal, run

# (rule, the mistake, what is written, what is written instead). The mistakes are those that rules in use
# elsewhere were seen with (section 14 of the fusion catalogue: a dtype, a rank, a value, an axis, a slot, an
# attribute not asked for), and slips of the pen in the replacement's arithmetic.
SEEDED = [
    ("batchnorm_scale", "the variance is not rooted", "Div(gamma, Sqrt(Add(var, {eps})))", "Div(gamma, Add(var, {eps}))"),
    ("batchnorm_scale", "epsilon is left out", "Sqrt(Add(var, {eps}))", "Sqrt(var)"),
    ("batchnorm_scale", "the mean is added", "Sub(beta, Mul(mean, k))", "Add(beta, Mul(mean, k))"),
    ("batchnorm_scale", "beta and gamma are swapped", "(x, gamma!, beta!, mean!, var!)", "(x, beta!, gamma!, mean!, var!)"),
    ("batchnorm_scale", "mean and variance are swapped", "gamma!, beta!, mean!, var!)", "gamma!, beta!, var!, mean!)"),
    ("cast_cast", "the inner type may be narrower", 'sound: "widens(dtype(x), dtype(t))"', 'sound: "true"'),
    ("cast_cast", "integers wrap where floats saturate", r"/  - \{id: wraps.*\n/", ""),
    ("cast_noop", "any Cast goes", 'sound: "dtype(x) == dtype(y)"', 'sound: "itemsize(x) == itemsize(y)"'),
    ("clip_clip", "the lower bound is the first's", "lo = Min(Max(a, c), d)", "lo = Min(a, d)"),
    ("clip_clip", "the upper bound is the first's", "hi = Min(Max(b, c), d)", "hi = Min(b, d)"),
    ("clip_clip", "bounds are swapped", "Clip(x, lo, hi)", "Clip(x, hi, lo)"),
    ("clip_relu", "the upper bound stays", "Max(hi, 0))", "hi)"),
    ("clip_relu", "the lower bound stays", "Clip(x, Max(lo ?? 0, 0),", "Clip(x, lo,"),
    ("concat_one", "any Concat goes", "Concat<axis=$a>(x)", "Concat<axis=$a>(x, rest...)"),
    ("conv_batchnorm", "the bias is not shifted", "Add(Mul(Sub(B ?? 0, mean), k), beta)", "Add(Mul(B ?? 0, k), beta)"),
    ("conv_batchnorm", "the bias is not scaled", "Add(Mul(Sub(B ?? 0, mean), k), beta)", "Add(Sub(B ?? 0, mean), beta)"),
    ("conv_batchnorm", "input channels are scaled", "{[-1] + repeat(1, rank(W) - 1)}", "{[1, -1] + repeat(1, rank(W) - 2)}"),
    ("conv_batchnorm", "a training one is taken", "training_mode=0, ...>", "...>"),
    ("conv_batchnorm", "attributes are lost", "conv<...conv>(x, W2, B2)", "Conv(x, W2, B2)"),
    ("conv_bias", "any addend", 'sound: "bcast(b, t) in [scalar, channel] and not raises_rank(b, t)"', 'sound: "true"'),
    ("conv_bias", "the addend may raise the rank", " and not raises_rank(b, t)", ""),
    ("conv_bias", "the old bias is forgotten", "Add(B ?? 0, Expand(", "Add(0, Expand("),
    ("conv_scale", "the bias is not scaled", "B2 = Mul(B ?? 0, Expand(", "B2 = Add(B ?? 0, Expand("),
    ("conv_scale", "one factor a row counts as one a channel", "in [scalar, channel]", "in [scalar, channel, row]"),
    ("deconv_batchnorm", "groups are forgotten", "{[groups, dim(W, 0) / groups, dim(W, 1), -1]}", "{[1, dim(W, 0), dim(W, 1), -1]}"),
    ("deconv_batchnorm", "the wrong axis of the weights", "Reshape(k, {[groups, 1, dim(W, 1), 1]})", "Reshape(k, {[groups, dim(W, 1), 1, 1]})"),
    ("expand_noop", "equal ranks are enough", 'sound: "same_shape(x, y)"', 'sound: "rank(x) == rank(y)"'),
    ("flatten_noop", "equal sizes are enough", 'sound: "same_shape(x, y)"', 'sound: "numel(x) == numel(y)"'),
    ("gelu_erf", "the tanh form is another function", 'approximate="none"', 'approximate="tanh"'),
    ("gemm_batchnorm", "beta may be anything", "alpha=1.0, beta=1.0, ...", "alpha=1.0, ..."),
    ("gemm_batchnorm", "weights either way round", "if tb != 0 then [-1, 1] else [1, -1]", "[-1, 1]"),
    ("hard_sigmoid", "another slope", "alpha=0.16666667, beta=0.5", "alpha=0.2, beta=0.5"),
    ("hard_swish", "another function", "y = HardSwish(x)", "y = HardSigmoid(x)"),
    ("idempotent", "any two of them", 'sound: "op(first) == op(second)"', 'sound: "true"'),
    ("idempotent", "Neg is none of them", "{Relu|Abs|Ceil|Floor|Round|Sign}", "{Relu|Abs|Ceil|Floor|Round|Sign|Neg}"),
    ("instance_norm", "any axes", r"/  - \{id: spatial.*\n/", ""),
    ("instance_norm", "scale and bias are swapped", "(x, s, b)", "(x, b, s)"),
    ("involution", "any two of them", 'sound: "op(first) == op(second)"', 'sound: "true"'),
    ("involution", "Reciprocal of Abs", "{Neg|Not|BitwiseNot}", "{Neg|Not|BitwiseNot|Abs}"),
    ("layer_norm", "any axes", r"/  - \{id: last_axes.*\n/", ""),
    ("layer_norm", "the variance is over other axes", r"/  - \{id: same_axes.*\n/", ""),
    ("layer_norm", "a default instead of the epsilon", "epsilon={value(eps)}", "epsilon=0.00001"),
    ("layer_norm_bias", "any addend", r"/  - \{id: bias.*\n/", ""),
    ("log_softmax", "the last axis", "LogSoftmax<axis=$a>(x)", "LogSoftmax<axis=-1>(x)"),
    ("log_softmax", "not the logarithm", "y = Log(s)", "y = Exp(s)"),
    ("matmul_batchnorm", "the sign of the mean", "Sub(0, mean)", "Sub(mean, 0)"),
    ("mish", "Sigmoid for Tanh", "Mul(x, Tanh(Softplus(x)))", "Mul(x, Sigmoid(Softplus(x)))"),
    ("norm_scale", "the scale that it has is dropped", r"/  - \{id: unit.*\n/", ""),
    ("norm_scale", "any factor", r"/  - \{id: scale.*\n/", ""),
    ("pad_avgpool", "pads that are not counted", r"/  - \{id: counted.*\n/", ""),
    ("pad_avgpool", "a crop", r"/  - \{id: non_negative.*\n/", ""),
    ("pad_avgpool", "any padding value", r"/  - \{id: zero.*\n/", ""),
    ("pad_avgpool", "ceil_mode", r"/  - \{id: rounding.*\n/", ""),
    ("pad_conv", "any padding value", r"/  - \{id: zero.*\n/", ""),
    ("pad_conv", "a reflected padding", 'Pad<mode="constant">', "Pad<...>"),
    ("pad_conv", "a crop", r"/  - \{id: non_negative.*\n/", ""),
    ("pad_conv", "its own pads are forgotten", 'pads_sum(resolved_pads(conv), values(p))', "pads_sum(values(p), values(p))"),
    ("pad_maxpool", "zeros instead of minus infinity", 'sound: "value(v) == -inf"', 'sound: "value(v) == 0"'),
    ("pad_noop", "the sum is 0", 'sound: "all(a in values(p): a == 0)"', 'sound: "sum(a in values(p): a) == 0"'),
    ("reduce_l1", "no Abs", "a = Abs(x)", "a = Neg(x)"),
    ("reduce_l2", "keepdims is lost", "ReduceL2<keepdims=$k, ", "ReduceL2<"),
    ("reduce_log_sum_exp", "a plain sum", "Exp(x)", "Sqrt(x)"),
    ("reduce_to_pool", "any axes", r"/  - \{id: spatial.*\n/", ""),
    ("relu_clip", "the lower bound stays", "Clip(x, Max(lo ?? 0, 0), hi)", "Clip(x, lo, hi)"),
    ("rms_norm", "any axes", r"/  - \{id: last_axes.*\n/", ""),
    ("scale_erase", "0 for all of them", "if tag('add') or tag('sub') then 0 else 1", "0"),
    ("scale_erase", "the constant may spread the operand", r"/  - \{id: same_shape.*\n/", ""),
    ("scale_erase", "0 - x is not x", "Sub(x, k!)", "Sub(k!, x)"),
    ("scale_erase", "close to one is not one", 'sound: "equals(k, if', 'sound: "near(k, if'),
    ("silu", "not the same value", "Mul(x, Sigmoid(x))", "Mul(z, Sigmoid(x))"),
    ("slice_noop", "a part of it", r"/  - \{id: same_shape.*\n/", ""),
    ("softmax", "two axes", r"/  - \{id: one_axis.*\n/", ""),
    ("softmax", "the sum over another axis", r"/  - \{id: same_axis.*\n/", ""),
    ("softplus", "minus one", "Add(Exp(x), 1)", "Sub(Exp(x), 1)"),
    ("swish", "the factor may raise the rank", r"/  - \{id: rank.*\n/", ""),
    ("tile_noop", "repeated once or more", 'sound: "same_shape(x, y)"', 'sound: "true"'),
    ("transpose_noop", "an inverse is not the identity", 'is_identity_perm(p)', "perm_inverse(p) == p"),
    ("transpose_transpose", "the wrong way round", "perm_compose(p, q)", "perm_compose(q, p)"),
    ("view_back", "any two views", 'sound: "same_shape(x, y)"', 'sound: "rank(x) == rank(y)"'),
]
ANY_MODEL = "agraph (float[2,3] x) => (float[2,3] y) { y = Tanh(x) }"


def without_holds(text):
    """The rule with its firing cases only: its author thought of nothing that could go wrong."""
    cut = text.find("\n  holds:")
    return text if cut < 0 else text[:cut + 1]


def seeded(rule, old, new):
    path = next((ROOT / "rules").rglob(f"{rule}.yaml"))
    text = without_holds(path.read_text())
    if old.startswith("/"):
        changed, count = re.subn(old[1:-1], new, text, count=1)
    else:
        changed, count = text.replace(old, new), text.count(old)
    assert count, f"{rule}: {old!r} is not in {path}"
    # A block list left without items is no list.
    return re.sub(r"^where:\n(?=\w)", "", changed, flags=re.MULTILINE)


def attempt(number, entry, folder, model):
    rule, mistake, old, new = entry
    rules = folder / str(number)
    (rules / "rewrites").mkdir(parents=True)
    (rules / "rewrites" / f"{rule}.yaml").write_text(seeded(rule, old, new))
    done = run("explain", model, "--rules", rules, "--no-cache", "--target", "cpu-avx2", timeout=60)
    return refusal(done, USAGE, rule, seconds=20, errors=20) or other_refusal(done), done


def other_refusal(done):
    """A rule that cannot be read is no wrong rule: None, or what refused it instead of its proof."""
    kinds = set(re.findall(r"^error\[(\w+)\]", done.err, re.MULTILINE))
    return None if kinds == {"rule_unproven"} else f"refused as {', '.join(sorted(kinds))}, not by its proof; {done.tail()}"


def main():
    report = harness.Report()
    if not report.ready:
        return report.finish()
    model = harness.model(report.folder / "model.onnx", ANY_MODEL)
    verbose = "-v" in sys.argv
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        chosen = harness.by_turns(report, SEEDED, 6)
        jobs = [pool.submit(attempt, k, e, report.folder, model) for k, e in enumerate(chosen)]
        for entry, job in zip(chosen, jobs):
            problem, done = job.result()
            report.check(f"{entry[0]}: {entry[1]}", problem)
            if verbose:
                print(f"{entry[0]}: {entry[1]} [{done.seconds:.1f} s]\n    {done.err.strip()[:300]}")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
