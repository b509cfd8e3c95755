"""Kernel cases planned, whole models through the CUDA backend on stub libraries, on any machine: f32 results as stored, shorter types by the
fp64 arbiter, kernels launched as `explain` promised, nothing interpreted on the host; plans of the libraries measured by `tune` and taken from its file; attention; the tf32 rule;
what is said where cuDNN or cuBLASLt is missing. Last line: "N passed, N failed".

With --full (or FERRULE_TEST_FULL=1) more and larger models, which the stubs take minutes for.
"""
import json
import os
import pathlib
import re
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE.parent / "models"), str(HERE)]

import arbiter  # noqa: E402
import cases  # noqa: E402
import fetch  # noqa: E402
import harness  # noqa: E402
import stubs  # noqa: E402
import tolerance  # noqa: E402

CUDA = ("--backend", "cuda")
FULL = bool(os.environ.get("FERRULE_TEST_FULL")) or "--full" in sys.argv
MODELS = ["mnist_cntk", "ppocr_v2_cls", "mobilenet_v2"] + (["rfb320", "light_squeezenet", "unet", "resnet50_bn"] if FULL else [])
# What is judged by the fp64 arbiter. tf32 is what the stubs make of it: factors cut to its bits, sums in f32.
REDUCED = [("mnist_cntk", "f16"), ("mnist_cntk", "bf16"), ("mnist_cntk", "tf32"), ("ppocr_v2_cls", "f16")]
REDUCED += [(name, kind) for name in ("ppocr_v2_cls", "mobilenet_v2", "rfb320", "unet", "resnet50_bn") for kind in arbiter.KINDS
            if (name, kind) not in REDUCED] if FULL else []
ARBITERS = {}
TF32 = arbiter.rules("tf32")
# A convolution with a tail that f32 does not take inside, a product with one that it does.
BOTH = "(float[1,4,6,6] x, float[9,16] m) => (float[1,8,6,6] y, float[9,8] z) <float[8,4,1,1] w = {%s}, float[16,8] k = {%s}> " \
       "{ c = Conv(x, w) s = Sigmoid(c) y = Mul(c, s) p = MatMul(m, k) z = Relu(p) }" % (
           ", ".join(str((n % 7 - 3) / 4) for n in range(32)), ", ".join(str((n % 5 - 2) / 4) for n in range(128)))


def planned(report):
    """All kernel cases of a GPU (cases.py) as one model: planned, and with a kernel each but those said to have none."""
    path = report.folder / "cases.onnx"
    cases.joined(path, cases.all_cases(list(cases.FLOATS)))
    answer, problem = harness.answer(harness.run("explain", path, "--target", "sm_90", "--json", timeout=300))
    if not problem:
        interpreted = {n.split(":")[0] for layer in answer["layers"] if layer["contract"] == "interpret" for n in layer["nodes"]}
        problem = None if interpreted == cases.INTERPRETED else f"interpreted: {sorted(interpreted ^ cases.INTERPRETED)}"
    report.check("every kernel case is planned", problem)


def arbiter_of(name, folder, scratch):
    """The arbiter of one model; made once."""
    if name not in ARBITERS:
        (scratch / name).mkdir()
        ARBITERS[name] = arbiter.Arbiter(folder / "model.onnx", folder / "inputs.npz", scratch / name)
    return ARBITERS[name]


def whole(report, name, kind):
    """One model as a user runs it."""
    try:
        folder = pathlib.Path(fetch.locate(name))
    except fetch.Unavailable as why:
        return report.skip(f"{name} {kind}", why)
    model, want, out = folder / "model.onnx", np.load(folder / "outputs.npz"), report.folder / f"{name}.{kind}.npz"
    extra = arbiter.rules(kind)
    done = stubs.run(report, "run", model, "--inputs", folder / "inputs.npz", "--outputs", out, "--force", "--json", *extra, *CUDA, timeout=800)
    answer, problem = harness.answer(done)
    problem = problem or stubs.wrong_use(done)
    report.check(f"{name} {kind} runs", problem)
    if problem:
        return None
    if kind == "f32":
        report.check(f"{name} {kind}: results as stored", tolerance.differences(np.load(out), want))
    else:
        judge = arbiter_of(name, folder, report.folder)
        exact = {k: v.astype(want[k].dtype) for k, v in judge.exact.items()}
        report.check(f"{name}: the arbiter", tolerance.differences(exact, want))
        report.check(f"{name} {kind}: as near as the interpreter", judge.unfit(kind) or judge.judge(kind, np.load(out)))
    inputs = np.load(folder / "inputs.npz")
    shapes = [o for i in inputs.files for o in ("--shapes", f"{i}:{'x'.join(map(str, inputs[i].shape))}")]
    explained, problem = harness.answer(harness.run("explain", model, "--target", "sm_90", "--json", *extra, *shapes))
    promised = sum(layer["kernels"] for layer in explained["layers"]) if explained else problem
    report.check(f"{name} {kind}: kernels as promised", None if answer["kernels_launched"] == promised else f"{answer['kernels_launched']}, promised {promised}")
    interpreted = [line for line in done.err.splitlines() if "the host interprets it" in line]
    report.check(f"{name} {kind}: nothing is interpreted", "\n".join(interpreted) or None)
    return explained


