"""The CUDA backend on stub libraries, on any machine: results against the reference backend, launches as promised, CUDA
graphs, what it says where something is missing or goes wrong. Last line: "N passed, N failed".

usage: backend_test.py [--bless]      --bless: writes the launches as they are now to golden.log; read the diff
"""
import difflib
import json
import os
import pathlib
import re
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE)]

import harness  # noqa: E402
import stubs  # noqa: E402
import tolerance  # noqa: E402

CUDA = ("--backend", "cuda", "--no-cache")

MODELS = {
    # Only generated kernels: what is launched can be counted.
    "pointwise": "(float[4,96] x, float[96] b) => (float[4,96] y) { s = Add(x, b) r = Relu(s) y = Mul(r, x) }",
    "broadcast": "(float[2,3,5,7] x, float[3,1,1] b) => (float[2,3,5,7] y, float[2,3,5,7] z) { y = Add(x, b) z = Tanh(y) }",
    "rows": "(float[6,130] x) => (float[6,130] y, float[6,1] m) <int64[1] axes = {-1}> "
            "{ y = Softmax<axis = -1>(x) m = ReduceMean<keepdims = 1>(x, axes) }",
    # Two launches of one kernel, many blocks each.
    "long": "(float[1,70000] x) => (float[1,70000] y, float[1,1] m) <int64[1] axes = {-1}> "
            "{ y = Softmax<axis = -1>(x) m = ReduceMax<keepdims = 1>(x, axes) }",
    "norm": "(float[3,5,64] x, float[64] g, float[64] b) => (float[3,5,64] y) "
            "{ y = LayerNormalization<axis = -1, epsilon = 0.00001>(x, g, b) }",
    "moves": "(float[3,40,50] x, float[3,10,40] z) => (float[3,60,40] y) "
             "{ t = Transpose<perm = [0, 2, 1]>(x) y = Concat<axis = 1>(t, z) }",
    "gather": "(float[9,20] x, int64[2,3] i) => (float[2,3,20] y) { g = Gather<axis = 0>(x, i) y = Sigmoid(g) }",
    "half": "(float16[8,64] x) => (float16[8,64] y) { s = Exp(x) y = Softmax<axis = -1>(s) }",
    "copies": "(float[4,4] x) => (float[4,4] y, float[16] z, float[4,4] same) "
              "<int64[1] flat = {16}> { y = Neg(x) z = Reshape(x, flat) same = Identity(x) }",
    # The second and third parts begin inside of 16 bytes, and are as long as whole packs.
    "slices": "(float[1,37] x) => (float[1,1] y, float[1,4] z, float[1,32] w) <int64[3] n = {1,4,32}> "
              "{ s = Softmax<axis = -1>(x) a, b, c = Split<axis = 1>(s, n) y = LpNormalization<axis = -1>(a) z = Softmax<axis = -1>(b) w = Softmax<axis = -1>(c) }",
    "empty": "(float[0,4] x) => (float[0,4] y) { y = Exp(x) }",
}
# An operator without a kernel stands between two that have one: host and device take turns.
HOST = "(float[6,20] x) => (float[6,20] y) <int64 axis = {1}> { r = Relu(x) c = CumSum(r, axis) y = Sigmoid(c) }"


def model(report, name, text):
    path = report.folder / f"{name}.onnx"
    if not path.exists():
        harness.model(path, "g " + text)
    return path


def inputs(report, name, path):
    """Random inputs; indices in range."""
    import onnx
    out = report.folder / f"{name}.npz"
    rng = np.random.default_rng(7)
    arrays = {}
    for i in onnx.load(path).graph.input:
        dims = [d.dim_value for d in i.type.tensor_type.shape.dim]
        kind = onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type)
        arrays[i.name] = rng.integers(-9, 9, dims) if kind == np.int64 else rng.standard_normal(dims).astype(kind)
    np.savez(out, **arrays)
    return out


