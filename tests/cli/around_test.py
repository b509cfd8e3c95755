"""Things around a run: wrong values of options, files of all kinds numpy writes, help, completion, the manual, doctor, rules new and check.
Last line: "N passed, N failed, N skipped"."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support")]

import harness  # noqa: E402
from harness import DIFFERS, OK, UNSUPPORTED, USAGE, refusal, run  # noqa: E402

ADD = "agraph (float[N,4] a, float[N,4] b) => (float[N,4] y) { [sum] y = Add (a, b) }"


def doctor(report):
    """Found through PATH and through a link, from any folder."""
    folder = report.folder / "bin"
    folder.mkdir()
    os.symlink(harness.PROGRAM, folder / "ferrule")
    def checks(command, path):
        done = subprocess.run([command, "doctor", "--json"], cwd="/", capture_output=True, text=True, check=False,
                              env={**os.environ, **harness.libraries(), "PATH": f"{path}:{os.environ['PATH']}"})
        return {c["what"]: c["there"] for c in json.loads(done.stdout or '{"checks": []}')["checks"]}
    whole = checks(harness.PROGRAM, "/usr/bin")
    real = str(pathlib.Path(harness.PROGRAM).resolve().parent)
    for what, command, path in (("a link", str(folder / "ferrule"), "/usr/bin"), ("PATH", "ferrule", real), ("a link in PATH", "ferrule", str(folder))):
        got = checks(command, path)
        report.check(f"doctor through {what}", None if got and got == whole and any("CPU backend" in k for k in got) else f"{got}, wanted {whole}")


def errors_as_json(report, net):
    """Under --json, an error is an object of its own, one on standard output."""
    for what, command, code in (("a model that is not there", ["explain", "/none.onnx", "--json"], "file_not_found"), ("no such command", ["expain", "--json"], "usage"),
                                ("no such option", ["why", net, "--jsn", "--json"], "usage"), ("no such node", ["why", net, "--node", "none", "--json"], None)):
        done = run(*command)
        try:
            e = json.loads(done.out)["error"]
            problem = None if code in (None, e["code"]) and e["message"] and e["message"] in done.err and e.get("hint", "") in done.err and done.code == USAGE else str(e)
        except (ValueError, KeyError) as why:
            problem = f"{type(why).__name__}: {why}; {done.out[:200]}"
        report.check(f"--json: {what}", problem)


def markdown(report, net):
    """bench's table: a head and as many cells in each row."""
    for command, rows in ((["bench", net], 1), (["bench", net, "none"], 2)):
        done = run(*command, "--seconds", "0.05", "--markdown", "--backend", "cpu")
        table = [line.split(" | ") for line in done.out.splitlines() if line.startswith("|")]
        report.check(f"{' '.join(map(str, command[2:]))} --markdown", None if len(table) == rows + 2 and {len(table[0])} == {len(r) for r in table[2:]} else done.tail() + done.out)