def tuned(report):
    """Every plan of every library call is run, the file is written, another file changes what runs."""
    path, file, log = report.folder / "both.onnx", report.folder / "tuning.yaml", report.folder / "tune.log"
    harness.model(path, "g " + BOTH)
    done = stubs.run(report, "tune", path, "-o", file, "--seconds", "0.02", "--seed", "1", "--json", *CUDA, log=log)
    answer, problem = harness.answer(done)
    report.check("tune", problem or stubs.wrong_use(done))
    if problem:
        return
    launches = answer["launches"]
    calls = [row["problem"].split()[0] for row in launches if not row["problem"].startswith("generated ")]
    report.check("tune: the convolution and the product", None if calls == ["cudnn", "cublaslt"] else str(launches))
    report.check("tune: plans have names and times", None if all(len(row["us"]) >= 2 and {row["chosen"], row["usual"]} <= set(row["us"]) for row in launches) else str(launches))
    ran = set(log.read_text().splitlines())
    wanted = {"cudnn engine 0", "cudnn engine 1", "cublasLt algorithm 0", "cublasLt algorithm 1"}
    report.check("tune: every plan runs", None if wanted <= ran else f"not {wanted - ran}")
    report.check("tune: no plan that rounds more than the model allows", "engine 2 ran" if "cudnn engine 2" in ran else None)
    text = file.read_text()
    report.check("tune: the file names the GPU", None if 'machine: "Stub GPU"' in text and "target: sm_90" in text else text)

    # The other plan of each, whatever was the fastest here.
    others = {row["problem"]: max(row["us"], key=lambda name: (name != row["usual"], name)) for row in launches}
    uses = iter(others[p] for p in re.findall(r'problem: "(.*)"', text))
    file.write_text(re.sub(r"use: .*", lambda _: f'use: "{next(uses)}"', text))
    for what, options, wanted in (("without a file", (), {"cudnn engine 0", "cublasLt algorithm 0"}),
                                  ("with the file", ("--tuning", file), {"cudnn engine 1", "cublasLt algorithm 1"})):
        log.unlink()
        done = stubs.run(report, "verify", path, "--seed", "1", "--oracle", *options, *CUDA, log=log)
        ran = {line for line in log.read_text().splitlines() if line.startswith("cu")}
        problem = done.tail() if done.code or "warning" in done.err else stubs.wrong_use(done)
        report.check(f"plans {what}", problem or (None if ran == wanted else f"ran {ran}, not {wanted}"))
    file.write_text(file.read_text().replace("Stub GPU", "Another GPU"))
    done = stubs.run(report, "run", path, "--seed", "1", "--tuning", file, *CUDA)
    report.check("a file of another GPU is warned about", None if "was measured on Another GPU for sm_90, this is Stub GPU and sm_90" in done.err else done.tail())


def transformer(path, layers=2, width=64, heads=4, length=24):
    """Blocks as exporters write them, in float, with a mask of keys; weights drawn."""
    import onnx
    from onnx import numpy_helper
    size = width // heads
    head = f"float[2,{length},{width}] x0, float[2,1,1,{length}] m"
    text, weights = [], {}
    for n in range(layers):
        weights |= {f"{w}{n}": (width, width) for w in ("wq", "wk", "wv", "wo")} | {f"g{n}": (width,), f"b{n}": (width,), f"wf{n}": (width, 2 * width), f"wg{n}": (2 * width, width)}
        for part, perm in (("q", "0,2,1,3"), ("k", "0,2,3,1"), ("v", "0,2,1,3")):
            text.append(f"{part}{n} = MatMul(x{n}, w{part}{n}) {part}r{n} = Reshape({part}{n}, split) {part}t{n} = Transpose<perm=[{perm}]>({part}r{n})")
        text.append(f"[Scores_{n}] s{n} = MatMul(qt{n}, kt{n}) t{n} = Mul(s{n}, scale) u{n} = Add(t{n}, m) p{n} = Softmax<axis=-1>(u{n}) o{n} = MatMul(p{n}, vt{n}) "
                    f"ot{n} = Transpose<perm=[0,2,1,3]>(o{n}) or{n} = Reshape(ot{n}, join) y{n} = MatMul(or{n}, wo{n}) r{n} = Add(y{n}, x{n}) "
                    f"h{n} = LayerNormalization<axis=-1>(r{n}, g{n}, b{n}) f{n} = MatMul(h{n}, wf{n}) a{n} = Relu(f{n}) d{n} = MatMul(a{n}, wg{n}) x{n + 1} = Add(d{n}, h{n})")
    model = harness.onnx_text(f"g ({head}) => (float[2,{length},{width}] x{layers}) <int64[4] split = {{2,{length},{heads},{size}}}, "
                              f"int64[3] join = {{2,{length},{width}}}, float scale = {{{size ** -0.5}}}> {{ {' '.join(text)} }}", opset=20)
    rng = np.random.default_rng(3)
    for name, dims in weights.items():
        values = rng.normal(0, dims[0] ** -0.5, dims) if len(dims) == 2 else np.full(dims, 1.0 if name[0] == "g" else 0.0)
        model.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
    onnx.save(model, path)
    mask = np.zeros((2, 1, 1, length), np.float32)
    mask[0, ..., :5] = mask[1, ..., -7:] = -np.inf
    np.savez(path.with_suffix(".npz"), x0=rng.normal(0, 1, (2, length, width)).astype(np.float32), m=mask)


