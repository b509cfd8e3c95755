"""Control over fusion as its user meets it: override files, lists of fusions, and `fuse`: what they print, write and refuse."""
import json
import os
import re
import sys

import numpy as np
import onnx

import graphs
import harness
import tolerance
from harness import LIMIT, OK, USAGE, refusal, run

NET = graphs.TWO_CONVS % "[sin] s = Sin (e) [exp] y = Exp (s)"
HEAD = "ferrule: 1\noverride:\n"


def layers(report, what, *arguments):
    """{layer name: rule} of a plan, or None."""
    plan, problem = harness.answer(run("explain", *arguments, "--json", "--target", "cpu-avx2"))
    report.check(f"{what}: explain", problem)
    return None if problem else {layer["name"]: layer["rule"] for layer in plan["layers"]}


def overrides(report, net):
    """What override files change, what explain says of it, what is refused."""
    folder = report.folder
    path = folder / "override.yaml"
    whole = layers(report, "no override", net)
    report.check("without an override both convolutions take their Relu",
                 None if {"conv1 + relu1", "conv2 + relu2"} <= set(whole or {}) else str(whole))

    path.write_text(HEAD + '  - rule: conv_activation\n    off: {nodes: ["conv1", "nowhere/*"], reason: "accuracy, ticket 123"}\n')
    kept = layers(report, "off for conv1", net, "--override", path)
    report.check("off for conv1: only there", None if kept and "conv1 + relu1" not in kept and "conv2 + relu2" in kept else str(kept))
    done = run("explain", net, "--override", path, "--target", "cpu-avx2")
    line = f"    1 x conv_activation off for conv1, nowhere/*: accuracy, ticket 123 ({path}:3)"
    report.check("explain lists the entry", None if line in done.out.splitlines() else done.out)
    report.check("explain lists it as a near miss", None if re.search(r"x conv_activation \(off\): switched off for conv1", done.out) else done.out)
    report.check("a glob of no node is warned about", None if re.search(r"warning: .*override\.yaml:3: no node of the model matches nowhere/\*", done.err) else done.tail())
    plan, _ = harness.answer(run("explain", net, "--override", path, "--json"))
    said = (plan or {}).get("overrides")
    report.check("explain --json lists it", None if said and said[0]["declined"] == 1 and "ticket 123" in said[0]["text"] else str(said))
    done = run("verify", net, "--override", path)
    report.check("verify with an override", harness.crash(done) or (None if done.code == OK else done.tail()))

    more = folder / "more.yaml"
    more.write_text(HEAD + "  - {rule: conv_activation, on: true}\n")
    report.check("a later file wins", None if layers(report, "two files", net, "--override", path, "--override", more) == whole else "it does not")
    report.check("the command line wins", None if "conv2 + relu2" not in (layers(
        report, "--disable", net, "--override", more, "--disable", "conv_*") or {}) else "it does not")
    done = run("rules", "list", "--override", folder / "off.yaml")
    report.check("a missing override file", refusal(done, USAGE, r"off\.yaml"))
    (folder / "off.yaml").write_text(HEAD + "  - {rule: \"conv_*\", off: true, reason: too wild}\n")
    done = run("rules", "list", "--override", folder / "off.yaml")
    report.check("rules list says why a rule is off", None if re.search(
        r"^conv_activation .* off +switched off: too wild \(", done.out, re.MULTILINE) else done.tail())

    done = run("explain", net, "--disable", "nothing_*")
    report.check("--disable of a glob that matches nothing is warned about",
                 None if done.code == OK and "warning: --disable nothing_*: no rule matches" in done.err else done.tail())
    done = run("explain", net, "--ignore-profit", "conv_activation.nothing")
    report.check("--ignore-profit of a condition that is none is warned about",
                 None if done.code == OK and "warning: --ignore-profit conv_activation.nothing: no profit condition matches" in done.err else done.tail())
    report.check("--enable of an id that is none", refusal(run("explain", net, "--enable", "conv_actvation"), USAGE, "did you mean \"conv_activation\""))

    # Each with line, column, caret; several at once.
    wrong = {
        "an unknown key": ("  - {rule: pointwise, offf: true}\n", ["offf", "did you mean.*off"]),
        "an unknown rule": ("  - {rule: conv_activaton, off: true}\n", ["conv_activaton", "did you mean \"conv_activation\""]),
        "an unknown parameter": ("  - {rule: pointwise, set: {params.max_op: 3}}\n", ["max_op", "max_ops"]),
        "a name that the rule does not bind": ("  - {rule: pointwise, where+: [{id: a, when: \"rank(zz) > 1\"}]}\n", ["zz", "pointwise"]),
        "an unknown function": ("  - {rule: pointwise, where+: [{id: a, when: \"rnak(x) > 1\"}]}\n", ["rnak", "rank"]),
        "an alias": ("  - {rule: &a pointwise, off: true}\n", ["anchor|alias"]),
        "a key twice": ("  - {rule: pointwise, off: true, off: true}\n", ["off", "twice|duplicate|already"]),
        "no list": ("  rule: pointwise\n", ["list|map"]),
    }
    for what, (text, wanted) in wrong.items():
        path.write_text(HEAD + text)
        done = run("explain", net, "--override", path)
        problem = refusal(done, USAGE, *wanted, r"override\.yaml:3:\d+")
        if problem is None and not re.search(r"^\s*(\d+ )?[ |~]*\^", done.err, re.MULTILINE):
            problem = f"no caret; {done.tail()}"
        report.check(f"an override with {what}", problem)
    path.write_text(HEAD + "".join(text for text, _ in list(wrong.values())[1:5]))
    report.check("all errors at once", None if len(run("explain", net, "--override", path).errors()) >= 3 else "fewer than 3")
    for what, data in {"empty": b"", "random": os.urandom(500), "a NUL": b"ferrule: 1\0", "deep": b"[" * 10000}.items():
        path.write_bytes(data)
        report.check(f"an override file: {what}", refusal(run("explain", net, "--override", path), (USAGE, LIMIT), r"override\.yaml", errors=20))

    done = run("rules", "schema", "--override")
    schema = json.loads(done.out) if done.code == OK else {}
    report.check("rules schema --override", None if "where+" in json.dumps(schema) else done.tail())


