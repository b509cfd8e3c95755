"""How much memory commands need beside the model's own: a weight of 400 MB in a file beside the model. Mapped pages count.
Last line: "N passed, N failed, N skipped"."""
import os
import pathlib
import subprocess
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support")]

import harness  # noqa: E402

ROWS, COLUMNS = 25 << 10, 4096
WEIGHT = ROWS * COLUMNS * 4
SPARE = 64 << 20  # what a command may need in addition


def peak(report, what, *arguments):
    """Of a run that ends well: the most memory that was resident, in bytes; None: it failed."""
    with open(report.folder / "log", "wb") as log:
        process = subprocess.Popen([harness.PROGRAM, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   env={**os.environ, **harness.libraries()})
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    report.check(f"{what} ends well", None if process.returncode == 0 else (report.folder / "log").read_text()[-500:])
    return usage.ru_maxrss * 1024 if process.returncode == 0 else None


def model(folder, op):
    """A product with the weight; most of it is a hole in its file."""
    rng = np.random.default_rng(0)
    with open(folder / "weight.bin", "wb") as f:
        f.write(rng.standard_normal(1 << 20, "f4").tobytes())
        f.truncate(WEIGHT)
    transposed = op == "Gemm"
    w = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[COLUMNS, ROWS] if transposed else [ROWS, COLUMNS], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "weight.bin"), ("offset", "0"), ("length", str(WEIGHT))):
        w.external_data.add(key=key, value=value)
    nodes = [helper.make_node(op, ["x", "w"], ["m"], "product", **({"transB": 1} if transposed else {})), helper.make_node("Relu", ["m"], ["y"], "act")]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, ROWS])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, COLUMNS])], [w])
    path = folder / f"{op}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def within(report, what, used, allowed):
    if used is not None:
        report.check(f"{what}: {used >> 20} MiB", None if used <= allowed else f"{used >> 20} MiB, allowed are {allowed >> 20}")


def main():
    report = harness.Report()
    if report.ready:
        free = os.statvfs(report.folder)
        if free.f_bavail * free.f_frsize < 3 * WEIGHT:
            report.skip("memory", "no room for a large model")
            return report.finish()
        for op in ("MatMul", "Gemm"):
            path, out = model(report.folder, op), report.folder / "fused.onnx"
            base = peak(report, f"{op}: explain", "explain", path)
            if base is None:
                continue
            within(report, f"{op}: explain", base, SPARE * 2)
            within(report, f"{op}: fuse --no-verify reads the weight piece by piece",
                   peak(report, f"{op}: fuse --no-verify", "fuse", path, "-o", out, "--force", "--no-verify"), base + SPARE)
            within(report, f"{op}: fuse has the weight in memory once, verification too",
                   peak(report, f"{op}: fuse", "fuse", path, "-o", out, "--force"), base + WEIGHT * 6 // 5)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
