"""Rule files that nobody should meet: each stops within five seconds, without a crash, and the message (or the plan)
names the file or rule at fault. Loops and explosions are let past the proofs (`--allow-unproven`), so that the engine's own
limits have to stop them.
"""
import concurrent.futures
import os
import sys

import harness
from harness import ENVIRONMENT, LIMIT, OK, UNSUPPORTED, USAGE, crash, run

SECONDS = 5.0
# Something for every rule below to fire on.
MODEL = """
agraph (float[1,4,8,8] x, float[4,8] m) => (float[1,4,8,8] y, float[4,8] z)
<float[4,4,1,1] W = {1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0}, float k = {0.5}> {
  [conv] a = Conv(x, W)
  [relu] b = Relu(a)
  [add] c = Add(b, x)
  [mul] d = Mul(c, k)
  [neg] e = Neg(d)
  [abs] y = Abs(e)
  [tanh] p = Tanh(m)
  [sum] q = Add(p, m)
  [exp] z = Exp(q)
}
"""
CASES = []


def case(name, files, *, says=None, arguments=("--allow-unproven", "*"), codes=(USAGE, LIMIT, UNSUPPORTED, ENVIRONMENT)):
    """files: {path in the rules folder: text, bytes or a function of the path}. says: a word of stderr or of the plan;
    by default the first file's name without its ending."""
    stem = os.path.basename(next(iter(files)))
    CASES.append((name, files, says or (stem[:-5] if stem.endswith(".yaml") else stem), arguments, codes))


def rule(rule_id, match, rewrite, more="numerics: reassociating\n", where=""):
    block = lambda text: "".join(f"  {line}\n" for line in text.splitlines())
    return (f"ferrule: 1\nid: {rule_id}\nkind: rewrite\ndoc: A test.\nphase: fold\n{more}match: |\n{block(match)}{where}rewrite: |\n{block(rewrite)}")


def one(name, rule_id, match, rewrite, says=None, codes=(USAGE, LIMIT), **keys):
    case(name, {f"rewrites/{rule_id}.yaml": rule(rule_id, match, rewrite, **keys)}, says=says, codes=codes)


def condition(text, cls="sound"):
    return f'where:\n  - {{id: c, {cls}: "{text}", why: "no"}}\n'


# --- rules that do not come to rest: the engine counts, stops and names them
FIRES = (OK, USAGE, LIMIT)
one("a rewrite into itself", "self", "y = Relu(x)", "y = Relu(x)")
one("a rewrite into itself, once", "self_once", "y = Relu(x)", "y = Relu(x)", more="once: true\nnumerics: exact\n", codes=FIRES, says=None)
one("operands turn round for ever", "turn", "y = Add(a, b)", "y = Add(b, a)")
one("once per root, but every firing makes a root", "grow_once", "y = Relu(x)", "t = Relu(x)\ny = Relu(t)", more="once: true\nnumerics: exact\n", codes=FIRES)
one("growth by doubling", "double", "y = Tanh(x)", "a = Tanh(x)\nb = Tanh(a)\ny = Add(b, a)", more="once: true\nnumerics: approximate\nenabled: true\n", codes=FIRES)
case("two rules undo each other",
     {"rewrites/ping.yaml": rule("ping", "y = Neg(x)", "y = Mul(x, -1)", more="once: true\nnumerics: reassociating\n"),
      "rewrites/pong.yaml": rule("pong", "y = Mul(x, ~-1)", "y = Neg(x)", more="once: true\nnumerics: reassociating\n")},
     says="ping|pong", codes=FIRES)
case("three rules in a ring",
     {"rewrites/ring_a.yaml": rule("ring_a", "y = Neg(x)", "y = Sub(0, x)", more="once: true\nnumerics: signed_zero\n"),
      "rewrites/ring_b.yaml": rule("ring_b", "y = Sub(0, x)", "y = Mul(x, -1)", more="once: true\nnumerics: signed_zero\n"),
      "rewrites/ring_c.yaml": rule("ring_c", "y = Mul(x, -1)", "y = Neg(x)", more="once: true\nnumerics: signed_zero\n")},
     says="ring_", codes=FIRES)
case("before and after in a circle",
     {"rewrites/early.yaml": rule("early", "y = Relu(Relu(x))", "y = Relu(x)", more="before: [late]\nnumerics: exact\n"),
      "rewrites/late.yaml": rule("late", "y = Abs(Abs(x))", "y = Abs(x)", more="before: [early]\nnumerics: exact\n")}, says="early|late")
one("before itself", "own", "y = Relu(Relu(x))", "y = Relu(x)", more="before: [own]\nnumerics: exact\n")
one("before a rule that is not there", "lost", "y = Relu(Relu(x))", "y = Relu(x)", more="before: [nowhere_at_all]\nnumerics: exact\n", says="nowhere_at_all")

# --- patterns that explode
one("alternatives to the power of twelve", "powers",
    "\n".join(f"t{k} = (Relu(t{k-1}) | Abs(t{k-1}) | Neg(t{k-1}) | Tanh(t{k-1}))" if k else "t0 = (Relu(x) | Abs(x))" for k in range(13)).replace("t12 =", "y ="),
    "y = Relu(x)", codes=FIRES)