def plans(report, net):
    """fuse --plan, lines deleted, --apply."""
    folder = report.folder
    plan = folder / "plan.yaml"
    done = run("fuse", net, "--plan", plan, "--target", "cpu-avx2")
    report.check("fuse --plan", harness.crash(done) or (None if done.code == OK and plan.exists() else done.tail()))
    if not plan.exists():
        return
    text = plan.read_text()
    lines = [line for line in text.splitlines() if line.startswith("  - {rule: ")]
    report.check("a line for each fusion", None if len(lines) >= 4 and any(
        'rule: conv_activation, root: "conv2", nodes: ["conv2", "relu2"]' in line for line in lines) else text)
    report.check("fuse --plan keeps what exists", refusal(run("fuse", net, "--plan", plan), USAGE, r"plan\.yaml", "--force"))
    again = folder / "again.yaml"
    run("fuse", net, "--plan", again, "--target", "cpu-avx2")
    report.check("the same list each time", None if again.read_text() == text else "it differs")
    whole = layers(report, "all lines", net)
    report.check("all lines: the same layers", None if layers(report, "all lines", net, "--apply", plan) == whole else "others")

    some = folder / "some.yaml"
    some.write_text("".join(line + "\n" for line in text.splitlines() if '"relu2"' not in line))
    left = layers(report, "a deleted line", net, "--apply", some)
    report.check("a deleted line is not fused, the others are",
                 None if left and "conv2" in left and any("relu1" in name and "conv1" in name for name in left) else str(left))
    inputs = folder / "x.npz"
    np.savez(inputs, x=np.random.default_rng(3).standard_normal((1, 2, 8, 8)).astype(np.float32))
    results = []
    for arguments in ([], ["--apply", some], ["--apply", plan]):
        out = folder / f"y{len(results)}.npz"
        done = run("run", net, "--inputs", inputs, "--outputs", out, *arguments)
        report.check(f"run {' '.join(map(str, arguments))}", harness.crash(done) or (None if done.code == OK else done.tail()))
        results.append(np.load(out)["y"] if out.exists() else None)
    report.check("the results stay", "not all ran" if any(r is None for r in results) else next(filter(None, (tolerance.difference(r, results[0]) for r in results)), None))
    done = run("bench", net, "--apply", some, "--seconds", "0.1", "--json")
    report.check("bench --apply", harness.answer(done)[1])
    none = folder / "none.yaml"
    none.write_text("".join(line + "\n" for line in text.splitlines() if not line.startswith("  - ")))
    report.check("no line: nothing fuses", None if set((layers(report, "no line", net, "--apply", none) or {0: 1}).values()) == {None} else "something does")

    # What stood on a deleted line is no node any more: who needs it is named.
    broken = folder / "broken.yaml"
    broken.write_text("".join(line + "\n" for line in text.splitlines() if "rule: conv_batchnorm" not in line).replace('"conv2"', '"conv9"'))
    done = run("explain", net, "--apply", broken, "--target", "cpu-avx2")
    report.check("an instance that matches no more is named", None if done.code == OK and re.search(
        r'warning: .*broken\.yaml:\d+: conv_activation at "conv9" does not match any more', done.err) else done.tail())
    other = harness.model(folder / "other.onnx", NET.replace("Sin", "Cos"))
    report.check("another model", refusal(run("explain", other, "--apply", plan), USAGE, r"plan\.yaml", "another model", "--plan"))
    for what, content, wanted in (("an unknown rule", text.replace("rule: conv_activation", "rule: conv_actvation"), "did you mean"),
                                  ("half of it", text[:-30], r"bad\.yaml"), ("nothing", "", r"bad\.yaml"), ("another version", text.replace("instances: 1", "instances: 9"), "version 9")):
        bad = folder / "bad.yaml"
        bad.write_text(content)
        report.check(f"a list with {what}", refusal(run("run", net, "--apply", bad), USAGE, wanted, errors=5))


