"""Layers that have no kernel on the CPU, counted over all models that are here: no more than interpreted.tsv says.

The models are those kept here, and the shared test material where it is; sizes are those of their stored inputs. A line
of interpreted.tsv is a model and how many of its layers are interpreted, then what they are; a model without a line has
none. Who makes the number smaller writes it down, so that it only falls. What cannot be planned is not counted: check.py
and the conformance tests know about those. Last line: "N passed, N failed, N skipped".
"""
import json
import os
import pathlib
import sys
import tempfile

import numpy
import onnx

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE / "generated")]

import fetch  # noqa: E402
import fill  # noqa: E402
import harness  # noqa: E402

SHARED = pathlib.Path(os.environ.get("FERRULE_SHARED") or harness.ROOT.parent / "shared" / "models")
UNSUPPORTED = 3


def allowed():
    rows = [line.split("\t") for line in (HERE / "interpreted.tsv").read_text().splitlines() if not line.startswith("#")]
    return {name: int(count) for name, count, _ in rows}


def models(scratch):
    """Yields name, model file, its inputs."""
    for folder in sorted(SHARED.glob("real/*")) + sorted(SHARED.glob("quantized/*")):
        if (folder / "model.onnx").is_file():
            yield folder.name, folder / "model.onnx", folder / "inputs.npz"
    for folder in sorted(SHARED.glob("generated/*/")):
        out = scratch / f"{folder.name}.onnx"
        onnx.save(fill.materialize(onnx.load(str(folder / "skeleton.onnx"), load_external_data=False)), str(out))
        yield folder.name, out, folder / "inputs.npz"
        out.unlink()
    if not SHARED.is_dir():
        for name in fetch.MODELS:
            try:
                folder = fetch.locate(name)
            except fetch.Unavailable:
                continue
            yield name, folder / "model.onnx", folder / "inputs.npz"


def without_kernel(layers):
    """Names of layers, and of those of the graphs that layers run step by step."""
    for layer in layers:
        if layer["contract"] == "interpret":
            yield layer["name"]
        yield from without_kernel(layer.get("nested", []))


def shapes(inputs):
    with numpy.load(inputs) as arrays:
        for name in arrays:
            if arrays[name].shape:
                yield "--shapes"
                yield f"{name}:{'x'.join(str(size) for size in arrays[name].shape)}"


def main():
    report = harness.Report()
    most = allowed()
    with tempfile.TemporaryDirectory() as scratch:
        for name, model, inputs in models(pathlib.Path(scratch)):
            done = harness.run("explain", model, "--target", "cpu-avx512", "--backend", "cpu", "--json", *shapes(inputs),
                               timeout=300)
            if done.code == UNSUPPORTED:
                report.skip(name, done.tail())
                continue
            if done.code != harness.OK:
                report.check(name, done.tail())
                continue
            found = list(without_kernel(json.loads(done.out)["layers"]))
            limit, problem = most.get(name, 0), None
            if len(found) > limit:
                problem = f"{len(found)} layers are interpreted, {limit} were: {', '.join(found)}"
            elif len(found) < limit:
                problem = f"{len(found)} layers are interpreted; write it into interpreted.tsv, which says {limit}"
            report.check(name, problem)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