one("forty commutative operands", "commuted", "\n".join(f"t{k} = Add({f't{k-1}' if k else 'x0'}, x{k+1})" for k in range(40)).replace("t39 =", "y ="),
    "y = Relu(x0)", codes=FIRES)
one("twenty-five alternatives nested in each other", "nested", "y = " + "(Relu(" * 25 + "x" + ") | Abs(x))" * 25, "y = Relu(x)", codes=FIRES)
one("five thousand alternatives", "wide", "y = (" + " | ".join(f"Add(x, {k})" for k in range(5000)) + ")", "y = x", codes=FIRES)
one("five thousand lines", "long", "\n".join(f"t{k} = Relu({f't{k-1}' if k else 'x'})" for k in range(5000)).replace("t4999 =", "y ="), "y = Relu(x)", codes=FIRES)
one("parentheses ten thousand deep", "deep", "y = " + "(" * 10000 + "Relu(x)" + ")" * 10000, "y = x")
one("calls ten thousand deep", "calls", "y = " + "Relu(" * 10000 + "x" + ")" * 10000, "y = x")
one("a block that calls itself", "recursion", "y = again(x)", "y = x", more='numerics: exact\nblocks: {again(x): "Relu(again(x))"}\n')
one("two blocks that call each other", "mutual", "y = here(x)", "y = x", more='numerics: exact\nblocks: {here(x): "Relu(there(x))", there(x): "Abs(here(x))"}\n')
one("blocks that double twenty-five times", "doubling", "y = b25(x)", "y = x",
    more="numerics: exact\nblocks: {" + ", ".join([f'b{k}(x): "Add(b{k-1}(x), b{k-1}(x))"' for k in range(25, 0, -1)] + ['b0(x): "Relu(x)"']) + "}\n")
one("a name made of itself", "circle", "t = Relu(t)\ny = Abs(t)", "y = t")
one("two names made of each other", "circles", "a = Relu(b)\nb = Abs(a)\ny = Neg(b)", "y = a")

# --- conditions that never end, or make no sense
one("a range of 10^12", "endless", "y = Relu(Relu(x))", "y = Relu(x)", where=condition("all(k in range(0, 1000000000000): k >= 0)"), codes=FIRES)
one("ranges in ranges", "ranges", "y = Abs(Neg(x))", "y = Abs(x)", codes=FIRES,
    where=condition("all(a in range(0, 30000): all(b in range(0, 30000): all(c in range(0, 30000): a + b + c >= 0)))"))
one("a list of 10^12 elements", "repeated", "y = Abs(Neg(x))", "y = Abs(x)", where=condition("count(repeat(1, 1000000000000)) > 0"), codes=FIRES)
one("lists that double", "joined", "y = Abs(Neg(x))", "y = Abs(x)", codes=FIRES,
    more="numerics: exact\nlet: {l0: \"[1, 2]\", " + ", ".join(f'l{k}: "l{k-1} + l{k-1}"' for k in range(1, 40)) + "}\n", where=condition("count(l39) > 0"))
one("an expression twenty thousand deep", "depth", "y = Abs(Neg(x))", "y = Abs(x)", where=condition("not " * 20000 + "true"))
one("brackets twenty thousand deep", "brackets", "y = Abs(Neg(x))", "y = Abs(x)", where=condition("(" * 20000 + "true" + ")" * 20000))
one("a sum of a hundred thousand terms", "terms", "y = Abs(Neg(x))", "y = Abs(x)", where=condition("+".join(["1"] * 100000) + " > 0"), codes=FIRES)
one("numbers that overflow", "overflow", "y = Abs(Neg(x))", "y = Abs(x)", where=condition("9223372036854775807 * 9223372036854775807 * numel(x) > 0"), codes=FIRES)
one("a division by zero", "zero", "y = Abs(Neg(x))", "y = Abs(x)", where=condition("1 // 0 == 1 or 1 mod 0 == 0"), codes=FIRES)
one("an axis out of range", "axis", "y = Abs(Neg(x))", "y = Abs(x)", where=condition("dim(x, 4611686018427387904) == 1"), codes=FIRES)
one("a let that uses itself", "itself", "y = Abs(Neg(x))", "y = Abs(x)", more='numerics: exact\nlet: {n: "n + 1"}\n', where=condition("n > 0"))
one("an unknown function", "function", "y = Abs(Neg(x))", "y = Abs(x)", where=condition("system('rm -rf /') == 0"))
one("a star for every character", "stars", "y = Abs(Neg(x))", "y = Abs(x)", codes=FIRES, where=condition("'" + "a" * 3000 + "' ~ '" + "*a" * 1500 + "b'"))