def attended(report):
    """Attention in halves through cuDNN: planned, run, tuned; the generated kernel where cuDNN is not to be had or has no engine."""
    path, log = report.folder / "transformer.onnx", report.folder / "transformer.log"
    transformer(path)
    inputs, half = ("--inputs", path.with_suffix(".npz")), arbiter.rules("f16")
    stages = harness.run("explain", path, "--target", "sm_90", "--stage", "launches", *half)
    report.check("attention in halves is cuDNN's", None if stages.out.count(" cudnn attention ") == 2 else stages.out[-1500:] + stages.tail())
    for what, more, target in (("f32", (), "sm_90"), ("Turing", half, "sm_75"), ("strict", (*half, "--strict"), "sm_90")):
        text = harness.run("explain", path, "--target", target, "--stage", "launches", *more).out
        report.check(f"attention is generated: {what}", None if " cudnn attention " not in text and len(re.findall(r" attention \S+ <<<", text)) == 2 else text[-1500:])
    explained, problem = harness.answer(harness.run("explain", path, "--target", "sm_90", "--json", *half))
    said = [layer.get("numerics") for layer in explained["layers"] if layer["contract"] == "attention"] if explained else problem
    report.check("a mask of the model's input is said to deviate", None if said == ["library"] * 2 else str(said))
    compiled, problem = harness.answer(harness.run("compile", path, "--target", "sm_90", "--json", *half, timeout=300))
    counted = compiled and (compiled["others"].get("library call: attention"), len(compiled["kernels"]) + sum(compiled["others"].values()))
    promised = sum(layer["kernels"] for layer in explained["layers"]) if explained else None
    report.check("attention: compile counts as explain does", problem or (None if counted == (2, promised) else f"{counted}, explain says {promised}"))

    (report.folder / "transformer").mkdir()
    judge = arbiter.Arbiter(path, path.with_suffix(".npz"), report.folder / "transformer")

    def ran(what, kernel, warnings=0, **orders):
        """The run's result in half precision; what ran the two layers."""
        out = report.folder / "attended.npz"
        log.unlink(missing_ok=True)
        done = stubs.run(report, "run", path, *inputs, "--outputs", out, "--force", *half, *CUDA, log=log, timeout=300, **orders)
        problem = (done.tail() if done.code else None) or stubs.wrong_use(done)
        report.check(f"attention, {what}: the result", problem or judge.unfit("f16") or judge.judge("f16", np.load(out)))
        said = [line for line in done.err.splitlines() if "a generated kernel runs it" in line]
        report.check(f"attention, {what}: warnings", None if len(said) == warnings and {n for n in range(2) if any(f"Scores_{n} " in line for line in said)} == set(range(warnings)) else done.err[-800:])
        lines = log.read_text().splitlines() if log.exists() else []
        report.check(f"attention, {what}: what ran", None if sum("cudnn engine" in line for line in lines) == kernel else "\n".join(lines))

    plans = report.folder / "plans"
    ran("cuDNN", 2, plans=plans)
    built = len(plans.read_text().splitlines())
    report.check("attention: equal layers share a plan", None if built == 1 else f"{built} plans")
    ran("no cuDNN", 0, 2, hide=["libcudnn"])
    ran("no handle", 0, 2, fail="cudnnCreate:1=1001,cudnnCreate:2=1001")

    file = report.folder / "attended.yaml"
    done = stubs.run(report, "tune", path, "-o", file, "--seconds", "0.02", "--seed", "1", "--json", *half, *CUDA, timeout=300)
    answer, problem = harness.answer(done)
    rows = [row for row in answer["launches"] if row["problem"].startswith("cudnn attention")] if answer else []
    report.check("attention is tuned", problem or stubs.wrong_use(done) or (None if len(rows) == 1 and len(rows[0]["us"]) >= 2 else str(answer["launches"])))


