"""What is run on a machine with a GPU, from a bundle (bundle.py) or a checkout: every kind of kernel against the interpreter, models
against their stored outputs, bandwidths, and times against torch.compile and ONNX Runtime. Needs Python with numpy and onnx; torch and
onnxruntime where they are. Last line: "N passed, N failed, N skipped".

usage: device.py [--quick] [--results FILE] [--only kernels,models,bandwidth,peers,memcheck]
  --quick      a rehearsal: few cases, no times that mean anything (tests/gpu/run does it on stub libraries)
  --results    where the figures go, as JSON
"""
import argparse
import concurrent.futures
import contextlib
import datetime
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE.parent / "models"), str(HERE)]

import cases  # noqa: E402
import fetch  # noqa: E402
import harness  # noqa: E402

CUDA = ("--backend", "cuda", "--require-device")
BENCHED = ["resnet50_bn", "mobilenet_v2", "unet", "ddddocr_det", "vit_b_16", "bert_base"]
# README's tolerance of whole models, by element type: relative, absolute.
TOLERANCE = {"float32": (1e-4, 1e-5), "float16": (1e-2, 1e-3), "float64": (1e-9, 1e-11)}
GIB = 1 << 30


def ferrule(*arguments, timeout=300):
    done = harness.run(*arguments, timeout=timeout)
    return done, (None if done.code == 0 else done.tail())


def answer(*arguments, timeout=300):
    done, problem = ferrule(*arguments, "--json", timeout=timeout)
    if problem:
        return None, problem
    return json.loads(done.out), None


def first_line(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | harness.libraries()).stdout.strip().splitlines()[0]
    except (OSError, IndexError, subprocess.TimeoutExpired):
        return None


def surroundings():
    """Device and versions, as their owners say them."""
    out = {"date": datetime.date.today().isoformat(), "ferrule": first_line(harness.PROGRAM, "--version"),
           "driver and device": first_line("nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm", "--format=csv,noheader")}
    done, _ = answer("doctor")
    out["doctor"] = {c["what"]: c["detail"] for c in (done or {}).get("checks", [])}
    for name in ("torch", "onnxruntime", "onnx", "numpy"):
        with contextlib.suppress(ImportError):
            out[name] = __import__(name).__version__
    return out


# --- right ------------------------------------------------------------------------------------------------

