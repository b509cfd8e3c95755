"""`ferrule ablate`: its figures on a small model, and over all models: no rule that is on by default may raise a number of
kernels without a reason in its file (may_raise_kernels). Ordinarily the models of tests/models on three targets; with
--full (or FERRULE_TEST_FULL=1) also every model of the shared test material, and all targets.

usage: ablate.py [--full] [MODEL...]"""
import os
import pathlib
import re
import sys

import fetch
import graphs
import harness
from harness import DIFFERS, OK, USAGE, refusal, run

TARGETS = ["cpu-avx512", "sm_75", "sm_90"]
NET = graphs.TWO_CONVS % "[max] p = MaxPool <kernel_shape = [1, 1]> (e) [sin] y = Sin (p)"
# Makes two operators of one: no reason, no good.
WORSE = """ferrule: 1
id: worse
doc: Two operators where one does.
source: [test]
kind: rewrite
phase: compose
once: true
numerics: exact
{reason}match: |
  y = MaxPool<kernel_shape=[1, 1], ...>(x)
rewrite: |
  t = MaxPool<kernel_shape=[1, 1]>(x)
  y = MaxPool<kernel_shape=[1, 1]>(t)
"""


def answer(report, what, *arguments):
    """The plans of --json, or None."""
    found, problem = harness.answer(run("ablate", *arguments, "--json"))
    report.check(what, problem)
    return None if problem else found["plans"]


def figures(report):
    """They are those of explain, with and without --disable."""
    net = harness.model(report.folder / "net.onnx", NET)
    plans = answer(report, "a small model", net, "--targets", "cpu-avx2,sm_80")
    report.check("a plan for each target", None if plans and [p["target"] for p in plans] == ["cpu-avx2", "sm_80"] else str(plans))
    for plan in plans or []:
        kernels = lambda *more: sum(layer["kernels"] for layer in harness.answer(
            run("explain", net, "--target", plan["target"], "--json", *more))[0]["layers"])
        report.check(f"{plan['target']}: kernels as explain counts them", None if plan["kernels"] == kernels() else f"{plan['kernels']}")
        rules = {row["rule"] for row in plan["without"]}
        report.check(f"{plan['target']}: the rules that fired", None if {"conv_batchnorm", "conv_activation"} <= rules else str(rules))
        wrong = [row for row in plan["without"] if row["kernels"] != kernels("--disable", row["rule"])]
        report.check(f"{plan['target']}: without each rule, too", str(wrong) if wrong else None)
        saved = [row["bytes"] - plan["bytes"] for row in plan["without"]]
        report.check(f"{plan['target']}: ranked", None if saved == sorted(saved, reverse=True) and saved[0] > 0 else str(saved))
    single = answer(report, "instances", net, "--targets", "cpu-avx2", "--rule", "conv_activation", "--instances")
    rows = single[0]["without"] if single else []
    report.check("one row an instance", None if len(rows) == 2 and {"conv1", "conv2"} <= {n for row in rows for n in row["nodes"]} else str(rows))
    report.check("without one instance the other stays", None if rows and all(row["kernels"] == single[0]["kernels"] + 1 for row in rows) else str(rows))
    done = run("ablate", net, "--target", "cpu-avx2")
    report.check("as a table", None if done.code == OK and re.search(r"conv_activation +2 +\d+ +\+\d+ +\+\d+ B", done.out) else done.tail())


def reasons(report):
    """A rule that raises the number of kernels, without and with a reason."""
    net = report.folder / "net.onnx"
    for reason in ("", 'may_raise_kernels: "a test wants it"\n'):
        pack = report.folder / f"pack{len(reason)}"
        pack.mkdir()
        (pack / "worse.yaml").write_text(WORSE.format(reason=reason))
        options = [net, "--target", "cpu-avx2", "--rules", pack, "--allow-unproven", "*", "--no-cache", "--worse", "--disable", "conv_pool"]
        done = run("ablate", *options)
        report.check("a rule that raises the number of kernels" + (" with a reason" if reason else ""),
                     None if done.code == (OK if reason else DIFFERS) and re.search(
                         r"worse .* -1 .*: " + ("a test wants it" if reason else "no reason is given"), done.out) else done.tail())
    (pack / "worse.yaml").write_text(WORSE.format(reason='may_raise_kernels: ""\n'))
    report.check("an empty reason", refusal(run("ablate", *options), USAGE, "reason is empty"))
    report.check("--rule without --instances", refusal(run("ablate", net, "--rule", "conv_activation"), USAGE, "--instances"))
    report.check("a rule that is none", refusal(run("ablate", net, "--rule", "nothing", "--instances"), USAGE, "nothing"))


def judge(report, name, models, targets):
    """Every rule on the models and targets; a model that cannot be planned for at all is skipped."""
    done = run("ablate", *models, "--targets", ",".join(targets), "--worse", timeout=900)
    if done.code in (OK, DIFFERS):
        for _ in models:
            for _ in targets:
                report.check(name, None)
        for line in done.out.splitlines():
            if "no reason is given" in line:
                report.check(f"{name}: no rule raises the number of kernels without a reason", "\n" + done.out)
                break
        return
    problem = harness.crash(done)
    if problem:
        report.check(name, problem)
    else:
        report.skip(name, (done.errors() or [done.tail()])[0][:160])


def repository(report, targets):
    for name in fetch.MODELS:
        try:
            judge(report, name, [fetch.model_file(name)], targets)
        except fetch.Unavailable as reason:
            report.skip(name, reason)


def shared(report, targets):
    folder = pathlib.Path(os.environ.get("FERRULE_SHARED", harness.ROOT.parent / "shared" / "models"))
    if not folder.is_dir():
        return report.skip("models of the shared test material", f"there is no {folder}")
    for path in sorted(folder.rglob("*.onnx")):
        judge(report, str(path.relative_to(folder)), [path], targets)


def all_targets():
    return sorted(p.stem for p in (harness.ROOT / "rules" / "targets").glob("*.yaml"))


def main():
    full = "--full" in sys.argv or bool(os.environ.get("FERRULE_TEST_FULL"))
    named = [a for a in sys.argv[1:] if a != "--full"]
    report = harness.Report()
    if report.ready and named:
        for model in named:
            judge(report, model, [model], all_targets() if full else TARGETS)
    elif report.ready:
        figures(report)
        reasons(report)
        repository(report, all_targets() if full else TARGETS)
        if full:
            shared(report, all_targets())
        else:
            report.skip("models of the shared test material", "with --full")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