def options(report, net):
    """Wrong values are refused or warned about, whatever the command."""
    folder = report.folder
    for command in (["explain"], ["missed"], ["fuse", "--dry-run"], ["run"]):
        report.check(f"{command[0]} --backend abacus", refusal(run(command[0], net, *command[1:], "--backend", "abacus"), USAGE, "abacus", "reference"))
        report.check(f"{command[0]} --tuning of no file", refusal(run(command[0], net, *command[1:], "--tuning", folder / "none.yaml"), USAGE, r"none\.yaml"))
    tuning = folder / "tuning.yaml"
    conv = harness.model(folder / "conv.onnx", """agraph (float[1,8,12,12] x) => (float[1,8,10,10] y) <float[8,8,3,3] W = {%s}> { y = Conv (x, W) }"""
                         % ", ".join(["0.5"] * 576))
    done = run("tune", conv, "-o", tuning, "--seconds", "0.05", "--threads", "1", "--backend", "cpu")
    report.check("tune on one thread", None if done.code == OK else done.tail())
    done = run("run", net, "--tuning", tuning, "--backend", "cpu", "--threads", "1")
    report.check("a tuning file of another model", None if done.code == OK and re.search(r"tuning\.yaml is of another model", done.err) else done.tail())
    done = run("run", conv, "--tuning", tuning, "--backend", "cpu", "--threads", "1")
    report.check("a tuning file of this model", None if done.code == OK and "another model" not in done.err else done.tail())

    override = folder / "override.yaml"
    for device, code in (("gup", USAGE), ("sm_9?x", USAGE), ("gpu", OK), ("sm_*", OK), ("cpu-avx2", OK)):
        override.write_text(f'ferrule: 1\noverride:\n  - rule: "conv_*"\n    off: true\n    device: ["{device}"]\n')
        done = run("explain", net, "--override", override)
        report.check(f"device: {device}", harness.crash(done) or (refusal(done, USAGE, r"override\.yaml:\d+", re.escape(device), "there are cpu, gpu")
                                                               if code == USAGE else None if done.code == OK else done.tail()))
    override.write_text('ferrule: 1\noverride:\n  - rule: "conv_*"\n    off: true\n    device: [gup]\n')
    report.check("device: the nearest", refusal(run("explain", net, "--override", override), USAGE, 'did you mean "gpu"'))

    report.check("an input's shape twice", refusal(run("explain", net, "--shapes", "a:2x4", "--shapes", "a:3x4"), USAGE, "a is given twice"))
    for shapes in (["a:2x4,b:2x4"], ["a:2,4,b:2,4"], ["a:2x4", "b:2,4"]):
        done = run("run", net, *(part for s in shapes for part in ("--shapes", s)), "--json")
        dims = json.loads(done.out)["outputs"]["y"]["dims"] if done.code == OK else None
        report.check(f"--shapes {shapes}", None if dims == [2, 4] else done.tail())
    for bad in ("a:2x4,b", "a:2x4,:3", "2x4,a:2x4", "a:2x4,,b:2x4", "a:2xx4"):
        report.check(f"--shapes {bad}", refusal(run("explain", net, "--shapes", bad), USAGE, "--shapes"))
    out = folder / "y.npy"
    report.check("--outputs of an array", refusal(run("run", net, "--outputs", out), USAGE, r"y\.npy", r"\.npz"))
    report.check("nothing is written", None if not out.exists() else "there is a file")
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    for words in (["fuse", net, "-o", pipe], ["run", net, "--outputs", pipe]):
        done = run(*words, "--force")
        report.check(f"{words[0]} replaces no pipe", refusal(done, USAGE, "pipe", "not a regular file") or (None if pipe.is_fifo() else "it is gone"))

    blocked = folder / "file"
    blocked.write_text("")
    fusable = harness.model(folder / "chain.onnx", "agraph (float[8] x, float[8] z) => (float[8] y) {\n  a = Mul(x, z)\n  y = Sigmoid(a)\n}")
    done = run("run", fusable, "--cache", blocked / "cache", "--backend", "cpu")
    report.check("a cache that cannot be written", None if done.code == OK and re.search("warning: nothing can be kept in the cache .*/file/cache", done.err)
                 else done.tail())


