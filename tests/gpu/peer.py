"""One of the programs that ferrule is compared with, as a process: it makes the model ready, prints "ready", and for each line on stdin runs
it often and prints "ms" and the median of its times. What it cannot do ends it with a message on stderr.

usage: peer.py torch|torch-autotuned|onnxruntime MODEL INPUTS.npz
       peer.py copy MIB      bytes read and written a second by a copy on the device
"""
import statistics
import sys
import time


class Torch:
    """f16, compiled by torch.compile with CUDA graphs; autotuned: with max-autotune, which compiles for minutes."""

    def __init__(self, path, inputs, mode="reduce-overhead"):
        import onnx
        import torch
        from onnx_torch import OnnxModule, traced
        self.torch = torch
        module = OnnxModule(onnx.load(path), torch.float16, "cuda").eval()
        tensors = [torch.from_numpy(x).cuda() for x in inputs.values()]
        tensors = [x.half() if x.is_floating_point() else x for x in tensors]
        self.inputs = [x.to(memory_format=torch.channels_last) if x.dim() == 4 else x for x in tensors]
        # One graph or nothing: a model in pieces would be slower than torch.compile is.
        self.compiled = torch.compile(traced(module, self.inputs), mode=mode, fullgraph=True, dynamic=False)
        with torch.no_grad():
            for _ in range(5):
                self.compiled(*self.inputs)
        torch.cuda.synchronize()

    def once(self):
        start, stop = self.torch.cuda.Event(enable_timing=True), self.torch.cuda.Event(enable_timing=True)
        with self.torch.no_grad():
            start.record()
            self.compiled(*self.inputs)
            stop.record()
        self.torch.cuda.synchronize()
        return start.elapsed_time(stop)


class OnnxRuntime:
    """f32 with CUDA, inputs and outputs on the device."""

    def __init__(self, path, inputs):
        import onnxruntime as ort
        if "CUDAExecutionProvider" not in ort.get_available_providers():
            raise SystemExit("this onnxruntime has no CUDA provider")
        self.session = ort.InferenceSession(path, providers=["CUDAExecutionProvider"])
        self.binding = self.session.io_binding()
        for name, x in inputs.items():
            self.binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(x, "cuda", 0))
        for value in self.session.get_outputs():
            self.binding.bind_output(value.name, "cuda")
        for _ in range(5):
            self.session.run_with_iobinding(self.binding)

    def once(self):
        begin = time.perf_counter()
        self.session.run_with_iobinding(self.binding)
        self.binding.synchronize_outputs()
        return (time.perf_counter() - begin) * 1e3


def copy(mib):
    import torch
    x = torch.randint(0, 255, (mib << 20,), dtype=torch.uint8, device="cuda")
    y, best = torch.empty_like(x), float("inf")
    for _ in range(50):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        y.copy_(x)
        stop.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(stop))
    return 2 * (mib << 20) / (best * 1e-3)


def main():
    kind, *rest = sys.argv[1:]
    if kind == "copy":
        return print(copy(int(rest[0])))
    import numpy as np
    with np.load(rest[1]) as stored:
        inputs = dict(stored)
    # What libraries print must not come between our lines.
    answers, sys.stdout = sys.stdout, sys.stderr
    peer = {"torch": Torch, "torch-autotuned": lambda *given: Torch(*given, mode="max-autotune"), "onnxruntime": OnnxRuntime}[kind](rest[0], inputs)
    print("ready", file=answers, flush=True)
    for _ in sys.stdin:
        print("ms", statistics.median(peer.once() for _ in range(50)), file=answers, flush=True)


if __name__ == "__main__":
    main()