def fused(report, net):
    """fuse: what it writes, prints, keeps and refuses."""
    folder = report.folder / "out"
    folder.mkdir()
    out = folder / "fused.onnx"
    report.check("fuse without anything to do", refusal(run("fuse", net), USAGE, "-o"))
    done = run("fuse", net, "-o", out, "--dry-run", "--target", "cpu-avx2")
    report.check("fuse --dry-run writes nothing", harness.crash(done) or (None if done.code == OK and not list(folder.iterdir()) else done.tail()))
    for pattern in (r"^Conv +2 +2$", r"^BatchNormalization +1 +0$", r"^all +\d+ +\d+$", r"^3 fused layers: 2 conv, 1 pointwise$", r"^layers +\d+ +\d+ +\d+ %$",
                    r"^kernels launched +\d+ +\d+ +\d+ %$", r"^bytes moved \(estimate\) +\d+ +\d+ +\d+ %$"):
        report.check(f"fuse --dry-run prints /{pattern}/", None if re.search(pattern, done.out, re.MULTILINE) else done.out)
    answer, problem = harness.answer(run("fuse", net, "--dry-run", "--json", "--target", "cpu-avx2"))
    if problem is None and not (answer["schema_version"] == 1 and answer["operators"]["Conv"] == {"before": 2, "after": 2} and answer["groups"]["conv"] == 2
                                and answer["fused"]["kernels"] < answer["without_rules"]["kernels"] and answer["written"] == {}):
        problem = json.dumps(answer)[:500]
    report.check("fuse --dry-run --json", problem)

    done = run("fuse", net, "-o", out)
    report.check("fuse", harness.crash(done) or (None if done.code == OK and out.exists() else done.tail()))
    report.check("fuse says that the results are equal", None if re.search(r"^(equal|within tolerance) +y", done.out, re.MULTILINE) else done.out)
    report.check("the default has no functions", None if not onnx.load(str(out)).functions else "it has")
    with_functions = folder / "functions.onnx"
    run("fuse", net, "-o", with_functions, "--export", "functions")
    functions = onnx.load(str(with_functions)).functions
    with_functions.unlink()
    report.check("groups are functions", None if len(functions) == 3 and all(f.domain == "ferrule" for f in functions) else str(functions)[:300])
    kept = out.read_bytes()
    report.check("fuse keeps what exists", refusal(run("fuse", net, "-o", out), USAGE, r"fused\.onnx", "--force"))
    report.check("what exists is as it was", None if out.read_bytes() == kept else "it was changed")
    done = run("fuse", net, "-o", out, "--force", "--export", "inlined", "--json")
    answer, problem = harness.answer(done)
    report.check("fuse --force --json", problem or (None if answer["verify"]["verdict"] in ("equal", "within tolerance") and answer["written"] == {"model": str(out)} else str(answer)[:300]))
    report.check("--export inlined has no functions", None if not onnx.load(str(out)).functions else "it has")
    done = run("fuse", net, "-o", folder / "none" / "fused.onnx")
    report.check("fuse into a folder that is missing", refusal(done, USAGE, "none"))
    report.check("fuse over a folder", refusal(run("fuse", net, "-o", folder, "--force"), USAGE, "out"))
    done = run("fuse", net, "-o", folder / "quick.onnx", "--verify-seconds", "0.001")
    report.check("no time to verify is an error", refusal(done, harness.LIMIT, "not verified within 0.001 s", "--verify-seconds", "--allow-unverified"))
    done = run("fuse", net, "-o", folder / "quick.onnx", "--verify-seconds", "0.001", "--allow-unverified")
    report.check("--allow-unverified", None if done.code == OK and "written anyway: the new model was not verified within" in done.out else done.tail())
    done = run("fuse", net, "-o", folder / "trusting.onnx", "--no-verify")
    report.check("--no-verify", None if done.code == OK and not re.search("equal|tolerance", done.out) else done.tail())

    # A wrong rule is found out, nothing is written, and the culprit is named.
    rules = report.folder / "wrong"
    rules.mkdir()
    (rules / "sine.yaml").write_text("""ferrule: 1
id: sine
kind: rewrite
doc: A sine is a cosine.
source: [test]
phase: canonicalize
match: |
  y = Sin(x)
rewrite: |
  y = Cos(x)
""")
    done = run("fuse", net, "-o", folder / "wrong.onnx", "--rules", rules, "--allow-unproven", "*", "--verify-seconds", "60")
    problem = None if done.code == harness.DIFFERS and "without sine" in done.err and not (folder / "wrong.onnx").exists() else done.tail()
    report.check("a wrong rule is found out", harness.crash(done) or problem)
    names = sorted(p.name for p in folder.iterdir())
    report.check("fuse leaves nothing behind", None if names == ["fused.onnx", "quick.onnx", "trusting.onnx"] else str(names))
    # What the file says besides its nodes, and another opset.
    for opset, ir in ((13, 8), (17, 8), (19, 9)):
        one = folder / f"opset{opset}.onnx"
        done = run("fuse", net, "-o", one, "--opset", opset, "--json")
        answer, problem = harness.answer(done)
        m = onnx.load(str(one)) if one.exists() else onnx.ModelProto()
        if problem is None and not (m.opset_import[0].version == opset and m.ir_version == ir and sum(
                row["after"] for row in answer["operators"].values()) == len(m.graph.node)
                and ("opset 18 -> " + str(opset)) in answer["also_changed"]):
            problem = f"opset {m.opset_import}, IR {m.ir_version}, {answer['operators']}, {answer['also_changed']}"
        report.check(f"fuse --opset {opset}", problem)
        onnx.checker.check_model(m, full_check=True)
        one.unlink(missing_ok=True)
    for opset in (12, 99):
        report.check(f"fuse --opset {opset}", refusal(run("fuse", net, "-o", folder / "no.onnx", "--opset", opset), USAGE, "--opset", f"{opset} is none of 13 to"))
    gelu = harness.model(report.folder / "gelu.onnx", "agraph (float[4] x) => (float[4] y) { [g] y = Gelu (x) }", opset=20)
    report.check("an opset that cannot express a node", refusal(run("fuse", gelu, "-o", folder / "no.onnx", "--opset", "17"), USAGE,
                                                                'node "g"', "opset 20 can"))
    # What an older opset has no word for, but means: windows that are not dilated; axes as an attribute; and axes that are computed.
    old = harness.model(report.folder / "old.onnx", """agraph (float[1,1,4,4] x) => (float[1,1,1,1] y) {
      p = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (x)  r = ReduceMax <axes = [2, 3]> (p)  y = Sigmoid (r) }""", opset=15)
    for how, flags in (("", []), (", unfused", ["--disable", "*"])):
        done = run("fuse", old, "-o", folder / "old.onnx", "--opset", "15", *flags)
        m = onnx.load(str(folder / "old.onnx")) if done.code == OK else onnx.ModelProto()
        attributes = {a.name: list(a.ints) for n in m.graph.node for a in n.attribute}
        constants = [*m.graph.initializer, *(n for n in m.graph.node if n.op_type == "Constant")]
        report.check(f"an old opset's own words{how}", None if attributes.get("axes") == [2, 3] and "dilations" not in attributes and not constants else f"{done.tail()} {m}")
        onnx.checker.check_model(m, full_check=True) if done.code == OK else None
        (folder / "old.onnx").unlink(missing_ok=True)
    computed = harness.model(report.folder / "computed.onnx", "agraph (float[2,3] x, int64[1] a) => (float[N,M] y) { y = ReduceMax (x, a) }", opset=18)
    report.check("computed axes in an old opset", refusal(run("fuse", computed, "-o", folder / "no.onnx", "--opset", "15"), USAGE, "ReduceMax", "opset 18 can"))
    noted = onnx.load(str(net))
    noted.graph.value_info.append(onnx.helper.make_tensor_value_info("nothing", 1, [1]))
    noted.metadata_props.add(key="author", value="x")
    onnx.save(noted, str(report.folder / "noted.onnx"))
    done = run("fuse", report.folder / "noted.onnx", "--dry-run")
    report.check("what is left out is said", None if re.search("^also changed: opset 18 -> 21; 1 type of an inner value .* left out; "
                                                               "1 metadata entry left out$", done.out, re.MULTILINE) else done.out + done.err)
    done = run("fuse", "--help")
    report.check("fuse --help has examples", None if "Example" in done.out else "it has none")