def right(report, name, text, counted=True):
    """One model, once: results, and launches as promised."""
    path = model(report, name, text)
    data = inputs(report, name, path)
    got, want, log = (report.folder / f"{name}.{kind}" for kind in ("got.npz", "want.npz", "log"))
    reference = harness.run("run", path, "--inputs", data, "--backend", "reference", "--outputs", want, "--force")
    done = stubs.run(report, "run", path, "--inputs", data, *CUDA, "--outputs", got, "--force", "--json", log=log)
    answer, problem = harness.answer(done)
    problem = problem or stubs.wrong_use(done) or (reference.tail() if reference.code else None)
    report.check(f"{name} runs", problem)
    if problem:
        return
    report.check(f"{name}: results", tolerance.differences(np.load(got), np.load(want)))
    report.check(f"{name}: says where it ran", None if (answer["backend"], answer["device"]) == ("cuda", "Stub GPU, sm_90") else str(answer))
    explained, problem = harness.answer(stubs.run(report, "explain", path, "--target", "sm_90", "--json"))
    promised = sum(layer["kernels"] for layer in explained["layers"]) if explained else problem
    report.check(f"{name}: kernels as promised", None if answer["kernels_launched"] == promised else f"{answer['kernels_launched']}, promised {promised}")
    if counted:
        launched = sum(line.startswith("launch ") for line in log.read_text().splitlines())
        report.check(f"{name}: the driver launches as many", None if launched == promised else f"{launched}, promised {promised}")


def graphs(report):
    """The first run launches one by one; later ones replay a graph, two of them around what the host computes."""
    for name, text, per_run in (("pointwise", MODELS["pointwise"], 1), ("broadcast", MODELS["broadcast"], 1), ("host", HOST, 2)):
        log = report.folder / f"{name}.graphs"
        done = stubs.run(report, "bench", model(report, name, text), *CUDA, "--seconds", "0.01", "--json", log=log)
        answer, problem = harness.answer(done)
        problem = problem or stubs.wrong_use(done)
        lines = log.read_text().splitlines() if log.exists() else []
        made = [n for n, line in enumerate(lines) if line.startswith("graph of")]
        replayed = [n for n, line in enumerate(lines) if line.startswith("graph launch of")]
        outs = [n for n, line in enumerate(lines) if line == lines[-1]]  # every run ends with the same copy
        runs = len(outs)
        if not problem and (len(made) != per_run or len(replayed) != (runs - 1) * per_run or runs < 3):
            problem = f"{len(made)} graphs made, {len(replayed)} launched in {runs} runs"
        if not problem and not outs[0] < made[0] < outs[1]:
            problem = "the graph is not made between the first run and the second"
        report.check(f"{name}: a CUDA graph from the second run on", problem)


# A constant, a value that two layers read, a gather with its fault, results in two places.
GOLDEN = "(float[8,4] x, int64[3] i) => (float[3,8] y, float[8,4] z) <float[4] b = {1, 2, 3, 4}> " \
         "{ s = Softmax<axis = -1>(x) t = Transpose<perm = [1, 0]>(s) y = Gather<axis = 0>(t, i) z = Add(s, b) }"


def observed(report):
    """Layer by layer, by plain launches: results, times, and a run that may be stopped."""
    for name, text in (("host", HOST), ("copies", MODELS["copies"]), ("norm", MODELS["norm"])):
        path = model(report, name, text)
        done = stubs.run(report, "verify", path, "--seed", "3", *CUDA, "--layers", "--json")
        answer, problem = harness.answer(done)
        problem = problem or stubs.wrong_use(done)
        rows = answer["layers"] if answer else []
        report.check(f"{name}: every layer's results", problem or (None if rows and all(r["ok"] for r in rows) else str(rows)))
        done = stubs.run(report, "bench", path, *CUDA, "--seconds", "0.01", "--layers")
        timed = re.findall(r"^ +\d+\.\d +\d+\.\d  ", done.out, re.MULTILINE)
        report.check(f"{name}: every layer's time", stubs.wrong_use(done) or (None if done.code == 0 and timed else done.tail() + done.out))
    path = model(report, "pointwise", MODELS["pointwise"])
    done = stubs.run(report, "run", path, "--seed", "1", *CUDA, "--timeout", "1000")
    report.check("a run with a time limit", stubs.wrong_use(done) or (None if done.code == 0 and "1 kernel launched" in done.err else done.tail()))
    done = stubs.run(report, "run", path, "--seed", "1", *CUDA, "--timeout", "0.001")
    report.check("a run that is stopped", harness.refusal(done, harness.LIMIT, "cancelled", seconds=20) or stubs.wrong_use(done))


