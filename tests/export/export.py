"""What `ferrule fuse` writes, in other tools: onnx's checker takes it, ONNX Runtime gives the results of the model it
came from, onnx's reference evaluator, onnxslim and onnxsim load it, OpenVINO loads what has no functions, and ferrule itself reads it back with at least the same fusion. Groups as functions and inlined.

Models: some of tests/models (all with --full) and the small ones of ONNX Runtime's own fusion tests in the shared test
material. What ferrule cannot plan, and what ONNX Runtime cannot run as it came, is counted as skipped.

usage: export.py [--full] [NAME-PART...]
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnx.reference
import onnxruntime
import openvino

import fetch
import harness
import tolerance

# Convolutions, depthwise ones, transposed ones, recurrent nets, products, integers; the others with --full.
SOME = ["mnist_cntk", "attacut_sc", "ppocr_v2_cls", "magika", "basic_pitch", "rfb320", "unet", "ppocr_v4_det", "mobilenet_v2"]
BOTH = ("functions", "inlined")
SLIM = ["mnist_cntk", "ppocr_v2_cls", "mobilenet_v2"]  # whose files the programs simplify that do so; all with --full


def rounds_early(model):
    """Whether some value is f16 or bf16: what is rounded there moves with the operators around it."""
    narrow = {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
    graph = onnx.load(str(model), load_external_data=False).graph
    return any(t.data_type in narrow for t in graph.initializer) or any(
        v.type.tensor_type.elem_type in narrow for v in graph.input) or any(
        a.name == "to" and a.i in narrow for n in graph.node for a in n.attribute)


def run_elsewhere(path, inputs):
    """ONNX Runtime's results by name, its own fusion off; raises what it raises."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, {i.name: inputs[i.name] for i in session.get_inputs()})))


def taken(load, model, out):
    """None, or why `load` does not take the new model although it takes the old one."""
    try:
        load(str(model))
    except Exception:  # pylint: disable=broad-except
        return None
    try:
        load(str(out))
    except Exception as reason:  # pylint: disable=broad-except
        return str(reason)[-500:]
    return None


def refused_by_checker(path):
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except Exception as reason:  # pylint: disable=broad-except
        return str(reason)[:500]
    return None


def in_openvino(path):
    core = openvino.Core()
    core.compile_model(core.read_model(path), "CPU")


def simplified_by(tool, path):
    """What the program writes is taken by ONNX Runtime."""
    out = f"{path}.{tool}.onnx"
    done = subprocess.run([os.environ["FERRULE_SLIM_PYTHON"], "-m", tool, path, out], capture_output=True, text=True, timeout=300, check=False)
    try:
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)
        onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    finally:
        pathlib.Path(out).unlink(missing_ok=True)


def layers(path):
    plan, problem = harness.answer(harness.run("explain", path, "--json", "--threads", "1", timeout=120))
    return (None, problem) if problem else (len(plan["layers"]), None)


def check(report, name, model, stored, slim=False):
    with np.load(stored) as arrays:
        inputs = dict(arrays)
    before, problem = layers(model)
    if problem:
        return report.skip(name, f"ferrule does not plan it ({problem.splitlines()[-1].strip()[:100]})")
    try:
        wanted = run_elsewhere(model, inputs)
    except Exception as reason:  # pybind's exceptions have no common base
        return report.skip(name, f"ONNX Runtime does not run it ({str(reason).splitlines()[0][:100]})")
    for how in BOTH:
        out = report.folder / f"{name}.{how}.onnx"
        done = harness.run("fuse", model, "-o", out, "--export", how, "--verify-seconds", "120",
                           "--inputs", stored, timeout=300)
        problem = harness.crash(done) or (None if done.code == harness.OK else done.tail())
        report.check(f"{name} fuse --export {how}", problem)
        if problem:
            continue
        report.check(f"{name} {how}: verified", None if "not verified" not in done.out else done.tail())
        problem, original = refused_by_checker(out), refused_by_checker(model)
        if problem and original:
            report.skip(f"{name} {how}: onnx.checker", f"it does not take the model as it came ({original.splitlines()[0][:100]})")
        else:
            report.check(f"{name} {how}: onnx.checker", problem)
        try:
            got = run_elsewhere(out, inputs)
            problem = f"outputs {list(got)}, wanted {list(wanted)}" if list(got) != list(wanted) else \
                tolerance.differences(got, wanted, "f16" if rounds_early(model) else None)
        except Exception as reason:
            problem = str(reason)[:500]
        report.check(f"{name} {how}: ONNX Runtime", problem)
        if how == "inlined":  # OpenVINO knows no functions of a model
            report.check(f"{name} {how}: OpenVINO", taken(in_openvino, model, out))
        problem = taken(onnx.reference.ReferenceEvaluator, model, out)
        if problem and "context dependent" in problem:
            report.skip(f"{name} {how}: onnx's reference evaluator", "in a function it has no operator whose body depends on types (Gelu)")
        else:
            report.check(f"{name} {how}: onnx's reference evaluator", problem)
        if slim:
            for tool in ("onnxslim", "onnxsim"):
                report.check(f"{name} {how}: {tool}", taken(lambda path, tool=tool: simplified_by(tool, path), model, out))
        after, problem = layers(out)
        if problem is None and after > before:
            problem = f"{after} layers, {before} before it was written"
        report.check(f"{name} {how}: read back", problem)
        functions = len(onnx.load(str(out), load_external_data=False).functions)
        report.check(f"{name} {how}: functions", f"{functions} functions in an inlined model" if how == "inlined" and functions else None)
        out.unlink()
        pathlib.Path(f"{out}.data").unlink(missing_ok=True)