def arrays(report, net):
    """What numpy writes: compressed, of the other byte order, in the other memory order."""
    folder = report.folder
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((300, 4)).astype(np.float32) for _ in "ab")
    wanted = a + b

    def reads(what, **given):
        path, out = folder / "in.npz", folder / "out.npz"
        np.savez_compressed(path, **given)
        done = run("run", net, "--inputs", path, "--outputs", out, "--force")
        report.check(what, None if done.code == OK and np.array_equal(np.load(out)["y"], wanted) else done.tail())
        return path

    reads("savez_compressed", a=a, b=b)
    reads("big-endian", a=a.astype(">f4"), b=b.astype(">f4"))
    path = reads("column-major, big-endian", a=np.asfortranarray(a.astype(">f4")), b=np.asfortranarray(b))
    whole = path.read_bytes()
    for cut in range(1, 10):
        damaged = folder / "cut.npz"
        damaged.write_bytes(whole[:len(whole) * cut // 10])
        report.check(f"{cut}/10 of a compressed npz", refusal(run("run", net, "--inputs", damaged), USAGE, r"cut\.npz"))
        changed = bytearray(whole)
        changed[len(whole) * cut // 10] ^= 255
        damaged.write_bytes(changed)
        done = run("run", net, "--inputs", damaged)
        report.check(f"a changed byte at {cut}/10", harness.crash(done) or (None if done.code in (OK, USAGE) else done.tail()))
    for kind in ("i2", "u4", "i8", "f8", "f2", "c8"):
        x = np.arange(6).astype(kind).reshape(2, 3)
        np.save(folder / "x.npy", x.astype(">" + kind))
        model = harness.model(folder / "same.onnx", "agraph (%s[2,3] x) => (%s[2,3] y) { y = Identity (x) }" % ((
            {"i2": "int16", "u4": "uint32", "i8": "int64", "f8": "double", "f2": "float16", "c8": "complex64"}[kind],) * 2))
        done = run("run", model, "--input", f"x={folder / 'x.npy'}", "--outputs", folder / "same.npz", "--force", "--backend", "reference")
        report.check(f"big-endian {kind}", None if done.code in (OK, UNSUPPORTED) and (done.code != OK or np.array_equal(np.load(folder / "same.npz")["y"], x)) else done.tail())


def rules(report):
    """rules new, rules check, rules test."""
    folder = report.folder / "mine"
    folder.mkdir()
    done = run("rules", "new", folder / "twice_relu.yaml")
    text = (folder / "twice_relu.yaml").read_text() if done.code == OK else ""
    schema = pathlib.Path(re.match(r"# yaml-language-server: \$schema=(.*)\n", text).group(1)) if text else None
    report.check("rules new names its schema", None if schema and (folder / schema).exists() and "$defs" in json.loads((folder / schema).read_text()) else text)
    done = run("rules", "test", "twice_relu", "--rules", folder, timeout=120)
    report.check("rules new passes its tests", None if done.code == OK and "1 passed, 0 failed" in done.out else done.tail())
    report.check("rules new of no id", refusal(run("rules", "new", folder / "My-Rule.yaml"), USAGE, "My-Rule", "lower case"))
    report.check("no file of it", None if not (folder / "My-Rule.yaml").exists() else "there is one")

    done = run("rules", "check")
    report.check("rules check keeps notes about shipped rules", None if done.code == OK and "note:" not in done.out and re.search(r" 0 notes \(\d+ more", done.out) else done.tail())
    done = run("rules", "check", "--all")
    report.check("rules check --all", None if done.code == OK and "note:" in done.out else done.tail())
    snapshots(report, folder, text)
    (folder / "twice_relu.yaml").write_text(text.replace("t = Relu(x)\n  y", "t = Rellu(x)\n  y", 1))
    done = run("rules", "check", "--rules", folder)
    report.check("rules check knows operators", None if done.code == USAGE and re.search(
        r'twice_relu\.yaml:\d+:\d+: operator Rellu is none of ONNX.s(.|\n)*did you mean "Relu"', done.err) else done.tail() + done.out)
    (folder / "twice_relu.yaml").write_text(text[:text.index("tests:")])
    done = run("rules", "test", "twice_relu", "--rules", folder, timeout=120)
    report.check("a rewrite without a case", None if done.code == harness.DIFFERS and "no case shows it firing" in done.out and "0 passed, 1 failed" in done.out
                 else done.tail() + done.out)


def snapshots(report, folder, text):
    """rules test -U writes what the cases give, a plain run compares."""
    def test(name, wanted, *says, more=(), code=OK):
        done = run("rules", "test", "twice_relu", "--rules", folder, *more, timeout=120)
        report.check(f"snapshots: {name}", None if done.code == code and all(re.search(s, done.out + done.err) for s in says) and (
            wanted is None or kept() == wanted) else done.tail() + done.out)

    def kept():
        return {p.name: p.read_text() for p in (folder / "snapshots").glob("*")}
    test("none, and none wanted", {}, "1 passed, 0 failed")
    test("written", None, "1 snapshots written", more=("-U",))
    first = kept()
    shown = first.get("twice_relu.txt", "")
    report.check("snapshots: what they show", None if "\nfires 1\n    " in shown and "\nholds 1 (" in shown and "Relu (" in shown else shown)
    test("the same", first, "1 passed, 0 failed")
    test("nothing to write", first, "0 snapshots written", more=("--update",))
    (folder / "snapshots" / "twice_relu.txt").write_text(shown.replace("Relu (", "Tanh (", 1))
    test("another result", None, r"FAILED twice_relu: other than in .*twice_relu\.txt", r"\n  - .*Tanh \(", r"\n  \+ .*Relu \(", "0 passed, 1 failed", code=DIFFERS)
    test("the new one is kept", first, "1 snapshots written", more=("-U",))
    (folder / "snapshots" / "gone.txt").write_text("")
    test("one of no rule", None, r"FAILED .*gone\.txt: no such rule", "1 passed, 1 failed", code=DIFFERS)
    test("which is removed", first, "0 snapshots written", more=("-U",))
    (folder / "snapshots" / "twice_relu.txt").unlink()
    test("a rule without one", {}, "FAILED twice_relu: it has no snapshot", "0 passed, 1 failed", code=DIFFERS)
    (folder / "snapshots").rmdir()
    report.check("snapshots: of shipped rules", refusal(run("rules", "test", "-U"), USAGE, "--rules"))


def unknown_operators(report):
    """All of them, with how many nodes each has."""
    nodes = [helper.make_node(op, ["x"], [f"y{k}"], f"n{k}", domain="com.acme") for k, op in enumerate(["One", "Two", "One", "Three", "Two", "Two"])]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
                              [helper.make_tensor_value_info(f"y{k}", TensorProto.FLOAT, [1]) for k in range(6)])
    path = report.folder / "unknown.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.acme", 1)], ir_version=8), str(path))
    each = (r'node "n0".*com\.acme\.One \(opset 1\) is not known; 2 nodes', r"com\.acme\.Two .*; 3 nodes", r'node "n3".*com\.acme\.Three')
    report.check("all unknown operators", refusal(run("explain", path), UNSUPPORTED, *each, errors=3))