def declared_sizes(report):
    """Sizes that come from data and are declared: a run whose data say otherwise is refused, on every backend."""
    shape = {"Expand": ("float[1] x, int64[1] s", "float[4] y", {"x": np.ones(1, np.float32), "s": np.array([4])}, np.array([8])),
             "Reshape": ("float[8] x, int64[2] s", "float[2,4] y", {"x": np.arange(8, dtype=np.float32), "s": np.array([2, 4])},
                         np.array([4, 2])),
             "Tile": ("float[2] x, int64[1] s", "float[6] y", {"x": np.ones(2, np.float32), "s": np.array([3])}, np.array([2]))}
    for op, (inputs, output, given, other) in shape.items():
        model = harness.model(report.folder / f"declared_{op}.onnx", f"agraph ({inputs}) => ({output}) {{ y = {op}(x, s) }}")
        for true in (True, False):
            np.savez(report.folder / "declared.npz", **{**given, "s": given["s"] if true else other})
            done = run("run", model, "--inputs", report.folder / "declared.npz", "--backend", "cpu")
            wanted = done.code == 0 if true else done.code and "error[bad_shape]" in done.err
            report.check(f"{op} of sizes that are declared {'truly' if true else 'wrongly'}", None if wanted else done.tail())


# A convolution's result is taken apart, and one part is read in another order of axes: its memory has gaps.
TAKEN_APART = """agraph (float[1,3,4,4] x) => (float[1,4,4,3] y, float[1,3,4,4] z) <float[6,3,1,1] W = {1.0, -2.0, 3.0, 0.5,
  0.25, 1.5, 2.0, -1.0, 1.0, 0.5, -0.5, 2.5, 1.0, 3.0, -1.5, 0.75, 2.0, -3.0}> {
  c = Conv(x, W)
  a, b = Split<axis=1, num_outputs=2>(c)
  t = Transpose<perm=[0, 2, 3, 1]>(a)
  y = Tanh(t)
  z = Sigmoid(b)
}"""


