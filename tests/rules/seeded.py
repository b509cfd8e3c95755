"""Rules of authors who never saw the prover: seeded/wrong are all refused, seeded/right all load.

No wrong rule may be caught by the parser or a lint, which would prove nothing about the proofs. A wrong rewrite is
refused where it is loaded, with a counter-example. A wrong group is not accepted by its own test, and never computes
another result: it is refused, or the program does without it. One in 20 is asked ordinarily, by turns, all with --full (or
FERRULE_TEST_FULL=1): then the counter-example in a file's last lines also shows that the rule is wrong.
"""
import concurrent.futures
import functools
import pathlib
import re
import shutil
import sys

import numpy as np
import onnx

import harness
from harness import DIFFERS, FULL, OK, UNSUPPORTED, USAGE

FOLDER = pathlib.Path(__file__).resolve().parent / "seeded"
SECONDS = 10.0  # of processor time: a proof has 5; the rest is the machine's
run = functools.partial(harness.run, timeout=600)  # beside other work; processor time is judged
ANY = "agraph (float[2] x) => (float[2] y) { y = Sinh(x) }"  # loads the rules and gives them nothing to do
COUNTER = re.compile(r"^# Shown by:\n((?:#   .*\n)+)(?:# with: (.*)\n)?", re.MULTILINE)
CASE = re.compile(r"^  fires:\n    - (?:target: (\w+)\n      model: )?\|\n((?:      .*\n)+)", re.MULTILINE)


def reason(done, *codes):
    """None if the run ended in one of these ways."""
    return harness.crash(done) or (None if done.code in codes else f"wanted exit status {codes}; {done.tail()}")


class Rule:
    """One file, in a folder of its own."""

    def __init__(self, path, folder):
        self.id, self.text = path.stem, path.read_text()
        self.group = "\nkind: rewrite\n" not in self.text
        self.folder = folder / path.parent.name / path.stem
        (self.folder / "rules").mkdir(parents=True)
        shutil.copy(path, self.folder / "rules")
        self.rules = ["--rules", self.folder / "rules", "--no-cache"]
        self.alone = ["--disable", "*", "--enable", self.id, *self.rules]

    def model(self, name, text):
        return harness.model(self.folder / f"{name}.onnx", text)

    def lint(self):
        return reason(run("rules", "check", *self.rules), OK)

    def loaded(self):
        return run("explain", self.model("any", ANY), *self.rules)

    def tested(self):
        return run("rules", "test", self.id, *self.rules)

    def harmless(self, *codes):
        """The file's own case with the rule: the same results, or one of these refusals."""
        target, text = CASE.search(self.text).groups()
        model = self.model("case", text)
        done = run("explain", model, "--target", target, *self.alone) if target else \
            run("verify", model, "--backend", "cpu", *self.alone)
        return reason(done, OK, *codes)

    def shown(self):
        """The counter-example: the interpreter's results with the rule and without it."""
        match = COUNTER.search(self.text)
        if not match:
            return "the file has no counter-example"
        text, values = match.groups()
        model = self.model("counter", re.sub(r"^#   ", "", text, flags=re.MULTILINE))
        names = {"np": np, "nan": np.nan, "inf": np.inf}
        values = dict(part.split("=", 1) for part in values.split("; "))
        types = {i.name: onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type) for i in onnx.load(model).graph.input}
        np.savez(self.folder / "in.npz", **{name: np.array(eval(values[name], names), dtype) for name, dtype in types.items()})
        results = []
        for arguments in (["--disable", "*", "--no-cache"], [*self.alone, "--allow-unproven", "*"]):
            out = self.folder / "out.npz"
            done = run("run", model, "--inputs", self.folder / "in.npz", "--outputs", out, "--backend", "reference", "--force", *arguments)
            if done.code != OK:
                return done.tail()
            with np.load(out) as f:
                results.append({name: (f[name].shape, f[name].tobytes()) for name in f.files})
        return "the rule changes nothing here" if results[0] == results[1] else None


def refused(done):
    """None if a rewrite was refused as disproved: with the proof's code, a claim and the numbers (or types) that show it."""
    return harness.refusal(done, USAGE, r"error\[rule_unproven\]", r"changes (the )?results?|counter-?example",
                           r"element \d+ is|result's type|graph \(", seconds=SECONDS)


def wrong(rule):
    yield "has no parse or lint error", rule.lint()
    if not rule.group:
        yield "is disproved", refused(rule.loaded())
    else:
        yield "is refused by its test", reason(rule.tested(), DIFFERS, USAGE)
        yield "computes nothing wrong", rule.harmless(USAGE, UNSUPPORTED)
    if FULL and not rule.group:
        yield "is wrong", rule.shown()


def right(rule):
    yield "has no parse or lint error", rule.lint()
    done = rule.loaded()
    yield "loads", reason(done, OK) or (f"took {done.seconds:.1f} s" if done.seconds > SECONDS else None)
    if rule.group:
        yield "passes its test", reason(rule.tested(), OK)
        yield "computes the same", rule.harmless()


def main():
    report = harness.Report()
    if not report.ready:
        return report.finish()
    found = {kind: sorted((FOLDER / kind).glob("*.yaml")) for kind in ("wrong", "right")}
    for kind, least in (("wrong", 100), ("right", 50)):
        report.check(f"as many {kind} rules as promised", None if len(found[kind]) >= least else f"{len(found[kind])} of {least}")
    rewrites = sum("\nkind: rewrite\n" in path.read_text() for path in found["wrong"])
    report.check("most wrong rules are rewrites", None if rewrites >= 60 else f"{rewrites} of 60")
    asked = [(kind, judge, path) for kind, judge in (("wrong", wrong), ("right", right)) for path in harness.by_turns(report, found[kind], 20)]
    work = lambda job: [(f"{job[0]}/{job[2].stem} {what}", problem) for what, problem in job[1](Rule(job[2], report.folder))]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for checks in pool.map(work, asked):
            for what, problem in checks:
                report.check(what, problem)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