def texts(report):
    """An output of texts is the interpreter's."""
    strings = helper.make_tensor("C", TensorProto.STRING, [2], [b"abc", b"def"])
    graph = helper.make_graph([helper.make_node("Identity", ["C"], ["y"], "same")], "g", [], [helper.make_tensor_value_info("y", TensorProto.STRING, [2])], [strings])
    path = report.folder / "texts.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    out = report.folder / "texts.npz"
    done = run("run", path, "--outputs", out)
    report.check("run: an output of texts", done.tail() if done.code != OK or np.load(out)["y"].tolist() != ["abc", "def"] else None)
    done = run("verify", path, "--oracle")
    report.check("verify: an output of texts", done.tail() if done.code != OK or "equal" not in done.out else None)


COMMANDS = ("explain", "why", "missed", "run", "bench", "verify", "tune", "fuse", "ablate", "reduce", "compile", "rules", "cache", "doctor")


def complete(report):
    """help, completion and the manual, from one source."""
    report.check("ferrule help", None if run("help").out == run("--help").out != "" else run("help").tail())
    report.check("ferrule help fuse", None if run("help", "fuse").out == run("fuse", "--help").out != "" else run("help", "fuse").tail())
    report.check("ferrule help rules test", None if run("help", "rules", "test").out == run("rules", "test", "--help").out else "another text")
    report.check("help of no command", refusal(run("help", "fuze"), USAGE, "fuze", "fuse"))
    report.check("completion of no shell", refusal(run("completion", "tcsh"), USAGE, "tcsh|SHELL"))
    texts = {}
    for shell in ("bash", "zsh", "fish"):
        done = run("completion", shell)
        texts[shell] = done.out
        missing = [c for c in COMMANDS if not re.search(rf"\b{c}\b", done.out)] + [w for w in ("ignore-profit", "against", "functions") if w not in done.out]
        report.check(f"completion {shell}", harness.crash(done) or (f"missing {missing}" if missing or done.code != OK else None))
        if not shutil.which(shell):
            report.skip(f"{shell} reads it", f"there is no {shell}")
            continue
        path = report.folder / f"completion.{shell}"
        path.write_text(texts[shell])
        read = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True, check=False)
        report.check(f"{shell} reads it", read.stderr[:300] or None)

    def bash(*words):
        script = f"source {report.folder}/completion.bash; COMP_WORDS=({' '.join(map(repr, words))}); COMP_CWORD={len(words) - 1}; _ferrule; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False).stdout.split()
    for words, wanted, unwanted in ((["ferrule", "expl"], {"explain"}, {"fuse"}), (["ferrule", "rules", ""], {"test", "check", "new"}, {"explain"}),
                                    (["ferrule", "fuse", "m.onnx", "--exp"], {"--export"}, {"--plan"}),
                                    (["ferrule", "fuse", "m.onnx", "--export", ""], {"functions", "inlined"}, {"--plan"}),
                                    (["ferrule", "verify", "--no-"], {"--no-cache", "--no-fold"}, {"--oracle"}),
                                    (["ferrule", "rules", "test", "--se"], {"--seconds"}, {"--stamp"}), (["ferrule", "completion", ""], {"bash", "zsh", "fish"}, set())):
        got = set(bash(*words))
        report.check(f"bash completes {' '.join(words)}", None if wanted <= got and not unwanted & got else str(sorted(got))[:300])

    page = run("man").out
    sections = re.findall(r"^\.S[HS] (.*)$", page, re.MULTILINE)
    missing = [c for c in COMMANDS if not any(f"ferrule {c}" in s for s in sections)]
    report.check("the manual has every command", f"missing {missing}" if missing else None)
    for option in re.findall(r"--[a-z-]+", run("fuse", "--help").out):
        if option.replace("-", "\\-") not in page and option != "--help":
            report.check(f"the manual has {option}", "it has not")
    groff = shutil.which("groff")
    if groff:
        read = subprocess.run([groff, "-k", "-man", "-ww", "-Tutf8", "-z"], input=page, capture_output=True, text=True, check=False)
        report.check("groff reads the manual", read.stderr[:400] or None)
    else:
        report.skip("groff reads the manual", "there is no groff")