def golden(report):
    """What is launched, with which arguments, in which order: nothing is computed."""
    log = report.folder / "golden.log"
    done = stubs.run(report, "run", model(report, "golden", GOLDEN), "--seed", "1", *CUDA, log=log, null=1)
    problem = done.tail() if done.code else stubs.wrong_use(done)
    report.check("a run that only records", problem)
    got = log.read_text() if log.exists() else ""
    expected = HERE / "golden.log"
    if "--bless" in sys.argv:
        expected.write_text(got)
    diff = "\n".join(difflib.unified_diff(expected.read_text().splitlines(), got.splitlines(), "wanted", "got", lineterm=""))
    report.check("launches, arguments and copies", diff or None)


def said(done, code, message, hint=None):
    """None if the error is exactly this line, else what is wrong."""
    problem = harness.crash(done) or stubs.wrong_use(done)
    if problem:
        return problem
    lines = [line for line in done.err.splitlines() if line.startswith("error")]
    if done.code != code or lines != [message]:
        return f"exit status {done.code}, wanted {code}, and\n  wanted {message}\n  {done.tail()}"
    return None if hint is None or f"hint: {hint}" in done.err else f"no hint {hint!r}; {done.tail()}"


def complaints(report):
    path = model(report, "pointwise", MODELS["pointwise"])

    def case(what, code, message, *arguments, hint=None, **orders):
        report.check(what, said(stubs.run(report, "run", path, "--seed", "1", "--no-cache", *(arguments or ("--backend", "cuda")), **orders),
                                code, message, hint))

    env, limit = harness.ENVIRONMENT, harness.LIMIT
    layer = "fusedPointwiseNode(Add_0, Relu_1, Mul_2)"
    missing = f"error[library_missing]: backend cuda: {stubs.DRIVER} cannot be loaded: libcuda.so.1.hidden: cannot open shared object file: No such file or directory"
    case("no driver", env, missing, hide=["libcuda"], hint="see ferrule doctor")
    case("no driver, --require-device", env, missing, "--require-device", hide=["libcuda"])
    case("a driver too old for us", env, "error[driver_old]: backend cuda: the NVIDIA driver supports CUDA 11.4; ferrule needs CUDA 12.0 or newer",
         driver=11040, hint="install a newer driver")
    case("a driver too old for NVRTC", env, "error[driver_old]: backend cuda: the NVIDIA driver supports CUDA 12.4; NVRTC 13.0 (libnvrtc.so.13) needs CUDA 13.0 or newer",
         driver=12040)
    case("no device", env, "error[no_device]: backend cuda: no GPU can be used: cuInit says CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)",
         devices=0, hint="see ferrule doctor")
    case("cuInit fails", env, "error[library_failed]: backend cuda: cuInit failed: CUDA_ERROR_UNKNOWN (unknown error)", fail="cuInit:1=999")
    case("no NVRTC", env, "error[library_missing]: backend cuda: NVRTC (libnvrtc.so.13 or .12) cannot be loaded: libnvrtc.so.13.hidden: cannot open shared object file: No such file or directory",
         hide=["libnvrtc"])
    case("another GPU than the plan's", env, "error[wrong_device]: backend cuda: the plan is for sm_75, the GPU is sm_90 (Stub GPU)",
         "--backend", "cuda", "--target", "sm_75")
    case("a GPU older than all that NVRTC knows", harness.UNSUPPORTED, "error[arch_unsupported]: CUDA kernel: NVRTC 13.0 does not generate code for sm_75, only for sm_90, sm_100",
         cc=75, archs="90 100")
    case("a plan for a CPU", env, "error[wrong_device]: backend cuda: the plan is for cpu-avx2, the GPU is sm_90 (Stub GPU)",
         "--backend", "cuda", "--target", "cpu-avx2")
    case("a CPU backend and --require-device", harness.USAGE, "error[usage]: --require-device: backend cpu runs on no GPU", "--backend", "cpu", "--require-device")
    case("too little memory", limit, "error[device_memory]: the model's inputs and outputs: the GPU has too little memory for cuMemAlloc of 3584 bytes: 744 of its 1000 bytes are free",
         memory=1000, hint="stop other programs on the GPU")
    case("a launch that is refused", env, f"error[library_failed]: {layer}: cuLaunchKernel failed: CUDA_ERROR_INVALID_VALUE (invalid argument)", fail="cuLaunchKernel:1=1")
    case("a module that is refused", env, f"error[library_failed]: {layer}: cuModuleLoadData failed: CUDA_ERROR_INVALID_IMAGE (device kernel image is invalid)",
         fail="cuModuleLoadData:1=200")
    case("the device is lost during a run", env, "error[device_lost]: run: the GPU stopped working, noticed in cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)",
         fail="kernel:1=700", hint="start the program again")
    done = stubs.run(report, "verify", path, "--seed", "1", *CUDA, "--layers", fail="kernel:1=700")
    report.check("verify --layers names the layer that breaks the device", said(
        done, env, f"error[device_lost]: {layer}: the GPU stopped working, noticed in cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)"))
    path = model(report, "gather", MODELS["gather"])
    np.savez(report.folder / "far.npz", x=np.zeros((9, 20), np.float32), i=np.full((2, 3), 9))
    done = stubs.run(report, "run", path, "--inputs", report.folder / "far.npz", *CUDA)
    report.check("an index out of range", said(done, harness.USAGE, "error[bad_shape]: Gather_0: index 9 is out of range for axis 0 of size 9"))


