"""`ferrule reduce` as its user meets it: seeded faults of the program itself (wrong rules), of commands, crashes and
hangs of checks, and what it refuses. Of the seeded faults 95 % must become at most 5 nodes (reliability R18)."""
import json
import random
import shlex
import sys

import numpy as np
import onnx

import harness
from harness import DIFFERS, FULL, OK, USAGE, refusal, run

PROGRAM = shlex.quote(harness.PROGRAM)
MOST_NODES, SHARE = 5, 0.95
MOST_CHECKS = 45

# Rewrites that are wrong: (name, pattern, replacement).
WRONG = {
    "tanh_lost": ("t = Sigmoid(x)\ny = Tanh(t)", "y = Sigmoid(x)"),
    "order": ("t = Sin(x)\ny = Neg(t)", "y = Sin(x)"),
    "min_max": ("t = Relu(x)\ny = Max(t, z)", "u = Relu(x)\ny = Min(u, z)"),
    "turned": ("t = Transpose<perm=[0, 1, 3, 2]>(x)\ny = Sigmoid(t)", "y = Sigmoid(x)"),
    "operands": ("t = Abs(x)\ny = Sub(t, z)", "u = Abs(x)\ny = Sub(z, u)"),
    "axis": ("t = Neg(x)\ny = Softmax<axis=2>(t)", "u = Neg(x)\ny = Softmax<axis=3>(u)"),
    "bias": ("t = Conv<...>(x, W!)\ny = Sin(t)", "y = Sin(x)"),
    "two_readers": ("t = Softplus(x)\nu = Tanh(t)\ny = Add(u, t)", "v = Softplus(x)\ny = Add(v, v)"),
}
# The same in a model: {0} is x, {1} is z, the last one is the result.
PLANTED = {
    "tanh_lost": ["Sigmoid ({0})", "Tanh (p0)"],
    "order": ["Sin ({0})", "Neg (p0)"],
    "min_max": ["Relu ({0})", "Max (p0, {1})"],
    "turned": ["Transpose <perm = [0, 1, 3, 2]> ({0})", "Sigmoid (p0)"],
    "operands": ["Abs ({0})", "Sub (p0, {1})"],
    "axis": ["Neg ({0})", "Softmax <axis = 2> (p0)"],
    "bias": ["Conv ({0}, W)", "Sin (p0)"],
    "two_readers": ["Softplus ({0})", "Tanh (p0)", "Add (p1, p0)"],
}


def rule(folder, name):
    """A folder that holds the rule alone."""
    pattern, replacement = WRONG[name]
    pack = folder / f"rules_{name}"
    pack.mkdir(exist_ok=True)
    block = lambda text: "".join(f"  {line}\n" for line in text.splitlines())
    (pack / f"wrong_{name}.yaml").write_text(
        f"ferrule: 1\nid: wrong_{name}\ndoc: A rule that is wrong.\nsource: [test]\nkind: rewrite\nphase: canonicalize\nnumerics: exact\nonce: true\n"
        f"match: |\n{block(pattern)}rewrite: |\n{block(replacement)}")
    return pack


def model(path, count, seed, planted=()):
    """A chain with side branches over one shape; in its middle the planted nodes, whose result is one of the model's, too."""
    rng = random.Random(seed)
    one = ["Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Sin", "Cos"]
    lines, made = [], ["x"]
    for k in range(count):
        if k == count // 2:
            values = "x", made[-1]  # what is behind many operators may be the same everywhere
            lines += [f"[planted{i}] p{i} = {text.format(*values)}" for i, text in enumerate(planted)]
            made += [f"p{len(planted) - 1}"] if planted else []
        y, a = ("y" if k + 1 == count else f"v{k}"), rng.choice(made[-2:])
        kind = rng.randrange(9)
        if kind == 0:
            text = f"Conv ({a}, W)"
        elif kind == 1:
            text = f"Transpose <perm = [0, 1, 3, 2]> ({a})"
        elif kind == 2:
            text = f"Softmax <axis = {rng.randrange(1, 4)}> ({a})"
        elif kind < 5:
            text = f"{rng.choice(['Add', 'Sub', 'Max', 'Mul'])} ({a}, {rng.choice(made[-5:])})"
        else:
            text = f"{rng.choice(one)} ({a})"
        lines.append(f"[n{k}] {y} = {text}")
        made.append(y)
    weights = ", ".join(str(round(rng.uniform(-1, 1), 3)) for _ in range(16))
    outputs = "float[1,4,6,6] y" + (f", float[1,4,6,6] p{len(planted) - 1}" if planted else "")
    return harness.model(path, f"agraph (float[1,4,6,6] x) => ({outputs})\n"
                         f"<float[4,4,1,1] W = {{{weights}}}> {{\n" + "\n".join(lines) + "\n}")


def nodes(path):
    return len(onnx.load(str(path)).graph.node)


def seeded(report):
    """Wrong rules, and `--check verify`: what is left is the rule's pattern and little else."""
    names = harness.by_turns(report, list(WRONG), 8)
    small = 0
    for number, name in enumerate(WRONG):
        if name not in names:
            continue
        pack = rule(report.folder, name)
        options = ["--rules", pack, "--allow-unproven", "*", "--no-cache"]
        big = model(report.folder / "big.onnx", 60, number, PLANTED[name])
        out = report.folder / f"{name}.onnx"
        done = run("reduce", big, "-o", out, "--check", "verify", "--json", *options, timeout=120)
        answer, problem = harness.answer(done)
        report.check(f"wrong rule {name}: reduce", problem)
        if problem:
            continue
        report.check(f"wrong rule {name}: the model says what the answer does", None if nodes(out) == answer["nodes"] else str(answer))
        small += answer["nodes"] <= MOST_NODES
        again = run("verify", out, "--oracle", "--inputs", out.with_suffix(".npz"), *options)
        report.check(f"wrong rule {name}: the failure is in what was written", None if again.code == DIFFERS else again.tail())
        right = run("verify", out, "--oracle", "--inputs", out.with_suffix(".npz"))
        report.check(f"wrong rule {name}: and not without the rule", None if right.code == OK else right.tail())
        if answer["nodes"] > MOST_NODES:
            print(f"wrong rule {name}: {answer['nodes']} nodes\n{answer['text']}")
    report.check(f"at most {MOST_NODES} nodes", None if small >= SHARE * len(names) else f"only {small} of {len(names)}")


