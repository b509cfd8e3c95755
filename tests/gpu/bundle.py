"""The bundle for a machine with a GPU: program, libraries, rules, tests and models in one archive that needs nothing there but a
driver, the CUDA libraries, and Python with numpy and onnx. Paths in it are relative. Prints the archive's path and size.

usage: bundle.py [--small] FOLDER      --small: only models that a rehearsal needs; FOLDER/ferrule-gpu.tar.xz is written, FOLDER/ferrule-gpu left beside it
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE.parent / "models")]

import fetch  # noqa: E402

NAME = "ferrule-gpu"
LIMIT = 48 << 20
# Every machine has these, and they belong to its C library. The C++ library goes along: there it may be older.
SYSTEM = re.compile(r"^(linux-vdso|ld-linux|lib(c|m|dl|rt|pthread))\b")
MODELS = ["mnist_cntk", "mobilenet_v2", "resnet50_bn", "unet", "attacut_sc", "ppocr_v2_cls", "rfb320", "basic_pitch", "ppocr_v4_det"]


def needed(files):
    """Libraries of this machine that the files need, beside the system's and each other: name -> path."""
    out = {}
    for file in files:
        for line in subprocess.run(["ldd", file], capture_output=True, text=True, check=True).stdout.splitlines():
            found = re.match(r"\s*(\S+) => (/\S+)", line)
            if not found and "not found" in line:
                raise SystemExit(f"bundle.py: {file}: {line.strip()}")
            if found and not SYSTEM.match(found[1]) and found[1] not in {pathlib.Path(f).name for f in files}:
                out[found[1]] = found[2]
    return out


def program(build, target):
    """Program and libraries, stripped, found by each other from where they lie."""
    ours = [build / f for f in ("ferrule", "libferrule_core.so", "libferrule_cuda.so", "fuzz", "test_conformance")]
    missing = [f.name for f in ours if not f.exists()]
    if missing:
        raise SystemExit(f"bundle.py: {', '.join(missing)} not built in {build}")
    (target / "build").mkdir(parents=True)
    for source in [*ours, *(pathlib.Path(p) for p in needed(ours).values())]:
        name = source.name
        for soname, path in needed(ours).items():
            if pathlib.Path(path) == source:
                name = soname
        made = target / "build" / name
        shutil.copy(source.resolve(), made)
        subprocess.run(["strip", "--strip-unneeded", made], check=True)


def tests(target):
    """Scripts and rules as they lie in the repository."""
    shutil.copytree(ROOT / "rules", target / "rules")
    for folder in ("gpu", "support"):
        shutil.copytree(ROOT / "tests" / folder, target / "tests" / folder, ignore=shutil.ignore_patterns("stub", "__pycache__"))
    shutil.copytree(ROOT / "tests/models", target / "tests/models", ignore=shutil.ignore_patterns("__pycache__", "onnx_light"))
    (target / "tests/setup").mkdir()
    shutil.copy(ROOT / "tests/setup/versions.env", target / "tests/setup")


def conformance(target):
    """ONNX's own backend tests, where tests/conformance/run has made them."""
    shutil.copytree(ROOT / "tests/conformance", target / "tests/conformance", ignore=shutil.ignore_patterns("__pycache__"))
    cache = pathlib.Path(os.environ.get("FERRULE_CACHE", pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "ferrule"))
    found = sorted(cache.glob("onnx-node-tests-*-unrounded"))
    if not found:
        return print("left out: ONNX's backend tests; tests/conformance/run makes them", file=sys.stderr)
    shutil.copytree(found[-1], target / "onnx-node-tests", ignore=shutil.ignore_patterns("light"))


def models(target, names):
    """What no network must bring: models that are no skeletons, smallest first, and skeletons that the tests' folder does not have."""
    for name in fetch.LARGE:
        source = fetch.source_folder(fetch.LARGE[name][1])
        if source is None:
            print(f"left out {name}: it is in the shared test material alone", file=sys.stderr)
        else:
            shutil.copytree(source, target / "models" / fetch.LARGE[name][1])
    for name in names:
        kind, folder = fetch.MODELS[name][:2]
        if kind == "generated":
            continue
        try:
            source = pathlib.Path(fetch.locate(name))
        except fetch.Unavailable as why:
            print(f"left out {name}: {why}", file=sys.stderr)
            continue
        made = target / "models" / folder
        made.mkdir(parents=True)
        for file in ("model.onnx", "inputs.npz", "outputs.npz"):
            shutil.copy(source / file, made)


START = """#!/bin/sh
# Runs what this bundle is for. NVIDIA's libraries are found beside Python's packages, too.
here=$(cd "$(dirname "$0")" && pwd)
for folder in $(python3 - <<'END'
import pathlib, sys
for base in sys.path:
    for lib in sorted(pathlib.Path(base or ".").glob("nvidia/*/lib")):
        print(lib)
END
); do LD_LIBRARY_PATH="$LD_LIBRARY_PATH${LD_LIBRARY_PATH:+:}$folder"; done
# Ours are for ferrule alone: a torch may need a newer C++ library than the one in here.
export LD_LIBRARY_PATH FERRULE_LIBRARIES="$here/build" FERRULE_SHARED="$here/models"
# There may be no network: what is not in here is left out at once.
export PIP_NO_INDEX=1
exec python3 "$here/tests/gpu/device.py" "$@"
"""


def main():
    arguments = [a for a in sys.argv[1:] if a != "--small"]
    if len(arguments) != 1:
        sys.exit(__doc__)
    base = pathlib.Path(arguments[0]).resolve()
    target = base / NAME
    shutil.rmtree(target, ignore_errors=True)
    program(pathlib.Path(os.environ.get("FERRULE_BUILD", ROOT / "build")), target)
    tests(target)
    if "--small" not in sys.argv:
        conformance(target)
    models(target, MODELS[:1] if "--small" in sys.argv else MODELS)
    start = target / "run"
    start.write_text(START)
    start.chmod(0o755)
    archive = base / f"{NAME}.tar.xz"
    subprocess.run(["tar", "--sort=name", "--owner=0", "--group=0", "--mtime=@0", "-C", base, "-I", "xz -T2 -0" if "--small" in sys.argv else "xz -T2 -6", "-cf", archive, NAME], check=True)
    size = archive.stat().st_size
    print(f"{archive} {size / (1 << 20):.1f} MiB")
    if size > LIMIT:
        sys.exit(f"bundle.py: more than {LIMIT >> 20} MiB")


if __name__ == "__main__":
    main()