def choices(report):
    """auto and --require-device: who runs, and what is said."""
    path = model(report, "pointwise", MODELS["pointwise"])

    def ran(what, wanted, *arguments, warning=None, **orders):
        done = stubs.run(report, "run", path, "--seed", "1", "--no-cache", *arguments, **orders)
        warnings = [line for line in done.err.splitlines() if line.startswith("warning")]
        problem = done.tail() if done.code or f"ran on {wanted}:" not in done.err else stubs.wrong_use(done)
        if not problem and warnings != ([warning] if warning else []):
            problem = f"warnings {warnings}"
        report.check(what, problem)

    ran("auto takes the GPU", "cuda (Stub GPU, sm_90)")
    ran("the GPU's own target is planned for", "cuda (Stub GPU, sm_80)", "--backend", "cuda", cc=80)
    ran("a GPU that has no target of its own takes the nearest", "cuda (Stub GPU, sm_103)", cc=103)
    ran("a GPU that came after all targets takes the newest, and its driver compiles", "cuda (Stub GPU, sm_130)", cc=130)
    ran("a GPU that NVRTC does not know: its driver compiles", "cuda (Stub GPU, sm_100)", "--require-device", cc=100, archs="75 90")
    ran("a GPU that NVRTC knows an older one of", "cuda (Stub GPU, sm_89)", "--require-device", cc=89, archs="75 86 90")
    ran("a named target", "cuda (Stub GPU, sm_86)", "--target", "sm_80", cc=86)
    ran("auto for a CPU", "cpu", "--target", "cpu-avx2")
    ran("auto without a driver says nothing", "cpu", hide=["libcuda"])
    ran("auto without a device says nothing", "cpu", devices=0)
    ran("auto with a target of a GPU that is not there", "cpu", "--target", "sm_90", hide=["libcuda"],
        warning=f"warning: no GPU runs the model: {stubs.DRIVER} cannot be loaded: libcuda.so.1.hidden: cannot open shared object file: No such file or directory; backend cpu runs it, planned for this processor")
    ran("auto with a GPU that cannot be used", "cpu", driver=12040,
        warning="warning: no GPU runs the model: the NVIDIA driver supports CUDA 12.4; NVRTC 13.0 (libnvrtc.so.13) needs CUDA 13.0 or newer; backend cpu runs it, planned for this processor")
    spills = "its kernel has too few registers and moves 48 bytes a thread to and from memory (spills)"
    ran("a kernel that spills", "cuda (Stub GPU, sm_90)", "--require-device", warning=f"warning: fusedPointwiseNode(Add_0, Relu_1, Mul_2): {spills}", spill=48)
    answer, problem = harness.answer(stubs.run(report, "compile", path, "--target", "sm_90", "--json", "--no-cache", spill=48))
    kernels = [] if problem else answer["kernels"]
    report.check("compile warns of a kernel that spills", problem or (None if [k.get("warning") for k in kernels] == [spills] else kernels))
    ran("--require-device with a GPU", "cuda (Stub GPU, sm_90)", "--require-device")
    done = stubs.run(report, "doctor")
    report.check("doctor names driver and device", None if re.search(r"ok +NVIDIA driver: for CUDA 13\.0", done.out)
                 and re.search(r"ok +GPU: Stub GPU, sm_90, 4 multiprocessors, 1\.0 GiB", done.out) else done.out)
    done = stubs.run(report, "doctor", hide=["libcuda", "libnvrtc", "libcudnn", "libcublasLt"])
    wanted = ("NVIDIA driver", "GPU", "cuDNN", "cuBLASLt", "NVRTC")
    report.check("doctor names what is missing, with a remedy", None if all(
        re.search(rf"missing +{w}\b.*\n +\S", done.out) for w in wanted) else done.out)


