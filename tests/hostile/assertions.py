"""Every place in engine/, codegen/ and runtime/ that would end the process or leave a function by an exception is listed in
assertions.md with the reason why no model reaches it. A place that is new fails until it stands there.

usage: assertions.py [--counts]     --counts: what is in the sources, as the list has it
"""
import collections
import re
import sys

import harness

PLACES = {
    "assert": re.compile(r"FERRULE_ASSERT\(|\bassert\(|\babort\(|\b(?:__builtin_|std::)unreachable\("),
    "at": re.compile(r"\.at\("),
    "get": re.compile(r"\bstd::get<(?!\d)"),
    "throw": re.compile(r"\bthrow\b(?! in )"),
    "broken": re.compile(r"error\(Code::rule_broken\b"),  # exit code 70, too
}
LIST = harness.ROOT / "tests/hostile/assertions.md"


def found():
    """{(file, kind): how many}, engine/proof aside. The definition of FERRULE_ASSERT is none, nor what a comment says."""
    counts = collections.Counter()
    for folder in ("engine", "codegen", "runtime"):
        for path in sorted((harness.ROOT / folder).rglob("*")):
            if path.suffix not in (".cpp", ".h") or path.is_relative_to(harness.ROOT / "engine/proof"):
                continue
            for line in path.read_text().splitlines():
                code = line.split("//")[0]
                for kind, pattern in PLACES.items():
                    if not code.startswith("#define"):
                        counts[str(path.relative_to(harness.ROOT)), kind] += len(pattern.findall(code))
    return +counts


def listed():
    """The same out of the list's lines "- `FILE`: KIND COUNT[, KIND COUNT]: why"."""
    counts = collections.Counter()
    for line in LIST.read_text().splitlines():
        match = re.match(r"- `(\S+)`: ((?:\w+ \d+(?:, )?)+): \S", line)
        if line.startswith("- ") and not match:
            raise SystemExit(f"{LIST.name}: not understood: {line}")
        for kind, count in re.findall(r"(\w+) (\d+)", match[2]) if match else ():
            counts[match[1], kind] += int(count)
    return counts


def main():
    have = found()
    if "--counts" in sys.argv:
        for file in sorted({f for f, _ in have}):
            print(f"- `{file}`: {', '.join(f'{kind} {have[file, kind]}' for kind in PLACES if have[file, kind])}: ")
        return 0
    known, failed = listed(), 0
    for file, kind in sorted({*have, *known}):
        if have[file, kind] != known[file, kind]:
            failed += 1
            print(f"FAILED {file}: {have[file, kind]} x {kind}, {LIST.name} has {known[file, kind]}: say there why no model reaches it")
    print(f"{sum(have.values())} places in {len({f for f, _ in have})} files")
    print(f"{max(len(have) - failed, 0)} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
