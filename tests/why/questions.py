"""Does `why` answer what it is asked?

questions/questions.yaml has questions with one true reason each, by construction: a model that fuses (controls/), and
the same with one thing changed. A question is answered when the words of its reason stand within the first four lines.
That the control fuses and the changed model does not is checked first. 90 % must be answered.
"""
import json
import pathlib
import re
import shlex

import onnx
from onnx import parser

from harness import OK, run

HERE = pathlib.Path(__file__).resolve().parent / "questions"
LINES, SHARE = 4, 0.9
FLAGS = ("--target", "--override", "--profile", "--enable", "--disable")
SWITCHES = ("--strict",)


def questions():
    """A list of maps in YAML whose values are JSON."""
    out = []
    for line in (HERE / "questions.yaml").read_text().splitlines():
        if line.startswith("#") or not line.strip():
            continue
        if line.startswith("- "):
            out.append({})
        key, value = line[2:].split(": ", 1)
        out[-1][key] = json.loads(value)
    return out


def model(report, path):
    out = report.folder / (path.replace("/", "_") + ".onnx")
    onnx.save(parser.parse_model((HERE / path).read_text()), str(out))
    return out


def flags_of(words):
    return [w for i, w in enumerate(words) if w in FLAGS + SWITCHES or (i and words[i - 1] in FLAGS)]


def fused(question, path, flags):
    """Whether the plan has what the question is about; None: there is no plan."""
    done = run("explain", path, "--json", *flags, cwd=HERE, timeout=300)
    if done.code != OK:
        return None
    plan = json.loads(done.out)
    if "rule_fires" in question:
        return plan["rules"].get(question["rule_fires"], 0) > 0
    a, b = question["one_layer"]
    return any(a in layer["nodes"] and b in layer["nodes"] and (layer["kernels"] == 1 or "one_kernel" not in question)
               for layer in plan["layers"])


def ask(report):
    """All of them, as checks of the report."""
    all_of_them, answered = questions(), 0
    for q in all_of_them:
        path, control = model(report, q["model"]), model(report, q["control"])
        words = shlex.split(q["ask"])
        flags = flags_of(words)
        fuses = fused(q, control, shlex.split(q.get("control_flags", "")) or flags)
        holds = fused(q, path, flags)
        report.check(f"{q['name']}: the control fuses, the model does not",
                     None if fuses is True and holds is False else f"control {fuses}, model {holds}")
        done = run(*(path if w == "MODEL" else w for w in words), cwd=HERE, timeout=300)
        lines = [line for line in done.out.splitlines() if line.strip()][:LINES]
        text = "\n".join(lines)
        missing = [g for g in q["must"] if not any(re.search(p, text, re.IGNORECASE | re.MULTILINE) for p in g)]
        answered += not missing
        if missing:
            print(f"not answered: {q['name']}: {q['reason']}\n  " + "\n  ".join(line[:200] for line in lines))
    print(f"{answered} of {len(all_of_them)} questions answered within the first {LINES} lines")
    report.check("nine of ten questions are answered",
                 None if len(all_of_them) >= 30 and answered >= SHARE * len(all_of_them) else f"{answered} of {len(all_of_them)}")