# --- replacements that explode or break the graph
one("a constant of 10^12 elements", "huge", "y = Neg(x)", "y = Add(x, Expand(0, {[1000000000000]}))", more="once: true\nnumerics: exact\n", codes=FIRES)
one("a constant of 2^63 elements", "larger", "y = Neg(x)", "y = Add(x, Expand(0, {[9223372036854775807, 2]}))", more="once: true\nnumerics: exact\n", codes=FIRES)
one("a result of another shape", "shape", "y = Abs(x)", "y = Reshape(x, {[-1]})", more="once: true\nnumerics: exact\n", codes=FIRES)
one("a result of another type", "type", "y = Abs(x)", "y = Cast<to=f16>(x)", more="once: true\nnumerics: exact\n", codes=FIRES)
one("a replacement that reads itself", "cyclic", "y = Abs(Neg(x))", "y = Relu(y)")
one("a value that the rule removes", "removed", "t = Neg(x)\ny = Abs(t)", "y = Relu(t)")
one("an operator that there is not", "nothing", "y = Abs(Neg(x))", "y = NoSuchOperator(x)", codes=FIRES)
one("an attribute that there is not", "attribute", "y = Abs(Neg(x))", "y = Softmax<axis=99>(x)", codes=FIRES)

# --- files
case("a billion laughs", {"rewrites/laughs.yaml": "ferrule: 1\nid: laughs\na: &a [l, l, l, l, l, l, l, l, l]\n" +
                          "".join(f"{chr(98 + k)}: &{chr(98 + k)} [" + ", ".join([f"*{chr(97 + k)}"] * 9) + "]\n" for k in range(12))})
case("lists a hundred thousand deep", {"rewrites/lists.yaml": "ferrule: 1\nid: lists\nmatch: " + "[" * 100000 + "]" * 100000})
case("thirty megabytes of one line", {"rewrites/bulk.yaml": "ferrule: 1\nid: bulk\ndoc: " + "x" * (30 << 20)})
case("a hundred thousand keys", {"rewrites/keys.yaml": "ferrule: 1\nid: keys\n" + "".join(f"k{k}: 1\n" for k in range(100000))})
case("the same key twice", {"rewrites/twice.yaml": rule("twice", "y = Abs(Neg(x))", "y = Abs(x)") + "phase: fold\n"})
case("two documents", {"rewrites/documents.yaml": rule("documents", "y = Abs(Neg(x))", "y = Abs(x)") + "---\nferrule: 1\n"})
case("a tag", {"rewrites/tagged.yaml": "ferrule: 1\nid: !!python/object/apply:os.system [ls]\n"})
case("not UTF-8", {"rewrites/bytes.yaml": b"ferrule: 1\nid: bytes\ndoc: \xff\xfe\x00\x1b[31m\n"})
case("escape sequences", {"rewrites/escape.yaml": 'ferrule: 1\nid: escape\ndoc: "\\e[2J\\e[31m"\nkind: "\\e]0;title\\a"\n'})
case("an empty file", {"rewrites/empty.yaml": ""})
case("a folder in a file's place", {"rewrites/folder.yaml/inner.txt": "no rule"}, says="folder", codes=(OK, USAGE, ENVIRONMENT))
case("a device that never ends", {"rewrites/device.yaml": lambda path: os.symlink("/dev/zero", path)})
case("a pipe that nobody writes", {"rewrites/pipe.yaml": lambda path: os.mkfifo(path)})
case("a link to itself", {"rewrites/link.yaml": lambda path: os.symlink(path, path)})
case("a folder that contains itself", {"rewrites/loop": lambda path: os.symlink("..", path)}, says="", codes=(OK, USAGE, ENVIRONMENT))
case("two rules of one name", {"rewrites/name.yaml": rule("name", "y = Abs(Neg(x))", "y = Abs(x)"),
                               "anchors/name.yaml": rule("name", "y = Abs(Neg(x))", "y = Abs(x)")})
case("three thousand rules", {f"rewrites/r{k}.yaml": rule(f"r{k}", f"y = Add(Abs(x), {k})", "y = x") for k in range(3000)}, says="", codes=FIRES)


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            content(path)
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())


def attempt(number, entry, folder, model):
    name, files, says, arguments, codes = entry
    rules = folder / str(number)
    write(rules, files)
    done = run("explain", model, "--rules", rules, "--no-cache", "--target", "cpu-avx2", *arguments, timeout=60)
    problem = crash(done)
    if problem:
        return problem, done
    if done.code not in codes:
        return f"wanted exit status {' or '.join(map(str, codes))}; {done.tail()}", done
    if done.seconds > SECONDS:
        return f"took {done.seconds:.1f} s; {done.tail()}", done
    if done.code != OK and not any(word in done.err for word in says.split("|")):
        return f"nothing names {says}; {done.tail()}", done
    return None, done


def main():
    report = harness.Report()
    if not report.ready:
        return report.finish()
    model = harness.model(report.folder / "model.onnx", MODEL)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(attempt, k, e, report.folder, model) for k, e in enumerate(CASES)]
        for entry, job in zip(CASES, jobs):
            problem, done = job.result()
            report.check(entry[0], problem)
            if "-v" in sys.argv:
                print(f"{entry[0]} [{done.code}, {done.seconds:.1f} s]\n    {done.err.strip()[:300]}")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
