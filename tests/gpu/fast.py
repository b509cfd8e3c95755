"""The parts of device.py that measure: kernels' bandwidth against that of a copy, models against torch.compile and ONNX Runtime.
Whatever is not ferrule runs in a process of its own (peer.py), which may hang, crash or be missing without harm."""
import json
import pathlib
import statistics
import subprocess
import sys
import threading

import numpy as np
import onnx
from onnx import helper

import cases
import fetch
import harness
from session import OutOfTime, end, started

BENCHED = ["mobilenet_v2", "resnet50_bn", "unet", "vit_b_16", "bert_base"]
BATCHES = (1, 16)
ROUNDS = 3
PEER = pathlib.Path(__file__).resolve().parent / "peer.py"


# --- bandwidth --------------------------------------------------------------------------------------------

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
        yield f"one softmax {t}", f"({t}[1,{count}] x) => ({t}[1,{count}] y) {{ y = Softmax<axis=-1>(x) }}", 2 * n
        yield f"transpose {t}", f"({t}[{rows},4096] x) => ({t}[4096,{rows}] y) {{ y = Transpose<perm=[1,0]>(x) }}", 2 * n
        yield f"concat {t}", f"({t}[{rows // 2},4096] x, {t}[{rows // 2},4096] z) => ({t}[{rows // 2},8192] y) {{ y = Concat<axis=1>(x, z) }}", 2 * n


def copy_bandwidth(s, mib):
    """Bytes a second, read and written, of a copy on the device by torch; None without torch."""
    done = s.tool(sys.executable, PEER, "copy", mib, most=120)
    try:
        return float(done.stdout.split()[-1])
    except (AttributeError, IndexError, ValueError):
        s.skip(f"bandwidth of a copy of {mib} MiB", (done.stderr if done else "no end after 120 s").strip()[-300:])
        return None


def layer_time(s, path, *extra):
    """Microseconds of the slowest layer's fastest run, and what went wrong."""
    done, problem = s.answer("bench", path, "--layers", "--seconds", 0.01 if s.quick else 0.3, *extra, most=120)
    return (0, problem) if problem else (max(t["min_us"] for t in done["layer_times"]), None)


def tuned_time(s, path):
    """What tune chooses, the slowest layer's time with it, and what went wrong."""
    file = s.folder / "bandwidth.yaml"
    done, problem = s.answer("tune", path, "-o", file, "--force", "--seconds", 0.01 if s.quick else 1.0, most=120)
    return (None, 0, problem) if problem else ([row["chosen"] for row in done["launches"]], *layer_time(s, path, "--tuning", file))


def bandwidth(s):
    """The slowest layer's fastest run. The larger size last: where time ends there, the smaller one says most of it."""
    for mib in (1,) if s.quick else (64, 256):
        limit = None if s.quick else copy_bandwidth(s, mib)
        for name, text, moved in bandwidth_cases(mib):
            if s.quick and name not in ("copy float", "row sums float"):
                continue
            path, what = s.folder / "bandwidth.onnx", f"bandwidth {name} {mib} MiB"
            cases.write(path, text)
            us, problem = layer_time(s, path)
            s.check(what, problem)
            if problem:
                continue
            row = {"us": us, "GB/s": moved / us / 1e3, "of_copy": moved / us * 1e6 / limit if limit else None}
            shapes, tuned, problem = tuned_time(s, path)
            s.check(f"{what}, tuned", problem)
            if not problem:
                row |= {"shapes": shapes, "tuned_us": tuned, "tuned_of_copy": moved / tuned * 1e6 / limit if limit else None}
            s.row("bandwidth", f"{name} {mib} MiB", row)


# --- peers ------------------------------------------------------------------------------------------------

def with_batch(folder, batch, to):
    """A copy of the folder's model for another batch, `to`.onnx, its other sizes those of the stored inputs; `to`.npz: random numbers for it,
    ones for integers, in the order of the model's inputs. Returns both paths."""
    model, arrays, rng = onnx.load(folder / "model.onnx"), {}, np.random.default_rng(0)
    with np.load(folder / "inputs.npz") as stored:
        shapes = {name: stored[name].shape for name in stored}
    for value in model.graph.input:
        if value.name not in shapes:  # a constant
            continue
        kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        dims = [batch, *shapes[value.name][1:]]
        for d, size in zip(value.type.tensor_type.shape.dim, dims):
            d.dim_value = size
        arrays[value.name] = rng.standard_normal(dims).astype(kind) if kind == np.float32 else np.ones(dims, kind)
    del model.graph.value_info[:]
    for value in model.graph.output:
        for k, d in enumerate(value.type.tensor_type.shape.dim):
            d.dim_param = f"{value.name}_{k}"
    path, inputs = to.with_suffix(".onnx"), to.with_suffix(".npz")
    onnx.save(model, path)
    np.savez(inputs, **arrays)
    return path, inputs


