"""The program as its user meets it: what each command prints, and every refusal: its exit code, one clear
message that names place, cause and remedy, nothing on stdout, no crash, in under two seconds.
"""
import json
import os
import random
import re
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper

import graphs as graphs_of_any_size
import harness
import tolerance
from harness import ENVIRONMENT, LIMIT, OK, UNSUPPORTED, USAGE, refusal, run

NET = """
agraph (float[1,2,4,4] x) => (float[1,2,4,4] y)
<float[2,2,1,1] W = {1.0, -2.0, 3.0, 0.5}, float[2] g = {1.0, 2.0}, float[2] b = {0.0, 1.0},
 float[2] m = {0.1, 0.2}, float[2] v = {1.0, 0.5}> {
  [conv] c = Conv (x, W)
  [norm] n = BatchNormalization (c, g, b, m, v)
  [act] y = Relu (n)
}
"""


def refused(report, what, code, *wanted, arguments, **options):
    """Runs the program and checks that it refuses as it should, with nothing on stdout."""
    done = run(*arguments)
    problem = refusal(done, code, *wanted, **options)
    if problem is None and done.out and done.code != OK:
        problem = f"a refusal wrote to stdout: {done.out[:100]!r}"
    report.check(what, problem)
    return done


def files(report, net):
    """Things that are not a model."""
    folder = report.folder
    missing = folder / "missing.onnx"
    refused(report, "no file", USAGE, "missing.onnx", "no such file|not found|cannot open",
            arguments=["explain", missing])
    refused(report, "a directory", USAGE, "directory|not a (regular )?file", arguments=["explain", folder])
    fifo = folder / "pipe.onnx"
    os.mkfifo(fifo)
    refused(report, "a FIFO", USAGE, "pipe.onnx", arguments=["explain", fifo])
    if os.path.exists("/dev/zero"):
        refused(report, "/dev/zero", USAGE, "/dev/zero", arguments=["explain", "/dev/zero"])

    rng = random.Random(1)
    contents = {
        "empty": b"", "one byte": b"\x08", "text": b"this is not a model\n", "zip": b"PK\x03\x04" + bytes(200),
        "gzip": b"\x1f\x8b\x08" + bytes(100), "html": b"<!DOCTYPE html><html><body>404</body></html>",
        "git lfs pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
        "random 1 KB": rng.randbytes(1024), "random 1 MB": rng.randbytes(1 << 20),
        "zeros": bytes(4096), "only an IR version": b"\x08\x0a",
    }
    for name, data in contents.items():
        path = folder / "bytes.onnx"
        path.write_bytes(data)
        refused(report, f"not a model: {name}", USAGE, r"bytes\.onnx|model", arguments=["explain", path])

    whole = net.read_bytes()
    for cut in range(20):
        path = folder / "cut.onnx"
        path.write_bytes(whole[:len(whole) * cut // 20])
        refused(report, f"the first {cut}/20 of a model", USAGE, "cut.onnx", arguments=["explain", path])
    if os.geteuid() != 0:
        path = folder / "secret.onnx"
        path.write_bytes(whole)
        path.chmod(0)
        refused(report, "no right to read", USAGE, "secret.onnx", "permission", arguments=["explain", path])


def graphs(report):
    """Models that are no graph of known operators."""
    folder = report.folder

    def bad(what, code, text, *wanted, **options):
        path = folder / "bad.onnx"
        onnx.save(text if isinstance(text, onnx.ModelProto) else harness.onnx_text(text), str(path))
        return refused(report, what, code, *wanted, arguments=["explain", path], **options)

    bad("a cycle", USAGE, """agraph (float[2] x) => (float[2] y) {
        [first] a = Add (x, b)
        [second] b = Relu (a)
        [last] y = Relu (b) }""", r"cycl", r"first|second|\ba\b|\bb\b")
    bad("a node that reads itself", USAGE, "agraph (float[2] x) => (float[2] y) { [own] y = Add (x, y) }", r"cycl", "own|y")
    bad("a dangling input", USAGE, "agraph (float[2] x) => (float[2] y) { [add] y = Add (x, ghost) }", "ghost")
    bad("an output that nothing produces", USAGE, "agraph (float[2] x) => (float[2] y) { z = Relu (x) }", r"\by\b")
    bad("two nodes write one value", USAGE, """agraph (float[2] x) => (float[2] y) {
        y = Relu (x)
        y = Abs (x) }""", r"\by\b", "twice|duplicate|more than once|SSA|unique")
    bad("an input twice", USAGE, "agraph (float[2] x, float[2] x) => (float[2] y) { y = Relu (x) }", r"\bx\b")
    bad("a node writes an input", USAGE, """agraph (float[2] x) => (float[2] y) {
        x = Abs (x)
        y = Relu (x) }""", r"\bx\b")
    bad("a perm that is none", USAGE,
        "agraph (float[2,3] x) => (float[3,2] y) { [turn] y = Transpose <perm = [0, 0]> (x) }", "perm|twice", "turn|Transpose")
    bad("too few inputs", USAGE, "agraph (float[2] x) => (float[2] y) { [half] y = Add (x) }", "half|Add")
    bad("a missing required attribute", USAGE, "agraph (float[2] x) => (float[2] y) { [c] y = Cast (x) }", r"\bto\b", "Cast|c")
    bad("an attribute that Relu lacks", USAGE, "agraph (float[2] x) => (float[2] y) { [r] y = Relu <alpha = 2.0> (x) }", "alpha")
    bad("shapes that cannot be added", USAGE,
        "agraph (float[2,3] x, float[2,4] z) => (float[2,3] y) { [sum] y = Add (x, z) }", "sum|Add")
    bad("a kernel of another depth than its input", USAGE, """agraph (float[1,3,4,4] x) => (float[1,2,4,4] y)
        <float[2,2,1,1] W = {1.0, 2.0, 3.0, 4.0}> { [c] y = Conv (x, W) }""", r"\bc\b|Conv")

    bad("an unknown operator", UNSUPPORTED,
        "agraph (float[2] x) => (float[2] y) { [strange] y = Frobnicate (x) }", "strange", "Frobnicate", r"\b18\b")
    bad("an unknown operator of an unknown domain", UNSUPPORTED, """
        <ir_version: 10, opset_import: ["" : 18, "com.acme" : 3]>
        agraph (float[2] x) => (float[2] y) { [strange] y = com.acme.Frobnicate (x) }""",
        "strange", "Frobnicate", r"\b3\b")
    # A formula knows HardSwish whatever the opset; an operator that none describes is refused.
    bad("an operator newer than its opset", (USAGE, UNSUPPORTED), """<ir_version: 7, opset_import: ["" : 11]>
        agraph (float[2] x) => (float[2] y) { [g] y = CenterCropPad (x, x) }""", "CenterCropPad", r"\b11\b")
    bad("an opset of the far future", (USAGE, UNSUPPORTED), """<ir_version: 10, opset_import: ["" : 9999]>
        agraph (float[2] x) => (float[2] y) { y = Relu (x) }""", "9999")
    bad("an opset before 7", (USAGE, UNSUPPORTED), """<ir_version: 3, opset_import: ["" : 6]>
        agraph (float[2] x) => (float[2] y) { y = Relu (x) }""", "opset", r"\b6\b")

    bad("a function bomb", LIMIT, function_bomb(31), "nodes", "--limit", seconds=1.0)
    bad("a function that calls itself", (USAGE, LIMIT), function_ring(1), "F0|recurs|cycl|itself")
    bad("functions that call each other", (USAGE, LIMIT), function_ring(3), r"F\d|recurs|cycl")


def function_bomb(depth):
    """Functions F0 … each calling the one before twice: a few hundred bytes, 2^depth nodes."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    functions = []
    for k in range(depth):
        op, domain = ("Relu", "") if k == 0 else (f"F{k - 1}", "local")
        nodes = [helper.make_node(op, ["x"], ["t"], domain=domain), helper.make_node(op, ["t"], ["y"], domain=domain)]
        functions.append(helper.make_function("local", f"F{k}", ["x"], ["y"], nodes, opsets))
    return caller(f"F{depth - 1}", functions, opsets)


def function_ring(length):
    """Functions that call each other in a ring."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    functions = [helper.make_function("local", f"F{k}", ["x"], ["y"],
                                      [helper.make_node(f"F{(k + 1) % length}", ["x"], ["y"], domain="local")], opsets)
                 for k in range(length)]
    return caller("F0", functions, opsets)