# What gives memory and handles back reports nothing: it may fail without a word.
# cuEventElapsedTime outside of tuning: a run's device time is left 0 then.
QUIET = ("cuEventElapsedTime", "cuMemFree_v2", "cuMemFreeHost", "cuModuleUnload", "cuStreamDestroy_v2", "cuGraphDestroy", "cuGraphExecDestroy", "cuEventDestroy_v2")


def every_call(report):
    """The n-th call of the driver fails, for every n: one clear error, or the right end, never a crash."""
    path = model(report, "pointwise", MODELS["pointwise"])
    command = ("bench", path, *CUDA, "--seconds", "0.01", "--json")
    calls, log = report.folder / "calls", report.folder / "failing.log"
    stubs.run(report, *command, calls=calls, log=log)
    # Up to the third run's end: later ones are like the third.
    total = int(calls.read_text())
    last = min(total, 60)
    report.check("the small model calls the driver", None if last > 30 else f"only {total} times")
    failed = 0
    for n in range(1, last + 1):
        for code in (2, 700) if n % 2 or os.environ.get("FERRULE_TEST_FULL") else (1,):
            log.unlink(missing_ok=True)
            done = stubs.run(report, *command, fail=f"*:{n}={code}", log=log)
            what = re.search(r"(\w+) fails with", log.read_text() if log.exists() else "")
            called = what.group(1) if what else "?"
            problem = harness.crash(done) or stubs.wrong_use(done)
            if not problem and done.code == harness.OK:
                said = called in QUIET or "no CUDA graph" in done.err
                problem = None if said and code != 700 else f"call {n} ({called}) fails with {code} and nobody notices"
            elif not problem and len(done.errors()) != 1:
                problem = f"call {n} ({called}): {done.tail()}"
            failed += bool(problem)
            report.check(f"call {n} ({called}) fails with {code}", problem)


# Two layers that are one problem, and one with rows.
TUNED = "(float[32,160] x, float[32,160] w) => (float[32,160] y, float[32,160] z, float[32,160] s) { y = Sin(x) z = Sin(w) s = Softmax<axis = -1>(w) }"
SHAPES = {"pointwise": ["threads256", "threads128", "threads512"], "rows": ["warp32x4", "warp32", "warp32x2", "warp32x8"]}