class Ferrule:
    """A process for each round; what it compiles and builds is kept on disk."""

    def __init__(self, s, path, *extra):
        self.s, self.path, self.extra, self.launches = s, path, extra, None

    def time(self):
        done, problem = self.s.answer("bench", self.path, "--seconds", 0.05 if self.s.quick else 0.5, *self.extra, most=200)
        if problem:
            raise RuntimeError(problem)
        self.launches = done["kernels"]
        return done["device_ms"]

    def close(self):
        pass


class Tuned(Ferrule):
    """Plans of the libraries chosen by time, as max-autotune's are."""

    def __init__(self, s, path, *extra):
        file = s.folder / f"{path.stem}.tuning.yaml"
        done = s.ferrule("tune", path, "-o", file, "--force", "--seconds", 0.1 if s.quick else 5, "--seed", 1, *extra)
        if done.code != harness.OK:
            raise RuntimeError(done.tail())
        super().__init__(s, path, *extra, "--tuning", file)


class Peer:
    """A process that compiles a model once and times it when asked."""

    def __init__(self, s, kind, path, inputs, most=420):
        """most: the seconds after which it is given up."""
        self.s, self.errors = s, s.folder / f"{path.stem}.{kind}.err"
        with open(self.errors, "w") as errors:
            self.process = started([sys.executable, PEER, kind, path, inputs], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        self.said("ready", most)

    def said(self, word, most):
        """The rest of the next line, which begins with the word."""
        limit, lines = self.s.left(most), []
        reader = threading.Thread(target=lambda: lines.append(self.process.stdout.readline()), daemon=True)
        reader.start()
        reader.join(limit)
        if lines and lines[0].startswith(word):
            return lines[0].removeprefix(word)
        over = not lines
        self.close()
        if over and limit < most:
            raise OutOfTime
        raise RuntimeError(f"no end after {limit:.0f} s" if over else self.errors.read_text()[-600:] or f"it says {lines[0]!r}")

    def time(self):
        try:
            self.process.stdin.write("time\n")
            self.process.stdin.flush()
        except OSError:
            raise RuntimeError(self.errors.read_text()[-600:]) from None
        return float(self.said("ms", 60))

    def close(self):
        end(self.process)


RUNNERS = {
    "ferrule f16": lambda s, path, inputs: Ferrule(s, path, "--enable", "half_*"),
    "ferrule f16 tuned": lambda s, path, inputs: Tuned(s, path, "--enable", "half_*"),
    "ferrule f32": lambda s, path, inputs: Ferrule(s, path),
    "torch.compile f16": lambda s, path, inputs: Peer(s, "torch", path, inputs),
    "onnxruntime f32": lambda s, path, inputs: Peer(s, "onnxruntime", path, inputs),
    "torch.compile f16 autotuned": lambda s, path, inputs: Peer(s, "torch-autotuned", path, inputs, s.left(480) / 2),
}


def compared(s, path, inputs, row):
    """Interleaved rounds of all that run. A peer that cannot is reported, not fatal."""
    runners, times = {}, {}

    def attempt(name, step):
        try:
            return step()
        except OutOfTime:
            raise
        except Exception as why:
            row[name] = {"not run": f"{type(why).__name__}: {why}"[:800]}
            if name in runners:
                runners.pop(name).close()
            return None

    def note():
        for name, ms in times.items():
            if ms and "not run" not in row.get(name, {}):
                row[name] = {"ms": statistics.median(ms), "rounds": ms}
                if isinstance(runners.get(name), Ferrule):
                    row[name]["launches"] = runners[name].launches
        ours = min((row[n]["ms"] for n in row if n.startswith("ferrule f16") and "ms" in row[n]), default=None)
        for name in ("torch.compile f16", "torch.compile f16 autotuned", "onnxruntime f32"):
            if ours and "ms" in row.get(name, {}):
                row[name]["ratio"] = row[name]["ms"] / ours

    try:
        for name, make in RUNNERS.items():
            runner = attempt(name, lambda make=make: make(s, path, inputs))
            if runner:
                runners[name] = runner
        for _ in range(1 if s.quick else ROUNDS):
            for name in list(runners):
                ms = attempt(name, runners[name].time)
                if ms is not None:
                    times.setdefault(name, []).append(ms)
    finally:  # what was timed until the time was up counts
        note()
        for runner in runners.values():
            runner.close()


def peers(s):
    """Interleaved rounds; a ratio is the peer's time by ours. All models with one picture first: where time ends there, most is said."""
    names = s.models(BENCHED, ["mnist_cntk"])
    folders = {}
    for name in names:
        try:
            folders[name] = pathlib.Path(fetch.locate(name))
        except Exception as why:
            s.skip(f"peers {name}", f"{type(why).__name__}: {why}")
    for batch in BATCHES[:1] if s.quick else BATCHES:
        for name, folder in folders.items():
            row = {}
            try:
                compared(s, *with_batch(folder, batch, s.folder / f"{name}_{batch}"), row)
            finally:
                s.row("peers", f"{name} batch {batch}", row)
            s.check(f"peers {name} batch {batch}", None if "ms" in row.get("ferrule f16", {}) else json.dumps(row.get("ferrule f16")))