def bench(report, net):
    """Quantiles, intervals, two by turns."""
    folder = report.folder
    shape = ["--shapes", "a:64x4", "--seconds", "0.3"]
    answer, problem = harness.answer(run("bench", net, *shape, "--json"))
    if problem is None:
        times = answer["latency_ms"]
        order = [times[k] for k in ("min", "median_low", "median", "median_high")], [times[k] for k in ("median", "p90", "p95", "p99")]
        problem = None if all(o == sorted(o) for o in order) and "unstable" in answer else str(times)
    report.check("bench: quantiles and the median's interval", problem)
    done = run("bench", net, *shape)
    report.check("bench: its text", None if re.search(r"^latency  median [\d.]+ ms \(95 %: [\d.]+ to [\d.]+, \d+ runs\)\n         min .*  p95 ", done.out, re.MULTILINE) else done.tail())
    done = run("bench", net, "--shapes", "a:64x4", "--seconds", "0.01", "--backend", "reference")
    report.check("bench: few runs are unstable", None if done.code == OK else done.tail())
    override = folder / "bench.yaml"
    override.write_text("# a comment\nferrule: 1\noverride:\n  - rule: pointwise\n    off: true\n")
    big = harness.model(folder / "big.onnx", "agraph (float[256,4096] x) => (float[256,4096] y) {\n  a = Sin(x)\n  b = Exp(a)\n  c = Sin(b)\n  y = Exp(c)\n}")
    small = harness.model(folder / "small.onnx", "agraph (float[16,16] x) => (float[16,16] y) { y = Sin (x) }")
    rules_folder = folder / "bench_rules"
    rules_folder.mkdir()
    for other in ("none", override, small, big, rules_folder):
        answer, problem = harness.answer(run("bench", big, other, "--seconds", "0.5", "--json", "--threads", "1", timeout=120))
        if problem is None:
            ratio = answer["ratio"]
            fine = 0 < ratio["low"] <= ratio["median"] <= ratio["high"] and answer["differ"] == (ratio["low"] > 1 or ratio["high"] < 1)
            if other == small:
                fine = fine and ratio["high"] < 1
            problem = None if fine else str(answer)
        report.check(f"bench big.onnx {pathlib.Path(str(other)).name}", problem)
    done = run("bench", big, "none", "--seconds", "0.3", "--threads", "1")
    report.check("bench of two: its text", None if re.search(
        r"^A  .*big\.onnx on cpu, 1 layer\n   median (.|\n)*^B  without rules on cpu, 4 layers\n(.|\n)*^B takes [\d.]+ times as long as A \(95 %: [\d.]+ to [\d.]+, \d+ interleaved runs\)",
        done.out, re.MULTILINE) else done.tail() + done.out)
    open_sizes = harness.model(folder / "open.onnx", "agraph (float[N,16] x) => (float[N,16] y) { y = Sin (x) }")
    for command in (["bench", open_sizes, "--seconds", "0.05"], ["tune", open_sizes, "--seconds", "0.05", "-o", folder / "open.tuning"]):
        done = run(*command)
        report.check(f"{command[0]}: sizes that are open", None if done.code == OK and re.search(r"^note: x is f32\[N,16\]: N = 1 is used; --shapes", done.err, re.MULTILINE) else done.tail())
    answer, problem = harness.answer(run("bench", open_sizes, "--seconds", "0.05", "--json"))
    report.check("bench: sizes that are open, in its JSON", problem or (None if len(answer["notes"]) == 1 else str(answer["notes"])))
    report.check("bench of no file", refusal(run("bench", big, folder / "none.onnx"), USAGE, r"none\.onnx"))
    (folder / "odd.yaml").write_text("what: this\n")
    report.check("bench of another YAML file", refusal(run("bench", big, folder / "odd.yaml"), USAGE, r"odd\.yaml", "no override file"))
    report.check("bench of two with --layers", refusal(run("bench", big, "none", "--layers"), USAGE, "--layers"))
    report.check("no bar in a pipe", None if "\r" not in done.err and "measuring" not in done.err else done.err[:200])


