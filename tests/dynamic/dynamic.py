"""Models whose sizes hang on what they compute (models.py) on the CPU, against ONNX Runtime: every input, one after the other and the
first again, in one session of each. Last line: "N passed, N failed".

usage: run [NAME...]
"""
import pathlib
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support")]

import harness  # noqa: E402
import models  # noqa: E402
import tolerance  # noqa: E402


def written(folder, name, text, weights, opset):
    model = harness.onnx_text(text, opset=opset, ir=9)
    inputs = [i for i in model.graph.input if i.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(w), key) for key, w in weights.items())
    onnx.checker.check_model(model)
    onnx.save(model, str(folder / f"{name}.onnx"))
    return folder / f"{name}.onnx"


def main():
    report = harness.Report()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    for name, text, weights, inputs, *opset in models.models():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        model = written(report.folder, name, text, weights, opset[0] if opset else 18)
        peer = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        for k, given in enumerate(inputs):
            want = dict(zip((o.name for o in peer.get_outputs()), peer.run(None, given), strict=True))
            at, out = report.folder / f"{name}_{k}.npz", report.folder / f"{name}_{k}_out.npz"
            np.savez(at, **given)
            _, problem = harness.answer(harness.run("run", model, "--inputs", at, "--outputs", out, "--backend", "cpu", "--json"))
            if problem is None:
                with np.load(out) as got:
                    problem = tolerance.differences(dict(got), want)
            report.check(f"{name}, input {k}", problem)
        # Sizes that come and go in one session; what bench refuses nobody can measure.
        _, problem = harness.answer(harness.run("bench", model, "--inputs", report.folder / f"{name}_0.npz", "--backend", "cpu",
                                                "--seconds", "0.1", "--json"))
        report.check(f"{name}: bench", problem)
    sys.exit(report.finish())


if __name__ == "__main__":
    main()