def external(report):
    """Weights that lay beside the model lie beside the new one."""
    rng = np.random.default_rng(1)
    weights = onnx.numpy_helper.from_array(rng.standard_normal((64, 64)).astype(np.float32), "W")
    helper = onnx.helper
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "W"], ["t"], "product"), helper.make_node("Relu", ["t"], ["y"], "act")], "g",
                              [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4, 64])],
                              [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4, 64])], [weights])
    folder = report.folder / "external"
    folder.mkdir()
    model = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), str(model), save_as_external_data=True,
              location="weights.bin", size_threshold=0)
    out = folder / "fused.onnx"
    done = harness.run("fuse", model, "-o", out)
    data = folder / "fused.onnx.data"
    report.check("external weights stay external", None if done.code == harness.OK and data.exists() and data.stat().st_size == 64 * 64 * 4
                 and out.stat().st_size < 4096 else done.tail())
    x = {"x": rng.standard_normal((4, 64)).astype(np.float32)}
    report.check("external weights in ONNX Runtime", tolerance.difference(run_elsewhere(out, x)["y"], run_elsewhere(model, x)["y"]))
    left = sorted(p.name for p in folder.iterdir())
    report.check("nothing is left behind", None if left == ["fused.onnx", "fused.onnx.data", "model.onnx", "weights.bin"] else str(left))


def large(report):
    """Weights are read and written where they are mapped: 512 MiB of them with 64 MiB of memory of the program's own."""
    folder, size = report.folder / "large", 8192
    folder.mkdir()
    helper, at = onnx.helper, "x"
    nodes, weights = [], []
    with open(folder / "weights.bin", "wb") as file:
        for k in range(2):
            file.seek(4 * size * size * k)
            file.write(np.float32(k + 1).tobytes())
            weight = onnx.TensorProto(name=f"W{k}", data_type=1, dims=[size, size], data_location=onnx.TensorProto.EXTERNAL)
            for key, value in (("location", "weights.bin"), ("offset", 4 * size * size * k), ("length", 4 * size * size)):
                weight.external_data.add(key=key, value=str(value))
            weights.append(weight)
            nodes += [helper.make_node("MatMul", [at, f"W{k}"], [f"m{k}"]), helper.make_node("Relu", [f"m{k}"], [f"r{k}"])]
            at = f"r{k}"
        file.truncate(2 * 4 * size * size)
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [1, size])], [helper.make_tensor_value_info(at, 1, [1, size])], weights)
    (folder / "model.onnx").write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString())
    for arguments in (["explain", "model.onnx"], ["fuse", "model.onnx", "-o", "out.onnx", "--no-verify"]):
        done = subprocess.run(["bash", "-c", 'ulimit -d 65536; exec "$@"', "_", harness.PROGRAM, *arguments], cwd=folder, capture_output=True, text=True,
                              timeout=120, check=False)
        report.check(f"{arguments[0]} of 512 MiB of weights within 64 MiB", None if done.returncode == 0 else done.stderr[-400:])
    out = folder / "out.onnx.data"
    report.check("and all of them are written", None if out.exists() and out.stat().st_size == 2 * 4 * size * size else "they are not")
    for path in (out, folder / "weights.bin"):
        path.unlink(missing_ok=True)


def small_models():
    """(name, model, inputs) of the shared fusion tests that have inputs."""
    shared = fetch.shared_folder()
    for path in sorted((shared / "ort_fusion").rglob("*.onnx")) if shared else []:
        inputs = path.with_suffix(".inputs.npz")
        if inputs.exists():
            yield str(path.relative_to(shared / "ort_fusion").with_suffix("")).replace("/", "."), path, inputs


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--full", action="store_true", default=bool(os.environ.get("FERRULE_TEST_FULL")))
    parser.add_argument("parts", nargs="*")
    options = parser.parse_args()
    report = harness.Report()
    if not report.ready:
        return report.finish()
    wanted = lambda name: not options.parts or any(p in name for p in options.parts)
    if wanted("external"):
        external(report)
        large(report)
    for name in filter(wanted, list(fetch.MODELS) if options.full else SOME):
        try:
            folder = fetch.locate(name)
        except fetch.Unavailable as reason:
            report.skip(name, str(reason))
            continue
        check(report, name, folder / "model.onnx", folder / "inputs.npz", options.full or name in SLIM)
    small = [s for s in small_models() if wanted(s[0])]
    if not small and not options.parts:
        report.skip("small models", "the shared test material is not here (FERRULE_SHARED)")
    for name, path, inputs in small if options.full or options.parts else harness.by_turns(report, small, 24):
        check(report, name, path, inputs)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
