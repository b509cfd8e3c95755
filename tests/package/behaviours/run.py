"""Small behaviours of onnxruntime's Python interface, each by onnxruntime and by ferrule.ort in one process: what a call returns, or the
class of what it raises, must be the same. What differs on purpose stands in OTHERWISE, and must differ.

usage: run.py [--show] [NAME...]"""
import importlib.util
import sys

if not importlib.util.find_spec("onnxruntime"):
    print("onnxruntime is not there: tests/setup/deps.sh --python bench names a Python that has it")
    sys.exit(77)

import onnxruntime  # noqa: E402
import options  # noqa: E402,F401  pylint: disable=unused-import
import sessions  # noqa: E402,F401  pylint: disable=unused-import
import values  # noqa: E402,F401  pylint: disable=unused-import
from common import CASES  # noqa: E402
from compare import outcome, same  # noqa: E402

import ferrule.ort  # noqa: E402

EXACTLY = "the kind of error says more exactly what is wrong"
MORE = "taken, where onnxruntime refuses it"
OTHERWISE = {
    "an input that is None": EXACTLY,
    "python scalars": MORE,
    "numpy scalars": MORE,
    "int32 for int64": MORE,
    "one element for a scalar": "the element is taken, and the result is of rank 0, as the model says",
    "big endian": "onnxruntime computes with the bytes the wrong way round",
    "an array for an ort value": MORE,
    "a bytearray": MORE,
    "copied": MORE,
    "pickled": MORE,
    "a folder": EXACTLY,
    "no bytes": EXACTLY,
    "an empty file": EXACTLY,
    "an unknown operator": EXACTLY,
    "an unknown domain": EXACTLY,
    "a value that nothing makes": EXACTLY,
    "an opset of the future": EXACTLY,
    "metadata that is not there": "a version that is not there is 0, not 2^63 - 1",
    "unknown option": "a warning, where onnxruntime raises: programs set options of other versions",
    "options of another kind": EXACTLY,
    "initializers from outside": "weights are those of the model's files; the error says so",
    "a profile": "there is none: a warning when it is asked for, and no file",
    "of strings": MORE,
    "of a list": MORE,
    "on a device that is none": EXACTLY,
    "updated by another type": "refused, where onnxruntime reads the bytes as another type",
    "bound again": "a result of another shape takes new memory, where onnxruntime fails",
}


def main(names):
    show = "--show" in names
    names = [n for n in names if n != "--show"]
    failed = 0
    ours = {"onnxruntime": onnxruntime, "ferrule": ferrule.ort}
    for name, function in CASES.items():
        if names and name not in names:
            continue
        results = {by: outcome(function, ort) for by, ort in ours.items()}
        agree = same(*results.values())
        fine = agree != (name in OTHERWISE)
        failed += not fine
        if not fine or show:
            print(f"{'ok    ' if fine else 'FAILED'} {name}")
            for by, result in results.items():
                print(f"         {by}: {str(result)[:400]}")
    print(f"{len(CASES) if not names else len(names)} behaviours, {len(OTHERWISE)} of them otherwise on purpose: {failed} differ")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