# What a branch reads of the graph around it is kept until it has run; so is what another nested graph reads.
CAPTURED = """agraph (float[2,3] x, bool b, float h) => (float[2,3] y, float[2,3] z) <float[3] start = {0.5, 1.0, 2.0}> {
  v = Relu(x)
  w = Abs(h)
  u = If <then_branch = t () => (float[2,3] p) { p = Mul(v, w) }, else_branch = e () => (float[2,3] q) { q = Clip(v, "", w) }> (b)
  i = Identity(x)
  last, all = Scan <body = s (float[3] f, float[3] g) => (float[3] k, float[3] r) { r = Clip(g, "", w) k = Add(f, g) }, num_scan_inputs = 1> (start, i)
  y = Neg(u)
  z = Neg(all)
}"""

# The part of a Split that nobody reads, in front of one that needs no copy because it is empty.
EMPTY_PART = """agraph (float[1,1,9,3] x) => (float[1,0,1,1] y) <int64[2] sizes = {1, 0}, int64[2] turned = {0, 1}> {
  p = AveragePool <kernel_shape = [1,1], strides = [2,2]> (x)
  a, b = Split <axis = 1> (p, sizes)
  m = GlobalAveragePool (b)
  c, d = Split <axis = 3> (m, turned)
  y = Mul (d, d)
}"""