def kernels(report, quick, results):
    """Each case on the device against the interpreter."""
    chosen = cases.quick_cases() if quick else list(cases.all_cases(list(cases.FLOATS)))

    def one(case):
        name, text = case
        path = report.folder / f"{name}.onnx"
        cases.write(path, text)
        done, problem = ferrule("verify", path, "--oracle", *CUDA)
        interpreted = re.findall(r"^.*(?:the host interprets it|a generated kernel runs it).*$", done.err, re.MULTILINE)
        return name, problem or (interpreted[0] if interpreted and name not in cases.INTERPRETED else None)

    # NVRTC and the interpreter take the time, not the device.
    with concurrent.futures.ThreadPoolExecutor(2 if quick else max(2, (os.cpu_count() or 2) // 2)) as pool:
        for name, problem in pool.map(one, chosen):
            report.check(f"kernel {name}", problem)
    results["kernels"] = {"cases": len(chosen)}


def closeness(got, want):
    """None, or where the two differ beyond the tolerance; and the largest difference relative to the largest element."""
    worst = 0.0
    for name in want.files:
        a, b = got[name].astype(np.float64), want[name].astype(np.float64)
        relative, absolute = TOLERANCE.get(want[name].dtype.name, (0, 0))
        if a.shape != b.shape:
            return f"{name}: shape {a.shape}, want {b.shape}", worst
        most = np.abs(b).max(initial=1.0)
        worst = max(worst, float(np.abs(a - b).max(initial=0) / most))
        if not (np.abs(a - b) <= relative * np.abs(b) + absolute * max(1.0, most)).all():
            return f"{name} differs by {worst:.2e} of the largest element", worst
    return None, worst


def same_winners(got, want):
    """Whether the largest element of each row of two-dimensional results is the same one."""
    for name in want.files:
        if want[name].ndim == 2 and want[name].shape[1] > 1 and (got[name].argmax(1) != want[name].argmax(1)).any():
            return f"{name}: another element is the largest"
    return None


def models(report, quick, results):
    rows = results["models"] = {}
    for name in ["mnist_cntk", "mobilenet_v2"] if quick else list(fetch.MODELS):
        try:
            folder = pathlib.Path(fetch.locate(name))
        except fetch.Unavailable as why:
            report.skip(name, why)
            continue
        want = np.load(folder / "outputs.npz")
        for kind, extra in (("f32", ()), ("f16", ("--enable", "half_*")), ("bf16", ("--enable", "bfloat_*"))):
            if quick and kind != "f32":
                continue
            out = report.folder / f"{name}.{kind}.npz"
            done, problem = answer("run", folder / "model.onnx", "--inputs", folder / "inputs.npz", "--outputs", out, "--force", *extra, *CUDA)
            if problem:
                report.check(f"{name} {kind}", problem)
                continue
            different, worst = closeness(np.load(out), want)
            # Shorter types are judged by their winners; the differences are reported.
            report.check(f"{name} {kind}", different if kind == "f32" else same_winners(np.load(out), want))
            rows[f"{name} {kind}"] = {"largest_difference": worst, "kernels": done["kernels_launched"]}


def memcheck(report, quick, results):
    tool = shutil.which("compute-sanitizer")
    if quick or not tool:
        return report.skip("compute-sanitizer", "it is not installed" if not tool else "no device in a rehearsal")
    for name, text in [c for c in cases.all_cases(["f32", "f16"]) if re.match(r"(softmax_(31|70000)|columns|transpose|concat|gather|pad$|conv_swish|attention|two_results)", c[0])]:
        path = report.folder / f"{name}.onnx"
        cases.write(path, text)
        for check in ("memcheck", "racecheck", "initcheck"):
            done = subprocess.run([tool, "--tool", check, "--error-exitcode", "99", harness.PROGRAM, "run", str(path), "--seed", "1", *CUDA],
                                  capture_output=True, text=True, timeout=300, env=os.environ | harness.libraries())
            report.check(f"{check} {name}", None if done.returncode == 0 else done.stdout[-600:] + done.stderr[-200:])


# --- fast -------------------------------------------------------------------------------------------------

def layer_time(path, *extra, seconds=0.3):
    """Microseconds of the slowest layer, the fastest of its runs."""
    done, problem = answer("bench", path, "--layers", "--seconds", seconds, *extra, *CUDA)
    return (max(t["min_us"] for t in done["layer_times"]), None) if done else (0, problem)


def bandwidth_cases(mib):
    """name, model, bytes read and written; `mib`: of the largest tensor."""
    n = mib << 20
    for t, size in (("float", 4), ("float16", 2)):
        count = n // size
        rows = count // 4096
        yield f"copy {t}", f"({t}[{rows},4096] x) => ({t}[{rows},4096] y) {{ y = Neg(x) }}", 2 * n
        yield f"pointwise {t}", f"({t}[{rows},4096] x, {t}[4096] k) => ({t}[{rows},4096] y) {{ a = Mul(x, k) b = Relu(a) c = Sigmoid(b) y = Add(c, x) }}", 2 * n
        yield f"two operands {t}", f"({t}[{rows},4096] x, {t}[{rows},4096] k) => ({t}[{rows},4096] y) {{ y = Add(x, k) }}", 3 * n
        yield f"softmax 4096 {t}", f"({t}[{rows},4096] x) => ({t}[{rows},4096] y) {{ y = Softmax<axis=-1>(x) }}", 2 * n
        yield f"softmax 128 {t}", f"({t}[{rows * 32},128] x) => ({t}[{rows * 32},128] y) {{ y = Softmax<axis=-1>(x) }}", 2 * n
        yield f"layer norm {t}", f"({t}[{rows * 4},1024] x, {t}[1024] g, {t}[1024] b) => ({t}[{rows * 4},1024] y) {{ y = LayerNormalization<axis=-1>(x, g, b) }}", 2 * n
        yield f"row sums {t}", f"({t}[{rows},4096] x) => ({t}[{rows},1] y) <int64[1] a = {{1}}> {{ y = ReduceSum(x, a) }}", n
        yield f"one sum {t}", f"({t}[{count}] x) => ({t}[1] y) <int64[1] a = {{0}}> {{ y = ReduceSum(x, a) }}", n
        yield f"column maxima {t}", f"({t}[{rows},4096] x) => ({t}[1,4096] y) <int64[1] a = {{0}}> {{ y = ReduceMax(x, a) }}", n
        yield f"transpose {t}", f"({t}[{rows},4096] x) => ({t}[4096,{rows}] y) {{ y = Transpose<perm=[1,0]>(x) }}", 2 * n
        yield f"concat {t}", f"({t}[{rows // 2},4096] x, {t}[{rows // 2},4096] z) => ({t}[{rows // 2},8192] y) {{ y = Concat<axis=1>(x, z) }}", 2 * n


def copy_bandwidth(mib):
    """What a copy on the device reaches, bytes read and written a second; None without torch."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    x = torch.randint(0, 255, (mib << 20,), dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    start, stop = torch.cuda.Event(True), torch.cuda.Event(True)
    best = float("inf")
    for _ in range(20):
        start.record()
        y.copy_(x)
        stop.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(stop))
    return 2 * (mib << 20) / (best * 1e-3)


def bandwidth(report, quick, results):
    rows = results["bandwidth"] = {}
    for mib in (1,) if quick else (64, 256):
        limit = None if quick else copy_bandwidth(mib)
        for name, text, moved in bandwidth_cases(mib):
            if quick and name not in ("copy float", "row sums float"):
                continue
            path = report.folder / "bandwidth.onnx"
            cases.write(path, text)
            us, problem = layer_time(path, seconds=0.01 if quick else 0.3)
            if problem:
                report.check(f"bandwidth {name} {mib} MiB", problem)
                continue
            report.check(f"bandwidth {name} {mib} MiB", None)
            rows[f"{name} {mib} MiB"] = {"us": us, "GB/s": moved / us / 1e3, "of_copy": moved / us * 1e6 / limit if limit else None}


def with_batch(path, batch, to):
    """A copy of the model for another batch; None where its first axes are no batch."""
    model = onnx.load(path)
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name not in {t.name for t in model.graph.initializer} and dims:
            dims[0].dim_value = batch
    del model.graph.value_info[:]
    for value in model.graph.output:
        if value.type.tensor_type.shape.dim:
            value.type.tensor_type.shape.dim[0].dim_param = "N"
    onnx.save(model, to)
    return to


class Torch:
    """The model compiled by torch.compile, max-autotune, with CUDA graphs."""

    def __init__(self, path, inputs):
        import torch
        from onnx_torch import OnnxModule
        self.torch = torch
        module = OnnxModule(onnx.load(path), torch.float16, "cuda").eval()
        self.inputs = [torch.from_numpy(x).cuda() for x in inputs]
        self.inputs = [x.half() if x.is_floating_point() else x for x in self.inputs]
        self.inputs = [x.to(memory_format=torch.channels_last) if x.dim() == 4 else x for x in self.inputs]
        self.run = torch.compile(module, mode="max-autotune")
        with torch.no_grad():
            for _ in range(5):
                self.run(*self.inputs)

    def time(self, repeats=50):
        torch, times = self.torch, []
        with torch.no_grad():
            for _ in range(repeats):
                start, stop = torch.cuda.Event(True), torch.cuda.Event(True)
                start.record()
                self.run(*self.inputs)
                stop.record()
                torch.cuda.synchronize()
                times.append(start.elapsed_time(stop))
        return statistics.median(times)


class OnnxRuntime:
    """f32 with CUDA, inputs and outputs on the device."""

    def __init__(self, path, inputs):
        import onnxruntime as ort
        if "CUDAExecutionProvider" not in ort.get_available_providers():
            raise ImportError("this onnxruntime has no CUDA provider")
        self.session = ort.InferenceSession(str(path), providers=["CUDAExecutionProvider"])
        self.binding = self.session.io_binding()
        for value, x in zip(self.session.get_inputs(), inputs):
            self.binding.bind_ortvalue_input(value.name, ort.OrtValue.ortvalue_from_numpy(x, "cuda", 0))
        for value in self.session.get_outputs():
            self.binding.bind_output(value.name, "cuda")
        self.session.run_with_iobinding(self.binding)

    def time(self, repeats=50):
        import time
        times = []
        for _ in range(repeats):
            begin = time.perf_counter()
            self.session.run_with_iobinding(self.binding)
            self.binding.synchronize_outputs()
            times.append((time.perf_counter() - begin) * 1e3)
        return statistics.median(times)


class Ferrule:
    def __init__(self, path, inputs, *extra):
        self.path, self.extra = path, extra

    def time(self):
        done, problem = answer("bench", self.path, "--seconds", 0.5, *self.extra, *CUDA)
        if problem:
            raise RuntimeError(problem)
        self.kernels = done["kernels"]
        return done["device_ms"]


def peers(report, quick, results):
    """Interleaved rounds; the ratio is the peer's time by ours."""
    rows = results["peers"] = {}
    if quick:
        return report.skip("peers", "no device in a rehearsal")
    for name in BENCHED:
        try:
            source = pathlib.Path(fetch.locate(name)) / "model.onnx"
        except (fetch.Unavailable, KeyError) as why:
            report.skip(f"peers {name}", why)
            continue
        for batch in (1, 32):
            path = with_batch(source, batch, report.folder / f"{name}_{batch}.onnx")
            rng = np.random.default_rng(0)
            inputs = [rng.standard_normal([d.dim_value or 1 for d in v.type.tensor_type.shape.dim]).astype(helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type))
                      if v.type.tensor_type.elem_type == TensorProto.FLOAT
                      else np.ones([d.dim_value or 1 for d in v.type.tensor_type.shape.dim], helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type))
                      for v in onnx.load(path, load_external_data=False).graph.input]
            runners, row = {}, {}
            for peer, make in (("ferrule f16", lambda p, i: Ferrule(p, i, "--enable", "half_*")), ("ferrule f32", Ferrule), ("torch.compile f16", Torch), ("onnxruntime f32", OnnxRuntime)):
                try:
                    runners[peer] = make(path, inputs)
                except Exception as why:  # a peer that cannot run the model is reported, not fatal
                    row[peer] = {"not run": f"{type(why).__name__}: {why}"[:300]}
            times = {peer: [] for peer in runners}
            for _ in range(5):
                for peer, runner in list(runners.items()):
                    try:
                        times[peer].append(runner.time())
                    except Exception as why:
                        row[peer] = {"not run": f"{type(why).__name__}: {why}"[:300]}
                        del runners[peer], times[peer]
            for peer, ms in times.items():
                row[peer] = {"ms": statistics.median(ms), "rounds": ms}
                if isinstance(runners[peer], Ferrule):
                    row[peer]["launches"] = runners[peer].kernels
            ours = row.get("ferrule f16", {}).get("ms")
            report.check(f"peers {name} batch {batch}", None if ours else json.dumps(row.get("ferrule f16")))
            for peer in ("torch.compile f16", "onnxruntime f32"):
                if ours and "ms" in row.get(peer, {}):
                    row[peer]["ratio"] = row[peer]["ms"] / ours
            rows[f"{name} batch {batch}"] = row