def bars(report):
    """On a terminal, what takes over a second has a bar, and wipes it."""
    import pty
    net = harness.model(report.folder / "long.onnx", "agraph (float[64] x) => (float[64] y) { y = Sin (x) }")
    for what, seconds, term, wanted in (("over a second", "1.6", "xterm", True), ("under a second", "0.3", "xterm", False), ("a dumb terminal", "1.6", "dumb", False)):
        leader, follower = pty.openpty()
        process = subprocess.Popen([harness.PROGRAM, "bench", str(net), "--seconds", seconds], stdout=subprocess.DEVNULL, stderr=follower,
                                   env={**os.environ, **harness.libraries(), "TERM": term})
        os.close(follower)
        text = b""
        while True:
            try:
                piece = os.read(leader, 4096)
            except OSError:
                break
            if not piece:
                break
            text += piece
        process.wait()
        os.close(leader)
        bar = re.search(rb"\r\[#* *\] +\d+ % \d+ s measuring\x1b\[K", text)
        report.check(f"a bar: {what}", None if bool(bar) == wanted and (not wanted or text.endswith(b"\r\x1b[K")) else repr(text[-200:]))


def plainly(report):
    """What is said once, with its numbers and names."""
    done = run("rules", "test", "conv_activation")
    report.check("rules test in short", None if done.code == OK and re.search(r"^1 rule, \d+ cases? where it fires, \d+ where it must not$", done.out, re.MULTILINE) else done.tail())
    done = run("rules", "test", "attention", "attention_gemm", timeout=300)
    lines = [line for line in done.out.splitlines() if line.startswith("not run for ")]
    report.check("rules test says once why targets are absent", harness.crash(done) or (
        None if len(lines) == len({line.split(": ", 1)[1] for line in lines}) and done.out.count("cannot be loaded:") <= 1 else done.out[:600]))
    weights = "<float[8,8,1,1] W = {%s}>" % ", ".join(["0.5"] * 64)
    net = harness.model(report.folder / "open_conv.onnx",
                        "agraph (float[N,8,H,W] x) => (float[N,8,H,W] y) %s {\n  [conv] c = Conv (x, W)\n  [sin] s = Sin (c)\n  [swish] y = HardSwish (s)\n}" % weights)
    done = run("missed", net)
    report.check("missed shows the sizes of its bytes", None if "bytes are for x:1x8x224x224" in done.out and "c f32[1,8,224,224]" in done.out else done.tail())
    swish = harness.model(report.folder / "swish.onnx",
                          "agraph (float[1,8,6,6] x) => (float[1,8,6,6] y) %s {\n  [conv] c = Conv (x, W)\n  [swish] y = HardSwish (c)\n}" % weights)
    done = run("explain", swish, "--target", "cpu-avx2", "--strict")
    report.check("why a tail is a kernel of its own", None if "tail apart: --strict leaves out the library's epilogue for HardSwish\n" in done.out else done.out)
    override = report.folder / "off.yaml"
    override.write_text('ferrule: 1\noverride:\n  - rule: conv_activation\n    off: {nodes: [swish], reason: "ticket 7"}\n')
    done = run("why", swish, "--pair", "conv", "swish", "--target", "cpu-avx2", "--override", override)
    report.check("an override's reason is said once", None if re.search(r"^to change it: take the entry out of \S+off\.yaml:3$", done.out, re.MULTILINE) else done.out)
    report.check("no generated kernels", None if "no layer has a generated kernel" in run("explain", swish, "--target", "cpu-avx2", "--stage", "kernels").err else "not said")