# The part without elements is a result, and lies where the whole does, which another result's kernel reads.
EMPTY_RESULT = """agraph (uint8[1,8,50,30] x) => (uint8[0,8,50,30] y, uint8[1,2,100,60] z) <int64[8] order = {1,1,-7,-6,7,-5,7,5}, int64[2] sizes = {0, 1}> {
  g = Gather <axis = -3> (x, order)
  y, part = Split <axis = 0> (g, sizes)
  z = DepthToSpace <blocksize = 2> (part)
}"""


# Two elements lie in one byte.
FOUR_BITS = """agraph (float[3,5] x, float s) => (float[5,3] y, int4[5,3] t) {
  q = QuantizeLinear <output_dtype = 22> (x, s)
  t = Transpose (q)
  y = DequantizeLinear (t, s)
}"""


def unusual(report):
    """Graphs that random ones found."""
    for name, text in (("captured", CAPTURED), ("empty_part", EMPTY_PART), ("empty_result", EMPTY_RESULT), ("four_bits", FOUR_BITS)):
        net = harness.model(report.folder / f"{name}.onnx", text, opset=21)
        for how in (["--oracle"], ["--oracle", "--backend", "reference"], ["--oracle", "--strict"], ["--layers"]):
            done = run("verify", net, *how)
            report.check(f"{name} {' '.join(how)}", harness.crash(done) or (None if done.code == harness.OK else done.tail()))


def switched_off(report):
    """Rules that others are usually covered by: without them the results are the same."""
    net = harness.model(report.folder / "apart.onnx", TAKEN_APART)
    for rule in ("pointwise_movement", "split_slices", "none_of_these"):
        done = run("verify", net, *(["--disable", rule] if rule != "none_of_these" else []))
        report.check(f"a part in another order, without {rule}", harness.crash(done) or (None if done.code == harness.OK else done.tail()))


def main():
    report = harness.Report()
    if report.ready:
        switched_off(report)
        unusual(report)
        declared_sizes(report)
        net = harness.model(report.folder / "net.onnx", NET)
        overrides(report, net)
        plans(report, net)
        fused(report, net)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