def rounded(report):
    """tf32 by rule: said, taken, and gone from what is exported."""
    path, log = report.folder / "both.onnx", report.folder / "tf32.log"
    harness.model(path, "g " + BOTH)
    before, after = (harness.answer(harness.run("explain", path, "--target", "sm_90", "--json", *extra))[0]["layers"] for extra in ((), TF32))
    report.check("tf32 is said", None if all("tf32" in layer.get("numerics", "") for layer in after if layer["contract"] in ("conv", "gemm"))
                 and not any("tf32" in layer.get("numerics", "") for layer in before) else str(after))
    conv = {"before": [layer for layer in before if layer["contract"] == "conv"][0], "after": [layer for layer in after if layer["contract"] == "conv"][0]}
    report.check("with tf32 the swish is inside", None if (conv["before"]["operators"], conv["after"]["operators"], conv["after"]["kernels"]) == (["Conv"], ["Conv", "Swish"], 1) else str(conv))
    text = {how: harness.run("explain", path, "--target", "sm_90", *extra).out for how, extra in (("before", ()), ("after", TF32))}
    why = "library calls in f32 without tf32 have no swish"
    report.check("without it, explain prints why not", None if why in text["before"] and why not in text["after"] else str(text))
    done = stubs.run(report, "run", path, "--seed", "1", *TF32, *CUDA, log=log)
    ran = log.read_text() if log.exists() else ""
    report.check("tf32 runs", done.tail() if done.code else stubs.wrong_use(done) or (None if "cudnn engine" in ran else ran))
    out = report.folder / "tf32.onnx"
    done = harness.run("fuse", path, "-o", out, "--target", "sm_90", *TF32)
    problem = done.tail() if done.code else None
    if not problem:
        import onnx
        onnx.checker.check_model(onnx.load(out), full_check=True)
        problem = "the attribute is in the file" if b"precision" in out.read_bytes() else None
    report.check("an exported model is ONNX's", problem)
    compiled, problem = harness.answer(harness.run("compile", path, "--target", "sm_90", "--json"))
    total = len(compiled["kernels"]) + sum(compiled["others"].values()) if compiled else problem
    promised = sum(layer["kernels"] for layer in before)
    report.check("compile counts as explain does", None if total == promised else f"{total}, explain says {promised}")


def missing(report):
    """A library that the model needs is not there."""
    path = report.folder / "both.onnx"
    harness.model(path, "g " + BOTH)
    for library, what, layer in (("libcudnn", "cuDNN (libcudnn.so.9)", "Conv_0"), ("libcublasLt", "cuBLASLt (libcublasLt.so.13)", "MatMul_3")):
        for how in (CUDA, ("--require-device",)):
            done = stubs.run(report, "run", path, "--seed", "1", *how, hide=[library])
            report.check(f"no {library}, {how[0]}", harness.refusal(done, harness.ENVIRONMENT, re.escape(what) + " cannot be loaded", layer, seconds=30))
        done = stubs.run(report, "verify", path, "--seed", "1", "--oracle", hide=[library])
        warnings = [line for line in done.err.splitlines() if line.startswith("warning")]
        said = len(warnings) == 1 and re.match(rf"warning: no GPU runs the model: .*{layer}.*: {re.escape(what)} cannot be loaded: .*; backend cpu runs it, planned for this processor$", warnings[0])
        report.check(f"no {library}, auto: the CPU runs it", None if done.code == 0 and said and "on cpu against" in done.out else done.tail() + done.out[-300:])
    pointwise = report.folder / "pointwise.onnx"
    harness.model(pointwise, "g (float[4,96] x) => (float[4,96] y) { y = Relu(x) }")
    done = stubs.run(report, "run", pointwise, "--seed", "1", hide=["libcudnn", "libcublasLt"])
    report.check("a model that needs neither runs on the GPU", None if done.code == 0 and "warning" not in done.err and "ran on cuda" in done.err else done.tail())
    done = stubs.run(report, "doctor")
    report.check("doctor has their versions", None if all(re.search(rf"ok +{w}: version \d+\.\d+\.\d+", done.out) for w in ("cuDNN", "cuBLASLt")) else done.out)


def main():
    report = harness.Report()
    if not report.ready or not stubs.there(report):
        return report.finish()
    stubs.KEPT.mkdir(exist_ok=True)
    planned(report)
    if not (stubs.STUB / "libcudnn.so.9").exists():
        report.skip("models", "built without cuDNN's headers: neither its kernels nor a stub of it are there")
        return report.finish()
    for name in MODELS:
        whole(report, name, "f32")
    for name, kind in REDUCED:
        whole(report, name, kind)
    tuned(report)
    attended(report)
    rounded(report)
    missing(report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