def familiar(report, net):
    """Input files as other tools name them, options of another command, names that are nearly right, examples and JSON everywhere."""
    folder = report.folder
    a, b = folder / "left.npy", folder / "right.npy"
    np.save(a, np.ones((2, 4), np.float32)), np.save(b, np.full((2, 4), 2, np.float32))
    for given in (["--inputs", f"a:{a},b:{b}"], ["--inputs", f"a={a}", "--input", f"b={b}"], ["--input", f"a:{a}", "--input", f"b:{b}"]):
        out = folder / "sum.npz"
        done = run("run", net, *given, "--outputs", out, "--force")
        report.check(f"run {given[0]} {given[1][:2]}", None if done.code == OK and np.load(out)["y"].tolist() == [[3.0] * 4] * 2 else done.tail())
    report.check("--inputs without a name", refusal(run("run", net, "--inputs", a), USAGE, "NAME=FILE.npy"))
    report.check("an option of another command", refusal(run("explain", net, "--pair", "a", "b"), USAGE, "ferrule why has it"))
    for command in (["rules", "show"], ["rules", "test"]):
        report.check(f"{' '.join(command)}: the nearest rule", refusal(run(*command, "conv_activaton"), USAGE, 'did you mean "conv_activation"'))
    report.check("rules coverage of one rule", harness.crash(done := run("rules", "coverage", "cast_noop")) or (
        None if "declines" not in done.out and "cast_noop" in done.out else done.out))
    for command, key in ((["show", "conv_activation"], "text"), (["check"], "errors"), (["vocabulary"], "functions")):
        done, found = run("rules", *command, "--json"), None
        found, problem = harness.answer(done)
        report.check(f"rules {command[0]} --json", problem or (None if key in found and found["schema_version"] == 1 else done.tail()))
    commands = [["cache", k] for k in ("stat", "verify", "clear")] + [["rules", k] for k in ("list", "show", "check", "test", "coverage", "vocabulary", "schema", "new")]
    listed = re.findall(r"^  ([a-z]+)  ", run("--help").out, re.MULTILINE)
    report.check("all commands are listed", None if len(listed) > 14 else str(listed))
    for command in commands + [[k] for k in listed if k != "help"]:
        examples = re.findall(r"^ .*ferrule ", run(*command, "--help").out.partition("Examples:\n")[2], re.MULTILINE)
        report.check(f"{' '.join(command)} --help has three examples", None if len(examples) >= 3 else f"{len(examples)}")


POOL = """agraph (float[N,3,H,W] x) => (float[N,16,P,Q] y) <float[16,3,3,3] V = {WEIGHTS}> {
  [conv] c = Conv <pads = [1,1,1,1]> (x, V)
  [relu] r = Relu (c)
  [pool] y = MaxPool <kernel_shape = [2,2], strides = [2,2]> (r)
}""".replace("WEIGHTS", ", ".join("0.1" for _ in range(16 * 3 * 9)))


def ranges(report, net):
    """--shapes with a range: what is planned at both ends, and what is decided between them."""
    done = run("explain", net, "--shapes", "a:1..8x4,b:1..8x4")
    report.check("a range that decides all", None if done.code == OK and "for a:8x4 b:8x4" in done.out and "the same for a:1x4,b:1x4" in done.out
                 and "decided for all sizes between" in done.out and "not decided" not in done.out else done.tail() + done.out)
    pool = harness.model(report.folder / "pool.onnx", POOL)
    target = ["--target", "cpu-avx2"]
    def rules(*more):
        found, problem = harness.answer(run("explain", pool, *target, *more, "--json"))
        return problem or found
    small, large = rules("--shapes", "x:1x3x32x32"), rules("--shapes", "x:64x3x128x128")
    report.check("the model tells sizes apart", None if "conv_pool" in large["rules"] and "conv_pool" not in small["rules"] else f"{small['rules']} {large['rules']}")
    both = rules("--shapes", "x:1..64x3x32..128x32..128")
    got = both.get("ranges", {})
    report.check("a range with two plans", None if [x["name"] for x in both["layers"]] == [x["name"] for x in large["layers"]]
                 and got.get("smallest") == "x:1x3x32x32" and got.get("shown") == "x:64x3x128x128"
                 and [x["rule"] for x in got["undecided"] if x["rule"]] == ["conv_pool"]
                 and "conv + relu" in [x["name"] for x in got["only_smallest"]] else str(got))
    for command in ("run", "bench", "verify", "compile"):
        report.check(f"{command} of a range", refusal(run(command, net, "--shapes", "a:1..8x4"), USAGE, "range 1..8", "explain, why and missed", "such as 8"))
    for what in (("missed",), ("why", "--node", "conv"), ("why", "--pair", "conv", "pool")):
        asked = [what[0], pool, *what[1:], *target]
        largest, range_of = run(*asked, "--shapes", "x:64x3x128x128"), run(*asked, "--shapes", "x:1..64x3x32..128x32..128")
        first, _, rest = range_of.out.partition("\n")
        report.check(f"{' '.join(what)}: a range is its largest sizes", None if range_of.code == OK and rest == largest.out
                     and first == "sizes in a range: this is for the largest, x:64x3x128x128" else range_of.tail() + range_of.out)
        found, problem = harness.answer(run(*asked, "--shapes", "x:1..64x3x128x128", "--json"))
        report.check(f"{' '.join(what)} --json: a range", problem or (None if found["ranges"] == {"shown": "x:64x3x128x128"} else str(found["ranges"])))
    for shape in ("a:8..1x4", "a:1..x4", "a:..8x4", "a:1...8x4"):
        report.check(f"no range: {shape}", refusal(run("explain", net, "--shapes", shape), USAGE, "--shapes"))


