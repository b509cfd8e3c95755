"""The parts of device.py that ask whether the device's results are right: every kind of kernel against the interpreter, models against
their stored outputs and an fp64 arbiter, and what compute-sanitizer says of the kernels."""
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import shutil

import numpy as np

import arbiter
import cases
import fetch
import harness
import tolerance
from session import CUDA, OutOfTime

TOGETHER = 12  # cases in one model: a process takes seconds to find its device and load libraries
# All kernels with barriers or atomics (session_test.py compiles every case and looks), and some of the others and of the libraries'.
SANITIZED = {"generated": r"softmax_|mean_|sum_|columns|channels|layer_norm|global_pool|topk|transpose|gather|attention.*_f32|concat|pad$|two_results",
             "library": r"conv_swish|linear_gelu",
             # cuDNN's, where it has one: the tools may not see what it stores, and whatever reads it then seems to read memory that nobody wrote.
             "attention in f16": r"attention.*_f16"}


def sanitized(kind):
    return [c for c in cases.all_cases(["f32", "f16"]) if re.match(SANITIZED[kind], c[0])]



def workers(s):
    """NVRTC and the interpreter take the time, not the device."""
    return 2 if s.quick else max(2, min(8, (os.cpu_count() or 2) // 2))


def in_parallel(s, function, items):
    """Results as they come. What breaks in one, or that the time is up, is raised behind all others' results."""
    problem = None
    with concurrent.futures.ThreadPoolExecutor(workers(s)) as pool:
        for done in concurrent.futures.as_completed([pool.submit(function, item) for item in items]):
            try:
                yield done.result()
            except Exception as why:
                problem = why if problem is None or isinstance(problem, OutOfTime) else problem
    if problem:
        raise problem


def interpreted(done):
    """Cases of which a layer had no kernel, or not the library's that was planned."""
    lines = re.findall(r"^.*(?:the host interprets it|a generated kernel (?:runs it|computes its tail)|no CUDA graph).*$", done.err, re.MULTILINE)
    return {name for line in lines for name in re.findall(r"(\w+):\d+", line)}


def verified(s, path, chosen):
    """[(case, problem)] of a model of several cases; None where the whole says nothing about each."""
    cases.joined(path, chosen)
    done = s.ferrule("verify", path, "--oracle", "--json")
    try:
        outputs = json.loads(done.out)["outputs"] if done.code in (harness.OK, harness.DIFFERS) else None
    except ValueError:
        outputs = None
    if outputs is None:
        return [(chosen[0][0], done.tail())] if len(chosen) == 1 else None
    problems = dict.fromkeys((name for name, _ in chosen))
    judged = set()
    for name in interpreted(done):
        problems[name] = "not run by the kernel that was planned"
    for row in outputs:
        name = row["output"].split(":")[0]
        judged.add(name)
        # Half of what Relu and Pad make is 0 by their nature, and a softmax of one is 1; these stand where the interpreter's do.
        natural = row["verdict"] == "MISTRUSTED" and ("over half of it is 0" in row["text"] or name.startswith("softmax_1_"))
        if row["verdict"] not in ("equal", "within tolerance") and not natural:
            problems[name] = f"{row['output']}: {row['verdict']}: {row['text']}, max abs {row['max_abs']}"
    for name in problems.keys() - judged:
        problems[name] = "none of its results was judged"
    return list(problems.items())


def kernels(s):
    """Each case on the device against the interpreter: several in a process, alone where one of them ends it."""
    chosen = cases.quick_cases() if s.quick else list(cases.all_cases(list(cases.FLOATS)))
    chosen = [case for case in chosen if case[0] not in cases.INTERPRETED]  # refused by --require-device
    count = -(-len(chosen) // TOGETHER)

    def one(n):
        some = chosen[n::count]
        found = verified(s, s.folder / f"cases{n}.onnx", some)
        return found or [row for k, case in enumerate(some) for row in verified(s, s.folder / f"cases{n}.{k}.onnx", [case])]

    for found in in_parallel(s, one, range(count)):
        for name, problem in found:
            s.check(f"kernel {name}", problem)
        s.row("kernels", "cases", s.data.get("kernels", {}).get("cases", 0) + len(found))


def judged(s, name, folder, kind, judge):
    """One model in one type: (problem, why it is left out, figures)."""
    out = s.folder / f"{name}.{kind}.npz"
    done, problem = s.answer("run", folder / "model.onnx", "--inputs", folder / "inputs.npz", "--outputs", out, "--force", *arbiter.rules(kind))
    if problem:
        return problem, None, None
    got = dict(np.load(out))
    row = {"kernels": done["kernels_launched"], "largest_difference": tolerance.largest(got, np.load(folder / "outputs.npz"))}
    if kind == "f32":
        return tolerance.differences(got, dict(np.load(folder / "outputs.npz"))), None, row
    unfit = judge.unfit(kind)
    if unfit:
        return None, unfit, row
    row["errors"] = {n: {"device": tolerance.errors(got[n], judge.exact[n]), "interpreter": tolerance.errors(judge.yardsticks[kind][n], judge.exact[n])}
                     for n in judge.exact if judge.exact[n].dtype == np.float64}
    return judge.judge(kind, got), None, row


def models(s):
    """f32 against the stored outputs, shorter types by the fp64 arbiter."""
    names = s.models(list(fetch.MODELS), ["mnist_cntk", "mobilenet_v2"])
    kinds = ["f32", *arbiter.KINDS]

    def one(name):
        try:
            folder = pathlib.Path(fetch.locate(name))
        except Exception as why:  # not here, not to be downloaded, made by another numpy: said
            return [(name, None, f"{type(why).__name__}: {why}", None)]
        rows, judge = [], None
        for kind in kinds if not s.quick or name == names[0] else kinds[:1]:
            if kind != "f32" and judge is None:
                scratch = s.folder / f"{name}.arbiter"
                scratch.mkdir()
                judge = arbiter.Arbiter(folder / "model.onnx", folder / "inputs.npz", scratch,
                                        lambda *arguments, timeout: s.ferrule(*arguments, most=timeout, device=False))
            rows.append((f"{name} {kind}", *judged(s, name, folder, kind, judge)))
        return rows

    for rows in in_parallel(s, one, names):
        for what, problem, left_out, figures in rows:
            if figures:
                s.row("models", what, figures)
            if left_out:
                s.skip(f"model {what}", left_out)
            else:
                s.check(f"model {what}", problem)


def target_of(s):
    """sm_90 and so on, as doctor names the device."""
    found = re.search(r"sm_\d+", str(s.data["surroundings"].get("doctor", {}).get("GPU")))
    return found and found[0]


def graphs(s):
    """Random graphs and tails on the device against the interpreter (tests/fuzz)."""
    target = target_of(s)
    program = pathlib.Path(harness.PROGRAM).parent / "fuzz"
    if not program.exists() or not target:
        return s.skip("random graphs", f"{program} is not there" if target else "doctor names no target of the device")
    kinds = ("graphs", "tails")
    for n, kind in enumerate(kinds):
        seconds = max(2, min(s.left(120) - 5, 120) / (len(kinds) - n)) if not s.quick else 3
        done = s.tool(program, kind, "--rules", harness.ROOT / "rules", "--backend", "cuda", "--target", target, "--seconds", f"{seconds:.0f}", "--workers", workers(s) * (1 if s.quick else 2),
                      "--seed", s.seed, env=os.environ | harness.libraries())
        counted = re.search(r"(\d+) passed, (\d+) failed", done.stdout[-400:]) if done else None
        s.row("graphs", kind, {"seed": s.seed, "counts": counted[0] if counted else None})
        s.check(f"random graphs: {kind}", None if counted and counted[2] == "0" else (done.stdout + done.stderr)[-8000:] if done else "no end")


def conformance(s):
    """ONNX's own backend tests on the device, what it has no kernel for on the host (tests/conformance)."""
    program, data = pathlib.Path(harness.PROGRAM).parent / "test_conformance", harness.ROOT / "onnx-node-tests"
    if s.quick or not program.exists() or not data.exists():
        return s.skip("conformance", "too long for a rehearsal" if s.quick else f"{program} or {data} is not there")
    parts = workers(s) * 2

    def one(k):
        env = os.environ | harness.libraries() | {"FERRULE_TEST_SOURCE": str(harness.ROOT), "FERRULE_ONNX_TESTS": str(data), "FERRULE_ONNX_TESTS_PART": f"{k}/{parts}",
                                                  "FERRULE_CONFORMANCE_BACKEND": "cuda", "FERRULE_CONFORMANCE_TARGET": target_of(s) or ""}
        return s.tool(program, "--no-colors", "--source-file=*/cpu.cpp", env=env)

    for done in in_parallel(s, one, range(parts)):
        if done is None:
            s.check("conformance", "no end")
            continue
        counted = re.search(r"(\d+) passed, (\d+) failed, (\d+) skipped", done.stdout)
        for line in re.findall(r"^FAILED .*", done.stdout, re.MULTILINE):
            s.check(f"conformance {line.split()[2].rstrip(':')}", line)
        if counted:
            s.row("conformance", "passed", s.data.get("conformance", {}).get("passed", 0) + int(counted[1]))
        else:
            s.check("conformance ends as it should", done.stdout[-1500:] + done.stderr[-500:])


def memcheck(s):
    """compute-sanitizer's tools on some kernels of each kind, in one process each."""
    places = [os.environ.get("PATH", ""), f"{os.environ.get('CUDA_HOME', '/usr/local/cuda')}/bin", "/usr/local/cuda/bin"]
    tool = shutil.which("compute-sanitizer", path=":".join(places))
    if s.quick or not tool:
        return s.skip("compute-sanitizer", "no device in a rehearsal" if s.quick else "it is not installed")
    runs = []
    for kind in SANITIZED:
        path = s.folder / f"sanitized_{kind.replace(' ', '_')}.onnx"
        cases.joined(path, sanitized(kind))
        runs += [(check, kind, path) for check in ("memcheck", "racecheck", "initcheck", "synccheck")]

    def one(run):
        check, kind, path = run
        done = s.tool(tool, "--tool", check, "--error-exitcode", "99", harness.PROGRAM, "run", path, "--seed", "1", *CUDA, most=240,
                      env=os.environ | harness.libraries())
        return f"{check}, {kind} kernels", done

    for what, done in in_parallel(s, one, runs):
        where = {}
        if done is not None:  # whose kernels are meant: the library's have errors of their own
            where = collections.Counter(re.findall(r"^=========.*? (?:at|access at) ([A-Za-z_][\w:~<>]*)\+?.*$", done.stdout, re.MULTILINE))
            s.row("memcheck", what, {"kernels": dict(where.most_common(12)), "first": re.findall(r"^=========.*", done.stdout, re.MULTILINE)[:40]})
        if done is None:
            s.check(what, "not ended after 240 s")
        elif done.returncode and re.search(r"(?i)device not supported|not supported on|failed to initialize|unable to", done.stdout + done.stderr) \
                and "ERROR SUMMARY" not in done.stdout:
            s.skip(what, f"compute-sanitizer does not run here: {done.stdout[-300:]}{done.stderr[-300:]}")
        elif done.returncode and where and not any(kernel.startswith("ferrule") for kernel in where):
            s.skip(what, f"only in kernels that are not ours: {', '.join(sorted(where))}")
        else:
            s.check(what, None if done.returncode == 0 else done.stdout[-1500:] + done.stderr[-300:])