def caller(function, functions, opsets):
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy"]
    graph = helper.make_graph([helper.make_node(function, ["x"], ["y"], domain="local", name="call")], "g",
                              value[:1], value[1:])
    return helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=10)


def run_inputs(report, net):
    """`run` with inputs that do not fit, and outputs that cannot be written."""
    folder = report.folder
    good = folder / "in.npz"
    np.savez(good, x=np.ones((1, 2, 4, 4), np.float32))
    out = folder / "out.npz"

    def bad(what, *wanted, arrays=None, content=None, name="bad.npz", code=USAGE):
        path = folder / name
        if arrays is not None:
            np.savez(path, **arrays)
        else:
            path.write_bytes(content)
        refused(report, f"run: {what}", code, *wanted, arguments=["run", net, "--inputs", path, "--outputs", out, "--force"])

    one = np.ones((1, 2, 4, 4), np.float32)
    bad("an input that the model has not", "z", r"\bx\b", arrays={"z": one})
    bad("one input too many", "extra", arrays={"x": one, "extra": one})
    bad("no input", r"\bx\b", arrays={})
    bad("a wrong shape", r"\bx\b", "5", arrays={"x": np.ones((1, 2, 4, 5), np.float32)})
    bad("a wrong rank", r"\bx\b", arrays={"x": np.ones((2, 4, 4), np.float32)})
    bad("a wrong type", r"\bx\b", "f64|float64|double", arrays={"x": one.astype(np.float64)})
    bad("strings", r"\bx\b|bad.npz", arrays={"x": np.array(["a", "b"])})
    bad("Python objects", r"\bx\b|bad.npz", arrays={"x": np.array([None, {}], dtype=object)})
    whole = good.read_bytes()
    bad("an empty npz", "bad.npz", content=b"")
    bad("text for npz", "bad.npz", content=b"hello\n" * 100)
    for cut in (1, 3, 5, 7, 9):
        bad(f"the first {cut}/10 of an npz", "bad.npz", content=whole[:len(whole) * cut // 10])
    at = whole.index(b"'shape': (1, 2, 4, 4)")
    bad("an npz that claims a huge shape", "bad.npz",
        content=whole[:at] + b"'shape': (9, 9, 9, 9)" + whole[at + 21:])
    at = whole.index(b"'descr': '<f4'")
    bad("an npz of an unknown type", "bad.npz|x", content=whole[:at] + b"'descr': '<q9'" + whole[at + 14:])
    refused(report, "run: no such npz", USAGE, "none.npz",
            arguments=["run", net, "--inputs", folder / "none.npz", "--outputs", out])
    refused(report, "run: --input without a name", USAGE, "--input",
            arguments=["run", net, "--input", "x.npy", "--outputs", out])

    out.unlink(missing_ok=True)
    done = run("run", net, "--inputs", good, "--outputs", out)
    report.check("run writes its outputs", None if done.code == OK and out.exists() else done.tail())
    out.write_bytes(b"precious")
    refused(report, "run: the output exists", USAGE, "out.npz", "--force",
            arguments=["run", net, "--inputs", good, "--outputs", out])
    report.check("run: what exists is untouched", None if out.read_bytes() == b"precious" else "it was overwritten")
    done = run("run", net, "--inputs", good, "--outputs", out, "--force")
    report.check("run --force overwrites", None if done.code == OK and out.read_bytes()[:2] == b"PK" else done.tail())
    refused(report, "run: output into a folder that is missing", USAGE, "nowhere",
            arguments=["run", net, "--inputs", good, "--outputs", folder / "nowhere" / "out.npz"])
    refused(report, "run: a folder as output", USAGE, folder.name,
            arguments=["run", net, "--inputs", good, "--outputs", folder, "--force"])
    if os.path.isdir("/proc/self"):
        refused(report, "run: output where nothing can be written", USAGE, "/proc",
                arguments=["run", net, "--inputs", good, "--outputs", "/proc/out.npz"])
    left = [f.name for f in folder.iterdir() if re.search(r"out\.npz.+|tmp", f.name)]
    report.check("run leaves nothing behind", f"left: {left}" if left else None)


RULE = """ferrule: 1
id: twice
kind: rewrite
doc: Abs twice is Abs once.
source: [test]
phase: canonicalize
numerics: exact
match: |
  t = Abs(x)
  y = Abs(t)
where:
  - {id: typed, sound: "rank(x) >= 0", why: "the rank of {x} is not known"}
rewrite: |
  y = Abs(x)
tests:
  fires:
    - |
      agraph (float[2,3] x) => (float[2,3] y) {
        t = Abs(x)
        y = Abs(t)
      }
  holds:
    - {declined_by: D1, leak: t}
"""

# What is replaced in RULE, by what, and what the message must say.
RULE_ERRORS = {
    "an unknown key": ("doc: Abs", "docs: Abs", ["docs", "did you mean.*doc"]),
    "an unknown key in a condition": ("why:", "whyy:", ["whyy", "did you mean.*why"]),
    "a duplicate key": ("phase: canonicalize", "phase: canonicalize\nphase: fold", ["phase", "twice|duplicate|already"]),
    "a tag": ("doc: Abs", "doc: !!python/object Abs", ["tag"]),
    "an alias": ("source: [test]", "source: &a [test, *a]", ["anchor|alias"]),
    "a merge key": ("source: [test]", "source: [test]\n<<: {doc: no}", ["merge|<<"]),
    "a second document": ("tests:\n", "---\ntests:\n", ["document"]),
    "a tab": ("  - {id: typed", "\t- {id: typed", ["tab|indent|character|found"]),
    "broken YAML": ("source: [test]", "source: [test", [r"line|\d+:\d+"]),
    "no kind": ("kind: rewrite\n", "", ["kind"]),
    "an unknown kind": ("kind: rewrite", "kind: rewritte", ["rewritte", "rewrite"]),
    "an unknown phase": ("phase: canonicalize", "phase: canonicalise", ["canonicalise", "canonicalize"]),
    "an unknown numerics class": ("numerics: exact", "numerics: exakt", ["exakt", "exact"]),
    "an id that is not the file's name": ("id: twice", "id: thrice", ["thrice", "twice"]),
    "a wrong version": ("ferrule: 1", "ferrule: 7", ["7"]),
    "an unfinished pattern": ("y = Abs(t)\nwhere", "y = Abs(t\nwhere", [r"\)"]),
    "a pattern that is no pattern": ("t = Abs(x)\n  y = Abs(t)\nwhere", "t == Abs(x)\n  y = Abs(t)\nwhere", ["="]),
    "a disconnected pattern": ("t = Abs(x)\n  y = Abs(t)\nwhere", "t = Abs(x)\n  y = Abs(z)\nwhere", ["t|connect|use"]),
    "an unknown function": ("rank(x) >= 0", "rnak(x) >= 0", ["rnak", "rank"]),
    "an unbound name in a condition": ("rank(x) >= 0", "rank(q) >= 0", [r"\bq\b"]),
    "an unbound name in a text": ("the rank of {x}", "the rank of {q}", [r"\bq\b"]),
    "an unbound name in the replacement": ("y = Abs(x)\ntests", "y = Abs(q)\ntests", [r"\bq\b"]),
    "a condition that is no expression": ("rank(x) >= 0", "rank(x) >=", ["expression|operand|end"]),
    "two classes of one condition": ('sound: "rank', 'profit: "true", sound: "rank', ["sound", "profit"]),
    "no output in the replacement": ("y = Abs(x)\ntests", "z = Abs(x)\ntests", [r"\by\b"]),
    "an unknown edit verb": ("leak: t", "leek: t", ["leek", "leak"]),
}

# What loading cannot see: found by `rules check` or `rules test`.
RULE_FINDINGS = {
    "an unknown operator in the pattern": ("t = Abs(x)\n  y = Abs(t)\nwhere", "t = Abss(x)\n  y = Abs(t)\nwhere", ["Abss", "Abs"]),
    "a condition that is a number": ("rank(x) >= 0", "rank(x) + 1", ["bool|true|condition|number"]),
    "a test that is no ONNX text": ("agraph (float[2,3] x)", "agraph float[2,3] x)", ["test|agraph|fires|parse"]),
}


def rules(report, net):
    """Malformed rules: file, line, column, caret, hint."""
    folder = report.folder / "user_rules"
    folder.mkdir()
    path = folder / "twice.yaml"
    path.write_text(RULE)
    done = run("explain", net, "--rules", folder)
    report.check("a good rule of one's own loads", None if done.code == OK else done.tail())
    done = run("rules", "test", "twice", "--rules", folder)
    report.check("a condition that nothing needs is a note on a rule of one's own",
                 None if done.code == OK and "nothing shows that it is needed: twice" in done.out and "1 passed, 0 failed" in done.out
                 and "\nOPEN" not in done.out else done.tail())

    report.check("a decided proof", None if "proofs: 1 of 1" in done.out and "not decided" not in done.out and "LATE" not in done.out else done.tail())
    short = ["rules", "test", "conv_batchnorm", "--seconds", "0.1"]  # of the seconds that it takes
    done, told = run(*short), json.loads(run(*short, "--json").out or "{}")
    report.check("a proof that its time cut short is named, and how to go on",
                 None if done.code == OK and re.search(r"^LATE +conv_batchnorm: .*--seconds", done.out, re.MULTILINE)
                 and "rules not decided in their time: 1, conv_batchnorm (--seconds" in done.out else done.tail())
    texts = [row["undecided"] for row in told.get("rules", [])]
    report.check("a proof that its time cut short, in JSON",
                 None if told.get("undecided") == ["conv_batchnorm"] and len(texts) == 1 and "--seconds" in texts[0] else str(texts))
    told = json.loads(run("rules", "test", "conv_pool", "--seconds", "0.1", "--json").out or "{}")
    row = told.get("rules", [{}])[0]
    report.check("a group's cases are run whatever the time, and what it cut short is named",
                 None if told.get("undecided") == ["conv_pool"] and row["group_instances"] > 0 and "were run" in row["undecided"] else str(row)[:300])

    # A rewrite is proved when it is first loaded: a wrong one is refused, unless it is asked for.
    proofs = {"FERRULE_CACHE": str(report.folder / "cache")}
    run("explain", net, "--rules", folder, env=proofs)
    report.check("its proof is kept", None if list((report.folder / "cache" / "proofs").glob("*")) else "nothing in the cache folder")
    path.write_text(RULE.replace("  y = Abs(x)\ntests", "  y = Neg(x)\ntests"))
    report.check("a wrong rule is refused", refusal(run("explain", net, "--rules", folder, env=proofs), USAGE, "rule_unproven", r"twice\.yaml",
                                                    "output y", "--allow-unproven twice", seconds=10))
    done = run("explain", net, "--rules", folder, "--allow-unproven", "*", env=proofs)
    report.check("--allow-unproven", None if done.code == OK else done.tail())
    done = run("rules", "list", "--rules", folder, env=proofs)
    report.check("rules list with a wrong rule", None if done.code == OK else done.tail())

    for what, (old, new, wanted) in RULE_ERRORS.items():
        assert RULE.count(old) >= 1, what
        path.write_text(RULE.replace(old, new, 1))
        done = run("explain", net, "--rules", folder)
        # One mistake may be two errors: a misspelt key is unknown, and the right one is missing.
        problem = refusal(done, USAGE, *wanted, r"twice\.yaml(:\d+){0,2}", errors=2)
        if problem is None and not re.search(r"twice\.yaml:\d+(:\d+)?", done.err) and what != "no kind":
            problem = f"no line is named; {done.tail()}"
        if problem is None and not re.search(r"^\s*(\d+ )?[ |~]*\^", done.err, re.MULTILINE):
            problem = f"no caret; {done.tail()}"
        report.check(f"a rule with {what}", problem)

    for what, (old, new, wanted) in RULE_FINDINGS.items():
        assert RULE.count(old) >= 1, what
        path.write_text(RULE.replace(old, new, 1))
        found = [run("rules", *command, "--rules", folder, timeout=300) for command in (["check"], ["test", "twice"])]
        problem = next(filter(None, map(harness.crash, found)), None)
        if problem is None and not any(d.code != OK and all(re.search(w, d.out + d.err) for w in wanted) for d in found):
            problem = "neither finds it: " + " | ".join(d.tail() for d in found)
        report.check(f"a rule with {what}", problem)

    contents = {
        "that is empty": b"", "of random bytes": random.Random(2).randbytes(2000), "with a NUL": RULE.encode() + b"\0",
        "in Latin-1": RULE.replace("Abs twice", "Äbs twice").encode("latin-1"),
        "that is a list": b"- 1\n- 2\n", "that is too deep": b"[" * 100000,
        "that is too long": b"# " + b"x" * (2 << 20) + b"\n" + RULE.encode(),
    }
    for what, data in contents.items():
        path.write_bytes(data)
        code = (USAGE, LIMIT)
        refused(report, f"a rule file {what}", code, "twice.yaml", arguments=["explain", net, "--rules", folder], errors=20)
    path.write_bytes(RULE.replace("\n", "\r\n").encode())
    done = run("explain", net, "--rules", folder)
    report.check("a rule with CRLF", harness.crash(done) or (None if done.code in (OK, USAGE) else done.tail()))
    path.write_text(RULE)
    (folder / "more").mkdir()
    (folder / "more" / "twice.yaml").write_text(RULE)
    refused(report, "an id twice", USAGE, "twice", arguments=["explain", net, "--rules", folder])
    refused(report, "a rules folder that is missing", USAGE, "no_such", arguments=["explain", net, "--rules", report.folder / "no_such"])
    refused(report, "rules show of an unknown rule", USAGE, "conv_actvation", arguments=["rules", "show", "conv_actvation"])
    refused(report, "--disable of a rule that is not there", (OK, USAGE), arguments=["explain", net, "--disable", "no_such_rule"])


def command_line(report, net):
    """The command line itself."""
    refused(report, "no command", USAGE, "command|help", arguments=[], errors=1)
    refused(report, "an unknown command", USAGE, "explian", "explain", arguments=["explian", net])
    refused(report, "an unknown option", USAGE, "--disabel", "--disable", arguments=["explain", net, "--disabel", "x"])
    refused(report, "no model", USAGE, "MODEL", arguments=["explain"])
    done = refused(report, "a node that is an input", USAGE, "an input of the model", arguments=["why", net, "--node", "x"])
    report.check("the hint names the command's help", None if "see ferrule why --help" in done.err else done.err)
    refused(report, "an option without its value", USAGE, "--target", arguments=["explain", net, "--target"])
    refused(report, "two models", USAGE, "net.onnx|second", arguments=["explain", net, "second"])
    refused(report, "an unknown target", USAGE, "pdp11", "cpu-avx2", "sm_90", arguments=["explain", net, "--target", "pdp11"])
    refused(report, "an unknown profile", USAGE, "pdp11", "ferrule", "tensorrt", arguments=["explain", net, "--profile", "pdp11"])
    refused(report, "an unknown backend", USAGE, "abacus", "cpu", "reference",
            arguments=["run", net, "--seed", "1", "--backend", "abacus"])
    refused(report, "a negative number of threads", USAGE, "threads", arguments=["explain", net, "--threads", "-1"])
    refused(report, "an unknown stage", USAGE, "blueprint", "graph", arguments=["explain", net, "--stage", "blueprint"])
    for shape in ("x", "x:1xx4", "x:axb", "x:1x2x4x4x", "x:99999999999999999999", ":1x2"):
        refused(report, f"--shapes {shape}", USAGE, "--shapes", arguments=["explain", net, "--shapes", shape])
    refused(report, "--shapes of an input that is not there", USAGE, "nosuch", r"\bx\b",
            arguments=["explain", net, "--shapes", "nosuch:1x2x4x4"])
    refused(report, "--shapes against the model", USAGE, r"\bx\b", arguments=["explain", net, "--shapes", "x:1x2x4x5"])
    refused(report, "--strict and --fast-math", USAGE, "strict", "fast-math", arguments=["explain", net, "--strict", "--fast-math"])
    refused(report, "a limit is hit", LIMIT, "--limit", "nodes", arguments=["explain", net, "--limit", "nodes=1"])
    refused(report, "an unknown limit", USAGE, "nodse", "nodes", arguments=["explain", net, "--limit", "nodse=1"])
    refused(report, "a limit without a number", USAGE, "--limit", arguments=["explain", net, "--limit", "nodes=many"])

    for arguments in (["--help"], ["--version"], *([c, "--help"] for c in
                      ("explain", "why", "missed", "ablate", "run", "bench", "verify", "reduce", "fuse", "compile", "rules", "doctor"))):
        done = run(*arguments)
        report.check(" ".join(arguments), harness.crash(done) or (
            None if done.code == OK and done.out and not done.err else done.tail()))
    for command in ("explain", "why", "missed", "ablate", "run", "bench", "verify", "reduce", "fuse", "compile"):
        done = run(command, "--help")
        report.check(f"{command} --help has examples", None if "Example" in done.out else "it has none")


def outputs(report, net):
    """--json of every command; text without colours; the same twice."""
    inputs = report.folder / "x.npz"
    np.savez(inputs, x=np.random.default_rng(3).standard_normal((1, 2, 4, 4)).astype(np.float32))

    def data(what, *arguments, keys=()):
        done = run(*arguments, "--json", timeout=120)
        value, problem = harness.answer(done)
        if problem is None and value.get("schema_version") != 1:
            problem = f"schema_version is {value.get('schema_version')}"
        if problem is None:
            missing = [k for k in keys if k not in value]
            problem = f"keys missing: {missing}; there are {sorted(value)}" if missing else None
        report.check(f"{what} --json", problem or harness.crash(done))
        return value or {}

    plan = data("explain", "explain", net, keys=["layers", "phases"])
    for layer in plan.get("layers", []):
        fine = (isinstance(layer.get("name"), str) and isinstance(layer.get("nodes"), list)
                and isinstance(layer.get("rule", 0), (str, type(None))) and isinstance(layer.get("kernels"), int)
              and all(isinstance(op, str) and op for op in layer.get("operators", [None])))
        report.check("explain --json layer", None if fine else json.dumps(layer))
    for more, said in (((), None), (("--fast-math",), "library (NaN may become 0)"), (("--strict",), None)):
        said_now = [layer.get("numerics") for layer in data("explain", "explain", net, "--target", "cpu-avx2", *more).get("layers", [])
                    if layer["contract"] == "conv"]
        report.check(f"explain {' '.join(more)}: numerics of a Relu", None if said_now == [said] else str(said_now))
    done = run("explain", net, "--json")  # is written in pieces
    whole = json.dumps(json.loads(done.out or "{}"), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    report.check("explain --json is laid out as a whole", None if done.out == whole else done.out[:400])
    phases = plan.get("phases", [])
    report.check("explain --json phases", None if phases and all(
        isinstance(p, dict) and isinstance(p.get("name"), str) and isinstance(p.get("layers"), int) for p in phases)
        else f"wanted [{{name, layers}}], got {json.dumps(phases)[:200]}")

    answer = data("run", "run", net, "--inputs", inputs, "--outputs", report.folder / "y.npz", keys=["kernels_launched"])
    report.check("run launches what explain promised", None if answer.get("kernels_launched") == sum(
        layer["kernels"] for layer in plan.get("layers", [])) else f"run: {answer.get('kernels_launched')}, explain: {plan.get('layers')}")
    bench = data("bench", "bench", net, "--seconds", "0.2", keys=["latency_ms", "load_ms", "plan_ms", "compile_ms", "peak_memory_bytes"])
    times = bench.get("latency_ms", {})
    report.check("bench --json latencies", None if times and 0 < times.get("min", 0) <= times.get("median", 0)
                 <= times.get("p90", 0) <= times.get("p99", 0) else json.dumps(times))
    data("verify", "verify", net)
    data("verify --oracle", "verify", net, "--oracle")
    listed = data("rules list", "rules", "list", keys=["rules"])
    report.check("rules list has rules", None if len(listed.get("rules", [])) > 20 else "fewer than 20")
    data("doctor", "doctor", keys=["checks"])

    one, two = run("explain", net, "--target", "cpu-avx2"), run("explain", net, "--target", "cpu-avx2")
    report.check("explain twice is the same", None if one.out == two.out and one.code == OK else one.tail())
    plain = run("explain", net, env={"NO_COLOR": "1", "TERM": "xterm-256color"})
    report.check("no colours into a pipe", harness.crash(plain))
    report.check("explain names node and rule", None if "conv" in one.out and re.search(r"conv_\w+", one.out) else one.out)
    for stage in ("graph", "journal", "kernels"):
        done = run("explain", net, "--stage", stage)
        report.check(f"explain --stage {stage}", harness.crash(done) or (None if done.code == OK and (done.out or stage == "kernels") else done.tail()))

    # The numbers: random inputs by seed are reproducible, and fused equals unfused.
    names = []
    for index, extra in enumerate(([], [], ["--disable", "*"], ["--backend", "reference"])):
        path = report.folder / f"seed{index}.npz"
        done = run("run", net, "--seed", "7", "--outputs", path, *extra)
        report.check(f"run --seed 7 {' '.join(extra)}", harness.crash(done) or (None if done.code == OK else done.tail()))
        names.append(path)
    if all(p.exists() for p in names):
        values = [np.load(p)["y"] for p in names]
        report.check("one seed, one result", None if np.array_equal(values[0], values[1]) else "two runs differ")
        report.check("with and without fusion", tolerance.difference(values[2], values[0]))
        report.check("cpu and reference", tolerance.difference(values[0], values[3]))
    done = run("run", net, "--input", f"x={report.folder / 'x.npy'}", "--outputs", report.folder / "npy.npz")
    report.check("run --input of a missing file", refusal(done, USAGE, "x.npy"))
    np.save(report.folder / "x.npy", np.ones((1, 2, 4, 4), np.float32))
    done = run("run", net, "--input", f"x={report.folder / 'x.npy'}", "--outputs", report.folder / "npy.npz")
    report.check("run --input", None if done.code == OK else done.tail())

    done = run("compile", net, "--target", "sm_90", timeout=120)
    report.check("compile --target sm_90", harness.crash(done) or (None if done.code == OK else refusal(
        done, ENVIRONMENT, "nvrtc", "doctor|install|pip", seconds=60)))
    folder = report.folder / "sources"
    chain = harness.model(report.folder / "chain.onnx", "agraph (float[8] x, float[8] z) => (float[8] y) {\n  a = Mul(x, z)\n  y = Sigmoid(a)\n}")
    done = run("compile", chain, "--target", "sm_90", "--sources", folder, timeout=120)
    texts = [f.read_text() for f in sorted(folder.glob("*.cu"))]
    named = all(re.match("// rule pointwise.*, nodes .*Mul.*Sigmoid", t) and "__global__" in t for t in texts)
    report.check("compile --sources", harness.crash(done) or (None if texts and named else f"{len(texts)} files; {done.tail()}"))
    done = run("compile", chain, "--target", "sm_90", "--sources", folder, timeout=120)
    report.check("compile --sources keeps what exists", refusal(done, USAGE, r"\.cu exists", "--force", seconds=60))
    done = run("compile", chain, "--target", "cpu-avx2", "--sources", folder)
    report.check("compile --sources for a CPU", refusal(done, USAGE, "--sources", seconds=60))
    done = run("rules", "schema")
    report.check("rules schema is JSON", None if done.code == OK and "properties" in json.loads(done.out or "{}") else done.tail())
    done = run("rules", "vocabulary")
    report.check("rules vocabulary", None if done.code == OK and "rank(" in done.out else done.tail())
    fresh = report.folder / "fresh.yaml"
    done = run("rules", "new", fresh)
    report.check("rules new", None if done.code == OK and fresh.exists() else done.tail())
    done = run("rules", "new", fresh)
    report.check("rules new keeps what exists", refusal(done, USAGE, "fresh.yaml", "--force"))


def data_dependent_size(report):
    """A size that only a run knows: the node that decides it is interpreted, and said; --no-interpreter refuses it."""
    net = report.folder / "nonzero.onnx"
    onnx.save(onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
g (float[4] x) => (int64[1, K] y) { y = NonZero(x) }"""), str(net))
    x, y = report.folder / "nonzero.npy", report.folder / "nonzero.npz"
    np.save(x, np.array([0, 2, 0, 3], np.float32))
    for title, options in (("a size that only a run knows", []), ("a size that only a run knows, on a named backend", ["--backend", "cpu"])):
        done = run("run", net, "--input", f"x={x}", "--outputs", y, "--force", *options)
        found = np.load(y)["y"].tolist() if done.code == OK else None
        report.check(title, None if found == [[1, 3]] and "ran on cpu" in done.err and "interpreted: NonZero" in done.err else done.tail())
    refused(report, "a size that only a run knows, where nothing runs", UNSUPPORTED, "size of output y", "plan such models in stages",
            arguments=["run", net, "--input", f"x={x}", "--backend", "null"])
    refused(report, "a size that only a run knows, without the interpreter", UNSUPPORTED, "NonZero", "it is interpreted",
            arguments=["run", net, "--input", f"x={x}", "--outputs", report.folder / "z.npz", "--no-interpreter"])


def few_threads(report):
    """OpenMP may give fewer threads than were asked for: no piece of the work is left undone."""
    net = harness.model(report.folder / "product.onnx", "agraph (float[300,256] a, float[256,520] b) => (float[300,520] y) { y = MatMul (a, b) }")
    for setting in ("OMP_THREAD_LIMIT=1", "OMP_THREAD_LIMIT=3", "OMP_DYNAMIC=true", "OMP_MAX_ACTIVE_LEVELS=0"):
        done = run("verify", net, "--oracle", "--backend", "cpu", "--threads", "4", env=dict([setting.split("=")]))
        report.check(f"four threads under {setting}", harness.crash(done) or (None if done.code == OK else done.tail()))


def tuning(report):
    """tune writes a file that run reads; nothing is overwritten; a damaged or foreign file is one message."""
    folder = report.folder
    weights = np.random.default_rng(3).standard_normal((8, 1, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "W"], ["c"], name="dw", group=8, pads=[1, 1, 1, 1]),
         helper.make_node("Relu", ["c"], ["y"], name="act")], "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 12, 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 12, 12])],
        [onnx.numpy_helper.from_array(weights, "W")])
    net = folder / "depthwise.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(net))
    file = folder / "tuning.yaml"
    common = ("--threads", "1", "--backend", "cpu")
    done = run("tune", net, "-o", file, "--seconds", "0.05", *common)
    report.check("tune", None if done.code == OK and "depthwise" in done.out and "onednn" in done.out else done.tail())
    text = file.read_text() if file.exists() else ""
    report.check("tune writes implementations and their times",
                 None if "problem: \"Conv f32[1x8x12x12]" in text and "onednn:" in text and "depthwise:" in text else text)
    done = run("tune", net, "-o", file, "--seconds", "0.05", *common)
    report.check("tune keeps what exists", refusal(done, USAGE, r"tuning\.yaml", "--force"))
    report.check("the file is as it was", None if file.exists() and file.read_text() == text else "it was changed")
    done = run("tune", net, "-o", folder / "no/such/folder.yaml", "--seconds", "0.05", *common)
    report.check("tune into no folder", refusal(done, USAGE, "folder.yaml"))
    done = run("tune", net, "--seconds", "0.05", "--json", *common)
    rows = json.loads(done.out or "{}").get("launches", [])
    report.check("tune --json", None if rows and rows[0]["usual"] == "depthwise" and len(rows[0]["us"]) > 1 else done.tail())

    # The file decides, either way, and the result is the same.
    values = []
    for use in ("depthwise", "onednn"):
        chosen = folder / f"{use}.yaml"
        chosen.write_text(re.sub(r"use: \w+", f"use: {use}", text))
        done = run("run", net, "--seed", "3", "--outputs", folder / f"{use}.npz", "--tuning", chosen, *common)
        report.check(f"run --tuning {use}", None if done.code == OK and not re.search("measured on|tuning file", done.err) else done.tail())
        if done.code == OK:
            values.append(np.load(folder / f"{use}.npz")["y"])
    report.check("both implementations agree", tolerance.difference(*values) if len(values) == 2 else "one did not run")

    foreign = folder / "foreign.yaml"
    foreign.write_text(re.sub(r"machine: .*", 'machine: "Z80"', re.sub(r"use: \w+", "use: teleport", text)))
    done = run("run", net, "--seed", "3", "--outputs", folder / "foreign.npz", "--tuning", foreign, *common)
    report.check("a foreign tuning file is noted and ignored",
                 None if done.code == OK and "Z80" in done.err and "teleport" in done.err else done.tail())
    for what, content, wanted in (("empty", "", "tuning"), ("half", text[:len(text) // 2], "half.yaml"),
                                  ("another version", text.replace("tuning: 1", "tuning: 2"), "version 2"),
                                  ("an unknown key", text + "lanes: 3\n", "lanes"), ("binary", "\0\1\2", "binary.yaml")):
        broken = folder / f"{what}.yaml"
        broken.write_text(content)
        done = run("run", net, "--seed", "3", "--outputs", folder / "broken.npz", "--tuning", broken, *common)
        report.check(f"a tuning file: {what}", refusal(done, USAGE, wanted, errors=100))
    done = run("run", net, "--seed", "3", "--outputs", folder / "missing.npz", "--tuning", folder / "none.yaml", *common)
    report.check("no tuning file", refusal(done, USAGE, "none.yaml"))


OPEN = """
agraph (float[1,2,H,W] x) => (float[1,2,P,Q] y)
<float[2,2,3,3] K = {1.0, -2.0, 3.0, 0.5, 1.0, -2.0, 3.0, 0.5, 1.0, -2.0, 3.0, 0.5, 1.0, -2.0, 3.0, 0.5, 1.0, -2.0,
 3.0, 0.5, 1.0, -2.0, 3.0, 0.5, 1.0, -2.0, 3.0, 0.5, 1.0, -2.0, 3.0, 0.5, 1.0, -2.0, 3.0, 0.5}> {
  [conv] c = Conv <pads = [1, 1, 1, 1]> (x, K)
  [pool] p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c)
  [sin] s = Sin (p)
  [mul] y = Mul (s, p)
}
"""


def endless_loop(path):
    """A Loop of 2^63 - 1 iterations that adds and never stops."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["going"], ["on"]), helper.make_node("Add", ["s", "s"], ["t"])], "body",
        [helper.make_tensor_value_info(n, t, d) for n, t, d in
         [("i", TensorProto.INT64, []), ("going", TensorProto.BOOL, []), ("s", TensorProto.FLOAT, [2])]],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, []), helper.make_tensor_value_info("t", TensorProto.FLOAT, [2])])
    most = helper.make_tensor("most", TensorProto.INT64, [], [2**63 - 1])
    graph = helper.make_graph([helper.make_node("Loop", ["most", "", "x"], ["y"], "forever", body=body)], "g",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])], [most])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def time_and_memory(report):
    """--timeout, another input shape in one session, the drawing of the arena."""
    loop = endless_loop(report.folder / "forever.onnx")
    for command in (["run"], ["run", "--backend", "reference"], ["bench"], ["verify"]):
        done = run(command[0], loop, "--timeout", "2", *command[1:])
        report.check(f"{' '.join(command)} --timeout", refusal(done, LIMIT, "time is up", "node", seconds=20))
    report.check("--timeout 0", refusal(run("run", loop, "--timeout", "0"), USAGE, "--timeout"))

    net = harness.model(report.folder / "open.onnx", OPEN)
    done = run("run", net, "--shapes", "x:1x2x8x8", "--timeout", "60")
    report.check("run within its time", harness.crash(done) or (None if done.code == OK else done.tail()))
    done = run("bench", net, "--shapes", "x:1x2x32x32", "--then", "x:1x2x64x48", "--then", "x:1x2x32x32", "--seconds", "0.1", "--json")
    then = json.loads(done.out)["then"] if done.code == OK else []
    report.check("another shape compiles no kernel", None if len(then) == 2 and all(
        t["kernels_compiled"] == 0 and t["plan_ms"] > 0 for t in then) else f"{then} {done.tail()}")
    report.check("bench --then of no shape", refusal(run("bench", net, "--shapes", "x:1x2x8x8", "--seconds", "0.1", "--then", "x"), USAGE, "x"))

    done = run("explain", net, "--shapes", "x:1x2x64x64", "--stage", "memory", "--json")
    memory, problem = harness.answer(done)
    if problem is None and not 0 < memory["least_bytes"] <= memory["arena_bytes"]:
        problem = f"arena {memory['arena_bytes']}, least {memory['least_bytes']}"
    for a in memory["slots"] if problem is None else []:
        for b in memory["slots"]:
            apart = (a["last"] < b["first"] or b["last"] < a["first"] or a["offset"] + a["bytes"] <= b["offset"]
                     or b["offset"] + b["bytes"] <= a["offset"])
            if a is not b and not apart:
                problem = f"{a} and {b} overlap"
    report.check("explain --stage memory --json", problem or harness.crash(done))
    done = run("explain", net, "--shapes", "x:1x2x64x64", "--stage", "memory")
    report.check("explain --stage memory", harness.crash(done) or (None if done.code == OK and re.search(
        r"lower bound +\d+\s+bytes", done.out) and "fullest step" in done.out else done.tail()))
    report.check("explain --stage memory without sizes", refusal(run("explain", net, "--stage", "memory"), USAGE, "x"))


def many_readers(report):
    """Values with tens of thousands of readers, each with one behind it: a search through the readers of every one of
    them would outlast the time that rewriting has (rule_loop), and the time given here."""
    path = report.folder / "branches.onnx"
    path.write_bytes(graphs_of_any_size.GRAPHS["branches"](200_000))
    done = run("explain", path, "--json", timeout=120)
    plan, problem = harness.answer(done)
    problem = problem or (None if plan["model_nodes"] == 200_000 and plan["rules"] == {"pointwise": 7} else str(plan["rules"]))
    report.check("200,000 branches of one value", harness.crash(done) or problem)


def main():
    report = harness.Report()
    if report.ready:
        net = harness.model(report.folder / "net.onnx", NET)
        files(report, net)
        graphs(report)
        run_inputs(report, net)
        rules(report, net)
        command_line(report, net)
        outputs(report, net)
        data_dependent_size(report)
        few_threads(report)
        tuning(report)
        many_readers(report)


        time_and_memory(report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
