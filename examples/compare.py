"""Times one model with several sets of options, for the recipes in this folder.

compare.py MODEL LABEL OPTIONS [LABEL OPTIONS]...   OPTIONS: as for `ferrule bench`, in one word; besides,
    no:PHASE switches off every rule of a phase, no:groups every rule that makes layers of several nodes.

Short runs of one thread, the choices in turn; the least time counts, because what else a machine does only adds to it.
Each choice is also run once, with the same inputs, and compared with the first.
"""
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

import numpy as np

FERRULE = os.environ.get("FERRULE_PROGRAM", str(pathlib.Path(__file__).resolve().parents[1] / "build" / "ferrule"))
ROUNDS, SECONDS = int(os.environ.get("FERRULE_EXAMPLE_ROUNDS", 6)), "0.15"


def ferrule(*arguments):
    done = subprocess.run([FERRULE, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def expanded(options, rules):
    """no:fold -> --disable of each rule of that phase."""
    out = []
    for word in shlex.split(options):
        if not word.startswith("no:"):
            out.append(word)
            continue
        what = word.removeprefix("no:")
        off = [r["id"] for r in rules if r["phase"] == what or (what == "groups" and r["kind"] != "rewrite")]
        for rule in off:
            out += ["--disable", rule]
    return out


def main():
    model, *rest = sys.argv[1:]
    rules = json.loads(ferrule("rules", "list", "--json"))["rules"]
    choices = [(label, expanded(options, rules)) for label, options in zip(rest[::2], rest[1::2])]
    near = json.loads(ferrule("doctor", "--json"))["tolerances"]["f32"]
    best, seen, first = {}, {}, None
    for _ in range(ROUNDS):
        for label, options in choices:
            got = json.loads(ferrule("bench", model, "--threads", 1, "--seed", 1, "--seconds", SECONDS, "--json", *options))
            seen[label] = got
            best[label] = min(best.get(label, 1e9), got["latency_ms"]["min"])
    print(f"{'':<34} {'layers':>6} {'kernels':>7} {'least time':>12}")
    with tempfile.TemporaryDirectory() as folder:
        for label, options in choices:
            path = pathlib.Path(folder) / "out.npz"
            ferrule("run", model, "--seed", 1, "--outputs", path, "--force", *options)
            values = np.load(path)
            first = first or {k: values[k] for k in values}
            same = all(np.allclose(values[k], first[k], near["relative"], near["absolute"] * max(1, np.abs(first[k]).max())) for k in first)
            print(f"{label:<34} {seen[label]['layers']:>6} {seen[label]['kernels']:>7} {best[label] * 1000:>9.0f} us"
                  f"{'' if same else '   OTHER RESULTS'}")
            if not same:
                sys.exit(1)


if __name__ == "__main__":
    main()
