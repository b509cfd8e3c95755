"""What is run on a machine with a GPU, from a bundle (bundle.py) or a checkout: every kind of kernel against the interpreter, models
against their stored outputs and an fp64 arbiter, compute-sanitizer, bandwidths, and times against torch.compile and ONNX Runtime. Needs
Python with numpy and onnx; torch, onnxruntime and compute-sanitizer where they are. What is found is in the results' file after every step;
no part ends another. Last line: "N passed, N failed, N skipped".

usage: device.py [--quick] [--results FILE] [--seconds N] [--only kernels,models,graphs,conformance,memcheck,bandwidth,peers] [--seed N] [--models NAME,...]
  --quick      a rehearsal: few cases, no times that mean anything (tests/gpu/run does it on stub libraries)
  --results    where the figures go, as JSON
  --models     of the models, and of those compared with peers, these alone
  --seed       of the first random graph
  --seconds    the time there is: each part has its share of what is left, and ends when that is used up; what it did not come to is skipped
"""
import argparse
import contextlib
import datetime
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE.parent / "models"), str(HERE)]
# Models are in the bundle or made here: none is downloaded.
os.environ.setdefault("PIP_NO_INDEX", "1")

import cases  # noqa: E402
import correct  # noqa: E402
import fast  # noqa: E402
import harness  # noqa: E402
from session import CUDA, Session  # noqa: E402

# In this order; the number is a part's share of the time against those behind it.
PARTS = {"kernels": (correct.kernels, 3), "models": (correct.models, 2), "graphs": (correct.graphs, 1), "conformance": (correct.conformance, 2), "memcheck": (correct.memcheck, 1),
         "bandwidth": (fast.bandwidth, 2), "peers": (fast.peers, 5)}


def first_line(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | harness.libraries()).stdout.strip().splitlines()[0]
    except (OSError, IndexError, subprocess.TimeoutExpired):
        return None


def surroundings():
    """Device and versions, as their owners say them."""
    out = {"date": datetime.date.today().isoformat(), "ferrule": first_line(harness.PROGRAM, "--version"), "python": sys.version.split()[0],
           "driver and device": first_line("nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm", "--format=csv,noheader")}
    done = harness.run("doctor", "--json")  # which misses the CPU backend in a bundle
    with contextlib.suppress(ValueError):
        out["doctor"] = {c["what"]: c["detail"] for c in json.loads(done.out)["checks"]}
    for name in ("torch", "onnxruntime", "onnxruntime-gpu", "onnx", "numpy", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            out[name] = importlib.metadata.version(name)
    return out


def device_there(s):
    """Whether anything runs at all: without it every check would fail for the same reason."""
    path = s.folder / "first.onnx"
    cases.write(path, "(float[4,8] x) => (float[4,8] y) { y = Relu(x) }")
    done = harness.run("verify", path, "--oracle", *CUDA, timeout=120)
    s.check("a first kernel on the device", None if done.code == harness.OK else done.tail())
    return done.code == harness.OK


def share(value):
    return "" if value is None else format(value, ".2f")


def tables(data):
    """The figures as Markdown."""
    out = [f"# {data['surroundings'].get('driver and device') or 'no device'}, {data['surroundings']['date']}", ""]
    if data.get("bandwidth"):
        out += ["| kernel | us | GB/s | of a copy | tuned | us | of a copy |", "|---|---:|---:|---:|---|---:|---:|"]
        out += [f"| {k} | {v['us']:.1f} | {v['GB/s']:.0f} | {share(v['of_copy'])} | {', '.join(v.get('shapes', []))} | "
                f"{format(v['tuned_us'], '.1f') if 'tuned_us' in v else ''} | {share(v.get('tuned_of_copy'))} |" for k, v in data["bandwidth"].items()]
    if data.get("peers"):
        names = list(fast.RUNNERS)
        out += ["", f"| model | launches | {' | '.join(f'{n} ms' for n in names)} | torch.compile by ours |", "|---|---:|" + "---:|" * (len(names) + 1)]
        for name, row in data["peers"].items():
            cells = [format(row[n]["ms"], ".3f") if "ms" in row.get(n, {}) else "-" for n in names]
            ratio = row.get("torch.compile f16", {}).get("ratio")
            out.append(f"| {name} | {row.get('ferrule f16', {}).get('launches', '-')} | {' | '.join(cells)} | {'-' if ratio is None else format(ratio, '.2f')} |")
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--results", type=pathlib.Path)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--models")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    wanted = options.only.split(",")
    for part in wanted:
        if part not in PARTS:
            parser.error(f"no part {part}; there are {', '.join(PARTS)}")
    s = Session(options.results, options.seconds, options.quick, options.models.split(",") if options.models else None, options.seed)
    s.data["surroundings"] = surroundings()
    s.save()
    if s.ready and device_there(s):
        for n, part in enumerate(wanted):
            function, weight = PARTS[part]
            s.part(part, function, weight / sum(PARTS[p][1] for p in wanted[n:]))
    print(tables(s.data))
    return s.finish()


if __name__ == "__main__":
    sys.exit(main())