def protocol(report, net):
    """Inputs as the Open Inference Protocol writes them."""
    path, out = report.folder / "request.json", report.folder / "answer.npz"
    def request(*inputs):
        path.write_text(json.dumps({"id": "1", "inputs": list(inputs)}))
        return run("run", net, "--inputs", path, "--outputs", out, "--force")
    def one(name="a", shape=(2, 4), datatype="FP32", data=tuple(range(8)), **more):
        return {"name": name, "shape": list(shape), "datatype": datatype, "data": list(data), **more}
    for nested in (False, True):
        done = request(one(), one("b", data=[[0.5] * 4, [1.5] * 4] if nested else [0.5] * 4 + [1.5] * 4, parameters={}))
        report.check(f"a request, nested {nested}", None if done.code == OK and np.load(out)["y"].tolist() == [[0.5, 1.5, 2.5, 3.5], [5.5, 6.5, 7.5, 8.5]] else done.tail())
    for name, bad, says in (("too few", one(data=range(7)), "7 elements.*8"), ("a text", one(data=["x"] * 8), "element 0"),
                            ("an unknown type", one(datatype="float"), "FP32"), ("a negative size", one(shape=[-2, 4]), "shape"),
                            ("too deep", one(data=[[[1.0] * 8]]), "too many lists"), ("another type", one(datatype="FP64"), "f64"),
                            ("no name", {"shape": [1]}, "name"), ("too large", one(shape=[1 << 40, 1 << 40]), "8 elements")):
        report.check(f"a request with {name}", refusal(request(bad, one("b")), USAGE, says))
    report.check("a request with one twice", refusal(request(one(), one()), USAGE, "twice"))
    for text, says in (("{", "line 1, column 2"), ('{"inputs": [1e400]}', "1e400"), ("[]", "inputs"), ("{}", "inputs"), ("[" * 100_000, "parse error")):
        path.write_text(text)
        report.check(f"no request: {text[:19]}", refusal(run("run", net, "--inputs", path), USAGE, f"request.json.*{says}"))
    report.check("no such request", refusal(run("run", net, "--inputs", report.folder / "none.json"), USAGE, "none.json"))
    limits = {"INT8": (-128, 127), "UINT8": (0, 255), "INT64": (-2**63, 2**63 - 1), "UINT64": (0, 2**64 - 1), "INT16": (-2**15, 2**15 - 1), "BOOL": (0, 1)}
    for datatype, (low, high) in limits.items():
        kind = {"BOOL": "bool"}.get(datatype, datatype.lower())
        same = harness.model(report.folder / f"{kind}.onnx", f"agraph ({kind}[2] a) => ({kind}[2] y) {{ y = Identity (a) }}")
        def takes(*values, model=same, datatype=datatype):
            path.write_text(json.dumps({"inputs": [one(shape=[2], datatype=datatype, data=values)]}))
            return run("run", model, "--inputs", path, "--outputs", out, "--force", "--backend", "reference")
        done = takes(low, high)
        report.check(f"{datatype} to its limits", None if done.code == OK and [int(v) for v in np.load(out)["y"]] == [low, high] else done.tail())
        report.check(f"{datatype} and no more", refusal(takes(low, high + 1), USAGE, datatype))
        report.check(f"{datatype} and no less", refusal(takes(low - 1, high), USAGE, datatype))


def main():
    report = harness.Report()
    if report.ready:
        net = harness.model(report.folder / "add.onnx", ADD)
        doctor(report)
        options(report, net)
        errors_as_json(report, net)
        markdown(report, net)
        arrays(report, net)
        rules(report)
        unknown_operators(report)
        texts(report)
        complete(report)
        bench(report, net)
        bars(report)
        plainly(report)
        familiar(report, net)
        ranges(report, net)
        protocol(report, net)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
