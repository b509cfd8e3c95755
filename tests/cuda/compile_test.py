"""Plans and generated kernels of the test models for NVIDIA GPUs, without a GPU: every model plans for every target,
every generated kernel compiles by NVRTC, none spills, none is left out.

Ordinary: the models that any clone can have, planned for one target and compiled for another. With --full (or
FERRULE_TEST_FULL=1): these, and all of the shared test material, planned for all targets and compiled for every
architecture that NVRTC compiles for. Shapes are those of a model's test inputs where it has some: what a run would
compile. Equal kernels of several models are compiled once, through a cache of this test's own. A model that cannot be
had, or is for operators that ferrule does not know, is skipped and said so. Last line: "N passed, N failed, N skipped".
"""
import ast
import json
import os
import pathlib
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE.parent / "models")]

import fetch  # noqa: E402
import harness  # noqa: E402

COMPILED = ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"]
PLANNED = ["sm_70", "sm_72", "sm_86", "sm_89"]  # the others are planned to be compiled
HALVED = ["sm_75", "sm_90"]  # in f16 as well
# Small models of other projects' tests: for one target each.
COLLECTIONS = ["ort_fusion", "ort_other", "ort_python", "trt_tools"]


def shapes(inputs):
    """--shapes options for the arrays of an .npz; only their headers are read."""
    options = []
    with zipfile.ZipFile(inputs) as archive:
        for member in archive.namelist():
            with archive.open(member) as data:
                version = data.read(8)[6]
                size = int.from_bytes(data.read(2 if version == 1 else 4), "little")
                shape = ast.literal_eval(data.read(size).decode("latin1"))["shape"]
            if shape and 0 not in shape:
                options += ["--shapes", f"{member.removesuffix('.npy')}:{'x'.join(map(str, shape))}"]
    return options


def job(name, model, target, compiles, inputs, cache, *extra):
    """(what, "passed" | "failed" | "skipped", why)."""
    what = " ".join((name, "compiled" if compiles else "planned", "for", target, *extra))
    options = shapes(inputs) if inputs and inputs.exists() else []
    done = harness.run("compile" if compiles else "explain", model, "--target", target, "--json", "--cache", cache, *options, *extra, timeout=300)
    if done.code == harness.UNSUPPORTED and done.errors() and ("unknown_operator" in done.err or "neither a kernel nor the interpreter knows it" in done.err):
        return what, "skipped", done.errors()[0][:200]
    if done.code != harness.OK:
        return what, "failed", done.tail()
    if not compiles:
        return what, "passed", None
    kernels = json.loads(done.out)["kernels"]
    problems = [f"{k['layer'][:80]} ({k['kind']}) spills {k['spill_bytes']} bytes" for k in kernels if k.get("spill_bytes")]
    # What is of unknown rank is compiled when it runs, as is what was asked about without its sizes and fits them only.
    later = ["rank of an operand is unknown"] + ([] if options else ["do not broadcast"])
    problems += [f"{k['layer'][:80]}: {k['left_out']}" for k in kernels if "left_out" in k and not any(w in k["left_out"] for w in later)]
    return what, "failed" if problems else "passed", "; ".join(problems)


def own_models(report):
    """name, path, inputs: those that any clone can have."""
    for name, (_, relative, *_) in fetch.MODELS.items():
        try:
            model, folder = fetch.model_file(name), fetch.source_folder(relative)
        except fetch.Unavailable as reason:
            report.skip(name, reason)
            continue
        yield name, model, folder / "inputs.npz" if folder else None


def shared_models(report):
    """The rest of the shared material."""
    shared = fetch.shared_folder()
    if not shared:
        report.skip("transformers, recurrent and quantized models", "no shared test material beside the repository")
        return
    for group in ("real", "quantized", "transformer_parts", "onnx_light", "generated"):
        for folder in sorted((shared / group).iterdir()):
            skeleton, model = folder / "skeleton.onnx", folder / "model.onnx"
            if folder.name in fetch.MODELS:
                continue
            if skeleton.exists():
                model = fetch.cached(folder.name, fetch.digest(skeleton))
                fetch.fill(skeleton, model)
            if model.exists():
                yield folder.name, model, folder / "inputs.npz"


def collections():
    shared = fetch.shared_folder()
    for group in COLLECTIONS if shared else []:
        for model in sorted((shared / group).rglob("*.onnx")):
            yield str(model.relative_to(shared)), model, model.with_suffix(".inputs.npz")


def refusable(name, model, inputs, cache):
    """Of the collections: many are broken on purpose or for operators of one vendor; what is refused is skipped."""
    what, how, why = job(name, model, "sm_90", True, inputs, cache)
    refused = how == "failed" and any(f"exit status {code}," in why for code in (harness.USAGE, harness.UNSUPPORTED, harness.LIMIT))
    return what, "skipped" if refused else how, why


def main():
    report = harness.Report()
    if "missing  NVRTC" in harness.run("doctor").out:
        report.skip("all kernels", "NVRTC is not installed")
        return report.finish()
    full = "--full" in sys.argv or os.environ.get("FERRULE_TEST_FULL") == "1"
    with tempfile.TemporaryDirectory() as cache, ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        jobs = []
        for k, model in enumerate(list(own_models(report))):
            targets = [(t, True) for t in COMPILED] + [(t, False) for t in PLANNED]
            if not full:
                targets = [("sm_90", True), ((PLANNED + COMPILED)[k % 9], False)]
            jobs += [pool.submit(job, *model[:2], t, compiles, model[2], cache) for t, compiles in targets]
            jobs += [pool.submit(job, *model[:2], t, True, model[2], cache, "--enable", "half_*") for t in HALVED if full]
        for model in shared_models(report) if full else []:
            jobs += [pool.submit(job, *model[:2], t, True, model[2], cache) for t in COMPILED]
            jobs += [pool.submit(job, *model[:2], t, False, model[2], cache) for t in PLANNED]
            jobs += [pool.submit(job, *model[:2], t, True, model[2], cache, "--enable", "half_*") for t in HALVED]
        if full:
            jobs += [pool.submit(refusable, *model, cache) for model in collections()]
        else:
            report.skip("the shared test material, and the other architectures", "with --full")
        for done in jobs:
            what, how, why = done.result()
            if how == "skipped":
                report.skip(what, why)
            else:
                report.check(what, why if how == "failed" else None)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
