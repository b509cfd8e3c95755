"""What the documents name is there: files and headings behind links, commands of the program and their options, rules.
Last line: "N passed, N failed, N skipped"."""
import json
import pathlib
import re
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE.parent / "models")]

import fetch  # noqa: E402
import harness  # noqa: E402
from harness import ROOT, run  # noqa: E402

DOCUMENTS = [ROOT / "README.md", ROOT / "llms.txt", ROOT / "rules/README.md", ROOT / "rules/targets/README.md",
             *sorted(ROOT.glob("examples/*/README.md"))]


def anchor(heading):
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def broken_links(path, text):
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, heading = target.partition("#")
        if target.startswith("http"):
            continue
        there = (path.parent / file).resolve() if file else path
        if not there.exists() or (heading and heading not in map(anchor, re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE))):
            yield target


def spoken():
    """The options of each command, and of all."""
    def options(*command):
        return set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", run(*command, "--help").out))
    commands = {}
    for name in re.findall(r"^  ([a-z]+)  ", run("--help").out, re.MULTILINE):
        commands[name] = options(name) if name != "help" else set()
        for below in re.findall(r"^  ([a-z]+)  ", run(name, "--help").out, re.MULTILINE) if name in ("rules", "cache") else ():
            commands[f"{name} {below}"] = options(name, below)
    return commands


def unknown(text, commands):
    """Commands and options in code that the program does not have."""
    code = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text) + re.findall(r"^    \$ (.*)$", text, re.MULTILINE)
    for span in code:
        words = span.split(" #")[0].split()
        start = next((k for k, w in enumerate(words) if re.fullmatch(r"([^=]*/)?ferrule", w)), None)
        named = start is not None and start + 1 < len(words)
        words = words[start + 1:] if named else words
        name = next((n for n in (" ".join(words[:2]), *words[:1]) if n in commands), None)
        if named and not name and re.fullmatch(r"[a-z]+", words[0]):
            yield f"no command {words[0]}: {span}"
        if name:
            yield from (f"{name} has no {w}: {span}" for w in words if re.fullmatch(r"--[a-z-]+", w) and w not in commands[name])


def whole_files(text, folder):
    """The code blocks whose first line is a path, as these files."""
    for block in re.findall(r"^    # my_rules/.*\n(?:(?:    .*)?\n)+", text, re.MULTILINE):
        for part in re.split(r"(?m)^(?=    # my_rules/)", block)[1:]:
            head, _, rest = part.partition("\n")
            file = folder / head.strip().removeprefix("# my_rules/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(re.sub(r"(?m)^    ", "", rest))
            yield file


def rules_of_the_language(report):
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        files = list(whole_files((ROOT / "rules/README.md").read_text(), folder))
        ids = [f.stem for f in files if f.parent == folder]
        done = run("rules", "check", "--rules", folder)
        report.check("rules/README.md: its files load", None if len(files) > 7 and done.code == 0 else done.out + done.err)
        done = run("rules", "test", *ids, "--rules", folder, timeout=300)
        passed = done.code == 0 and f"{len(ids)} passed, 0 failed" in done.out
        report.check("rules/README.md: its rules pass their tests", None if passed else done.out + done.err)
        report.check("a contract without a kernel is said to be interpreted", None if re.search(r"note: swiglu: no kernel of gated_matmul", done.out) else done.out)


def example(report):
    """What the README shows of the quickstart's model is what is printed, in this order; dots stand for lines left out."""
    block = re.search(r"^    \d+ nodes -> (?:.*\n(?:\n(?=    ))?)*?(?=\n\S)", (ROOT / "README.md").read_text(), re.MULTILINE)
    shown = [line.strip() for line in block[0].splitlines() if line.strip("… ")] if block else []
    report.check("README.md: the example was found", None if len(shown) > 7 and "rules that fired:" in shown else str(shown))
    try:
        model = fetch.locate("ppocr_v4_det")
    except fetch.Unavailable as why:
        return report.skip("README.md: the example", why)
    printed = iter([line.strip() for line in run("explain", f"{model}/model.onnx", "--shapes", "x:1x3x480x736", "--target", "cpu-avx512").out.splitlines()])
    report.check("README.md: the example", next((f"not printed, or not there: {line}" for line in shown if line not in printed), None))


def main():
    report = harness.Report()
    if report.ready:
        example(report)
        commands = spoken()
        report.check("commands and options were read", None if len(commands) > 24 and "--pair" in commands["why"] and "--stamp" in commands["rules test"] else str(commands))
        for path in DOCUMENTS:
            text, name = path.read_text(), path.relative_to(ROOT)
            wrong = [*broken_links(path, text), *unknown(text, commands)]
            report.check(f"{name}: links, commands, options", "; ".join(wrong) or None)
            if (path.parent / "run.sh").exists():
                report.check(f"{name}: how its output comes about", None if "`run.sh`" in re.split(r"^    ", text, maxsplit=1, flags=re.MULTILINE)[0] else "not said above the output")
        rules_of_the_language(report)
        ids = {r["id"] for r in json.loads(run("rules", "list", "--json").out)["rules"]}
        used = set(re.findall(r"--(?:en|dis)able '?([a-z_0-9*]+)'?`", "".join(p.read_text() for p in DOCUMENTS)))
        lost = [u for u in used if not any(re.fullmatch(u.replace("*", ".*"), i) for i in ids)]
        report.check("rules that are switched on and off", f"no rule {lost}" if lost or len(used) < 3 else None)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