# --- tables -----------------------------------------------------------------------------------------------

def tables(results):
    """The figures as Markdown."""
    out = [f"# {results['surroundings'].get('driver and device') or 'no device'}, {results['surroundings']['date']}", ""]
    if results.get("bandwidth"):
        out += ["| kernel | us | GB/s | of a copy |", "|---|---:|---:|---:|"]
        out += [f"| {k} | {v['us']:.1f} | {v['GB/s']:.0f} | {'' if v['of_copy'] is None else format(v['of_copy'], '.2f')} |" for k, v in results["bandwidth"].items()]
    if results.get("peers"):
        out += ["", "| model | ferrule f16 ms | launches | torch.compile f16 ms | ratio | ferrule f32 ms | onnxruntime f32 ms |", "|---|---:|---:|---:|---:|---:|---:|"]
        for name, row in results["peers"].items():
            def ms(peer):
                return format(row[peer]["ms"], ".3f") if "ms" in row.get(peer, {}) else "-"
            ratio = row.get("torch.compile f16", {}).get("ratio")
            out.append(f"| {name} | {ms('ferrule f16')} | {row.get('ferrule f16', {}).get('launches', '-')} | {ms('torch.compile f16')} | "
                       f"{'-' if ratio is None else format(ratio, '.2f')} | {ms('ferrule f32')} | {ms('onnxruntime f32')} |")
    return "\n".join(out)


PARTS = {"kernels": kernels, "models": models, "bandwidth": bandwidth, "memcheck": memcheck, "peers": peers}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--results", type=pathlib.Path)
    parser.add_argument("--only", default=",".join(PARTS))
    options = parser.parse_args()
    report = harness.Report()
    results = {"surroundings": surroundings()}
    for part in options.only.split(","):
        if part not in PARTS:
            parser.error(f"no part {part}; there are {', '.join(PARTS)}")
        PARTS[part](report, options.quick, results)
        # Whatever stops a later part, the figures so far stay.
        if options.results:
            options.results.parent.mkdir(parents=True, exist_ok=True)
            options.results.write_text(json.dumps(results, indent=1) + "\n")
    print(tables(results))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