def commands(report):
    """Checks that are commands: their status, what they read, that they may crash and hang."""
    folder = report.folder
    big = model(folder / "commands.onnx", 40, 4)

    def reduced(what, *arguments, most=1):
        out = folder / "out.onnx"
        done = run("reduce", big, "-o", out, "--force", "--json", *arguments, timeout=120)
        answer, problem = harness.answer(done)
        report.check(f"{what}: reduce", problem)
        if not problem:
            report.check(f"{what}: small", None if answer["nodes"] <= most else answer["text"])
        return out

    reduced("a word in the file", "--check", "grep -q Softmax {}")
    reduced("two words", "--check", "grep -q Softmax {} && grep -q Conv {}", most=2)
    reduced("another status", "--check", "grep -q Softmax {} && exit 3; exit 0", "--status", 3)
    reduced("a signal", "--check", "grep -q Softmax {} && kill -SEGV $$", "--status", 139)
    reduced("a check that hangs where the failure is not", "--check", "grep -q Softmax {} || sleep 100", "--check-seconds", 0.3)
    reduced("what explain says", "--check", f"{PROGRAM} explain {{}} --target cpu-avx2 | grep -q 'x conv_activation'", most=2)

    values = folder / "in.npz"
    np.savez(values, x=np.random.default_rng(1).uniform(-1, 1, (1, 4, 6, 6)).astype(np.float32))
    results = folder / "results.npz"
    out = reduced("inputs in step", "--inputs", values, "--check",
                  f"grep -q Softmax {{}} && {PROGRAM} run {{}} --inputs {{inputs}} --outputs {results} --force --backend reference")
    small = np.load(out.with_suffix(".npz"))
    wanted = {i.name for i in onnx.load(str(out)).graph.input}
    report.check("the inputs beside the model are its own", None if set(small.files) == wanted else f"{small.files}, wanted {wanted}")

    done = run("reduce", big, "-o", folder / "text.onnx", "--check", "grep -q Softmax {}")
    report.check("as text", None if done.code == OK and "Softmax" in done.out and "40 nodes -> 1" in done.out else done.tail())
    done = run("reduce", big, "-o", folder / "soon.onnx", "--check", "sleep 0.2; grep -q Softmax {}", "--seconds", 1, "--json")
    answer, problem = harness.answer(done)
    report.check("stopped by --seconds: what was found is written",
                 problem or (None if not answer["complete"] and nodes(folder / "soon.onnx") == answer["nodes"] and done.seconds < 5 else done.tail()))


def refusals(report):
    folder = report.folder
    net = model(folder / "net.onnx", 5, 1)
    there = folder / "there.onnx"
    there.write_bytes(b"mine")

    def refused(what, *wanted, arguments, out=folder / "new.onnx"):
        done = run("reduce", net, "-o", out, *arguments)
        report.check(what, refusal(done, USAGE, *wanted, seconds=5))

    refused("a file that is there", "exists", "--force", arguments=["--check", "true"], out=there)
    report.check("it is as it was", None if there.read_bytes() == b"mine" else "it was written")
    refused("no check", "--check", arguments=[])
    refused("a failure that is not in the model", "does not find the failure", arguments=["--check", "false"])
    refused("verify where nothing is wrong", "does not find the failure", arguments=["--check", "verify"])
    refused("a status for verify", "--status", arguments=["--check", "verify", "--status", "1"])
    report.check("nothing was written", None if not (folder / "new.onnx").exists() else "a file")
    done = run("reduce", folder / "none.onnx", "-o", folder / "new.onnx", "--check", "true")
    report.check("no model", refusal(done, USAGE, r"none\.onnx"))


def large(report):
    """1,000 nodes within a minute: with the program as the check, and with any check of a second, of which it makes no more
    than MOST_CHECKS one after the other (candidates that are no models are none)."""
    pack = rule(report.folder, "tanh_lost")
    big = model(report.folder / "thousand.onnx", 1000, 3, PLANTED["tanh_lost"])
    both = "grep -q planted0 {} && grep -q planted1 {}"
    checks = {"a command": both,
              "explain": f"{PROGRAM} explain {{}} --target cpu-avx2 --rules {pack} --allow-unproven '*' | grep -q wrong_tanh_lost"}
    if FULL:
        checks["a second"] = f"sleep 1; {both}"
        checks["verify"] = f"{PROGRAM} verify {{}} --oracle --rules {pack} --allow-unproven '*'; test $? = {DIFFERS}"
    for name, check in checks.items():
        done = run("reduce", big, "-o", report.folder / "thousand_small.onnx", "--check", check, "--force", "--json", timeout=120)
        answer, problem = harness.answer(done)
        good = answer and answer["complete"] and answer["nodes"] <= 2 and answer["seconds"] < 60 and answer["checks"] <= MOST_CHECKS
        report.check(f"1,000 nodes, {name}", problem or (None if good else json.dumps(answer)))


def main():
    report = harness.Report()
    if report.ready:
        refusals(report)
        commands(report)
        seeded(report)
        large(report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
