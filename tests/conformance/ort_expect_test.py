"""What ONNX Runtime's tests of its graph optimizations expect, against `ferrule explain --json` (ort_expect.tsv).

usage: ort_expect_test.py [-v] [--bless] [GLOB]
  GLOB: only the models that match. -v: every row's layers. --bless: rows that are met now lose their "unmet: …".

A row says which operators must vanish and which must stay, read from ONNX Runtime's tests and from the
operators that its own optimizer leaves (../shared/models/ort_expectations.tsv) and judged by hand:
  vanish  Op: none is left.  Op<=N: at most N are left.  +Op: those left share their layer with another operator.
  stay    Op=N, Op<=N, Op>=N: so many are left, in layers of their own or not.
  reason  why ferrule differs, or why the row does not say what a test of ONNX Runtime says. One that begins with
          "unmet:" is a row that is known not to be met: it fails as soon as it is.
Lines that begin with # are comments; "# left out: MODEL: why" are models that are not judged.
"""

import csv
import fnmatch
import json
import os
import pathlib
import re
import subprocess
import sys
from collections import Counter

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SHARED = pathlib.Path(os.environ.get("FERRULE_SHARED", ROOT.parent / "shared/models"))
FERRULE = pathlib.Path(os.environ.get("FERRULE_BUILD", ROOT / "build")) / "ferrule"
NEEDED = 0.85  # of the rows


def table():
    """The judged rows and the models left out."""
    rows, left_out = [], set()
    for line in (HERE / "ort_expect.tsv").read_text().splitlines():
        if line.startswith("# left out: "):
            left_out.add(line.removeprefix("# left out: ").split(": ")[0])
        if line.startswith("#") or not line:
            continue
        model, vanish, stay, reason = (line.split("\t") + [""] * 3)[:4]
        rows.append((model, vanish.split(), stay.split(), reason))
    return rows, left_out


def layers(model):
    """Each layer's operators; or the error, when the model does not load."""
    run = subprocess.run([FERRULE, "explain", "--json", SHARED / model], capture_output=True, text=True, timeout=600)
    if run.returncode not in (0, 2, 3):
        raise SystemExit(f"{model}: ferrule explain ended with {run.returncode}: {run.stderr}")
    answer = json.loads(run.stdout)
    if "layers" not in answer:  # a model that cannot run is explained all the same
        return None, run.stderr.splitlines()[0]
    return [layer["operators"] for layer in answer["layers"]], ""


def failures(found, vanish, stay):
    """What of the row does not hold."""
    count = Counter(op for layer in found for op in layer)
    alone = Counter(layer[0] for layer in found if len(layer) == 1)
    for token in vanish:
        op, _, most = token.partition("<=")
        if op.startswith("+"):
            if alone[op[1:]]:
                yield f"{op[1:]} is a layer of its own {alone[op[1:]]} times"
        elif count[op] > int(most or 0):
            yield f"{count[op]} {op} are left, {most or 0} expected"
    for token in stay:
        op, sign, number = re.fullmatch(r"(.+?)(>=|<=|=)(\d+)", token).groups()
        have, want = count[op], int(number)
        if not (have >= want if sign == ">=" else have <= want if sign == "<=" else have == want):
            yield f"{have} {op} are left, {sign}{want} expected"


def complete(rows, left_out):
    """Every model of the expectations is judged or left out."""
    with open(SHARED / "ort_expectations.tsv", newline="") as f:
        known = {r["path"] for r in csv.DictReader(f, delimiter="\t", quoting=csv.QUOTE_NONE)}
    judged = {r[0] for r in rows} | left_out
    for path in sorted(known):
        if path not in judged and "/propagate_cast/" not in path:
            yield f"{path} is neither judged nor left out"
    for path in sorted(judged - known):
        yield f"{path} is no model of ort_expectations.tsv"


def forget(model):
    """The row's reason goes."""
    path = HERE / "ort_expect.tsv"
    lines = path.read_text().splitlines()
    lines = ["\t".join(line.split("\t")[:3]).rstrip("\t") if line.startswith(model + "\t") else line for line in lines]
    path.write_text("\n".join(lines) + "\n")


def main():
    verbose, bless = "-v" in sys.argv[1:], "--bless" in sys.argv[1:]
    globs = [a for a in sys.argv[1:] if not a.startswith("-")] or ["*"]
    if not (SHARED / "ort_expectations.tsv").exists():
        print(f"skip: no {SHARED}/ort_expectations.tsv")
        print("0 passed, 0 failed, 1 skipped")
        return 0
    rows, left_out = table()
    bad = list(complete(rows, left_out)) if globs == ["*"] else []
    met = Counter()
    for model, vanish, stay, reason in rows:
        if not any(fnmatch.fnmatch(model, g) for g in globs):
            continue
        found, error = layers(model)
        wrong = [error] if found is None else list(failures(found, vanish, stay))
        known = reason.startswith("unmet: ")
        met["rows"] += 1
        met["met"] += not wrong
        met["unmet"] += bool(wrong and known)
        if vanish:
            met["vanishing"] += 1
            met["vanished"] += not wrong
        if wrong and not known:
            bad.append(f"{model}: {'; '.join(wrong)}")
        if wrong and known:
            print(f"skipped {model}: {reason}")
        if not wrong and known and bless:
            forget(model)
        elif not wrong and known:
            bad.append(f"{model}: is met now: take \"unmet\" away ({reason})")
        if verbose:
            print(f"{model}: {'met' if not wrong else '; '.join(wrong)}   {found}")
    for line in bad:
        print("FAILED", line)
    share = [met[a] / max(met[b], 1) for a, b in (("met", "rows"), ("vanished", "vanishing"))]
    if globs == ["*"] and share[0] < NEEDED:
        bad.append("share")
        print(f"FAILED less than {NEEDED:.0%} of the rows are met")
    print(f"{met['met']} of {met['rows']} rows met ({share[0]:.1%}); of those where something must vanish "
          f"{met['vanished']} of {met['vanishing']} ({share[1]:.1%})")
    print(f"{met['met']} passed, {len(bad)} failed" + (f", {met['unmet']} skipped" if met["unmet"] else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
