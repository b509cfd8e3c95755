"""Every generated kernel of the test models, compiled for GPUs by NVRTC, without a GPU: none fails, none spills.

For sm_90; with --full (or FERRULE_TEST_FULL=1) for every architecture that NVRTC compiles for. A model that cannot be
had, or is for operators that ferrule does not know, is skipped and said so. Last line: "N passed, N failed, N skipped".
"""
import json
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE.parent / "models")]

import fetch  # noqa: E402
import harness  # noqa: E402

TARGETS = ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"]


def compiled(report, name, model, target):
    done = harness.run("compile", model, "--target", target, "--json", timeout=300)
    what = f"{name} for {target}"
    if done.code == harness.UNSUPPORTED and "unknown_operator" in done.err:
        return report.skip(what, done.errors()[0])
    if done.code != harness.OK:
        return report.check(what, done.tail())
    kernels = json.loads(done.out)["kernels"]
    spilled = [k["layer"] for k in kernels if k.get("spill_bytes")]
    return report.check(what, f"spills: {', '.join(spilled)}" if spilled else None)


def models(report):
    """name, path: those that any clone can have, then the rest of the shared material."""
    for name in fetch.MODELS:
        try:
            yield name, fetch.model_file(name)
        except fetch.Unavailable as reason:
            report.skip(name, reason)
    shared = fetch.shared_folder()
    more = sorted(m for m in (shared / "real").glob("*/model.onnx") if m.parent.name not in fetch.MODELS) if shared else []
    for model in more:
        yield model.parent.name, model
    if not more:
        report.skip("transformers and recurrent models", "no shared test material beside the repository")


def main():
    report = harness.Report()
    if "missing  NVRTC" in harness.run("doctor").out:
        report.skip("all kernels", "NVRTC is not installed")
        return report.finish()
    full = "--full" in sys.argv or os.environ.get("FERRULE_TEST_FULL") == "1"
    for name, model in models(report):
        for target in TARGETS if full else ["sm_90"]:
            compiled(report, name, model, target)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