def tuned(report):
    """tune measures the shapes of generated launches, once a problem; what its file names is launched; other names are said."""
    path = model(report, "tuned", TUNED)
    data, want, file, log = inputs(report, "tuned", path), report.folder / "tuned.want.npz", report.folder / "tuned.yaml", report.folder / "tuned.log"
    harness.run("run", path, "--inputs", data, "--backend", "reference", "--outputs", want, "--force")
    done = stubs.run(report, "tune", path, "--inputs", data, *CUDA, "--seconds", "0.01", "--json", "-o", file, log=log)
    rows, problem = harness.answer(done)
    problem = problem or stubs.wrong_use(done)
    rows = {row["problem"].split()[1]: row for row in rows["launches"]} if rows else {}
    if not problem and {kind: (row["usual"], sorted(row["us"])) for kind, row in rows.items()} != {kind: (s[0], sorted(s)) for kind, s in SHAPES.items()}:
        problem = str(rows)
    report.check("tune lists the shapes of generated launches", problem)
    if problem:
        return
    for command in (("tune", "-o", report.folder / "unused.yaml"), ("verify", "--layers"), ("bench",)):
        more = () if command[0] == "verify" else ("--seconds", "0.01")
        done = stubs.run(report, command[0], path, *command[1:], *more, "--seed", "1", *CUDA, caller=1)
        report.check(f"{command[0]} for a caller with a context of another device", stubs.wrong_use(done) or (done.tail() if done.code else None))
    report.check("no problem has a name of the model", next((row["problem"] for row in rows.values() if not re.fullmatch(r"generated \w+ [0-9a-f]{16}( f32:32x160:160\.1){2} aligned", row["problem"])), None))
    text, grids = file.read_text(), {}
    for kind, shapes in SHAPES.items():
        report.check(f"{kind}: the file names a shape", None if re.search(rf"generated {kind} .*\n    use: ({'|'.join(shapes)})\n", text) else text)

    def ran(what, *shapes, warnings=0):
        """As if tune had found these the fastest."""
        chosen = text
        for kind, shape in zip(SHAPES, shapes):
            chosen = re.sub(rf"(generated {kind} .*\n    use: ).*", rf"\g<1>{shape}", chosen)
        file.write_text(chosen)
        got = report.folder / "tuned.got.npz"
        log.unlink(missing_ok=True)
        done = stubs.run(report, "run", path, "--inputs", data, *CUDA, "--outputs", got, "--force", "--tuning", file, log=log)
        problem = done.tail() if done.code else stubs.wrong_use(done) or tolerance.differences(np.load(got), np.load(want))
        said = re.findall(r"^warning: .*the tuning file wants threads13, which this program does not have for it$", done.err, re.MULTILINE)
        if not problem and len(said) != warnings:
            problem = done.err
        report.check(what, problem)
        grids[shapes] = re.findall(r"^launch \w+ (\S+ of [^\s:]+)", log.read_text(), re.MULTILINE)

    ran("a run in the built-in shapes", "threads256", "warp32x4")
    ran("a run in other shapes", "threads128", "warp32x8")
    ran("a shape that there is not is said, and the built-in one runs", "threads13", "warp32x4", warnings=2)
    pointwise, rows = "5x1x1 of 256x1x1", "8x1x1 of 32x4x1"
    wanted = [[pointwise, pointwise, rows], ["10x1x1 of 128x1x1"] * 2 + ["4x1x1 of 32x8x1"], [pointwise, pointwise, rows]]
    report.check("the file's shapes are launched", None if list(grids.values()) == wanted else str(grids))
    file.write_text(re.sub(r"(generated pointwise .*\n    use: ).*", r"\g<1>threads128", text))
    done = stubs.run(report, "explain", path, "--stage", "launches", "--target", "sm_90", "--tuning", file)
    report.check("explain shows them", None if done.out.count("pointwise threads128 <<<10, 128x1>>>") == 2 else done.tail() + done.out)
    done = stubs.run(report, "compile", path, "--target", "sm_90", "--tuning", file, "--json", "--no-cache")
    answer, problem = harness.answer(done)
    report.check("compile compiles them", problem or (None if [k["shape"] for k in answer["kernels"]].count("threads128") == 2 else done.out))


def main():
    report = harness.Report()
    if not report.ready or not stubs.there(report):
        return report.finish()
    stubs.KEPT.mkdir(exist_ok=True)
    for name, text in MODELS.items():
        right(report, name, text, counted=name != "empty")  # nothing to do is not launched
    right(report, "host", HOST, counted=False)
    graphs(report)
    observed(report)
    golden(report)
    tuned(report)
    complaints(report)
    choices(report)
    every_call(report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
