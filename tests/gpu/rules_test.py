"""Rules that form groups, on the stub GPU: each case is planned for the GPU that it names, else for sm_90, compiled as CUDA
text, run, and compared with the interpreter, NaN and infinities included; with FERRULE_TEST_FULL=1 on more graphs."""
import json
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support"), str(HERE)]

import harness  # noqa: E402
import stubs  # noqa: E402

KINDS = {"absorb", "window", "region", "merge", "place"}
ANY = "sm_90"  # of cases that name none
CPU_ONLY = {"channel_gate", "channel_gate_dense", "depthwise_pointwise"}  # GPUs have no such kernels


def targets():
    """Rule -> the GPUs that its firing cases name, or any."""
    found = {}
    for path in sorted(harness.ROOT.glob("rules/*/*.yaml")):
        text = path.read_text()
        kind = re.search(r"^kind: (\w+)", text, re.MULTILINE)
        if not kind or kind.group(1) not in KINDS:
            continue
        fires = re.search(r"^  fires:\n(.*?)(?=^  holds:|\Z)", text, re.MULTILINE | re.DOTALL)
        named = re.findall(r"^      target: (sm_\d+)", fires.group(1) if fires else "", re.MULTILINE)
        if path.stem not in CPU_ONLY:
            found[path.stem] = set(named) or {ANY}
    return found


def main():
    report = harness.Report()
    if stubs.there(report):
        wanted = targets()
        graphs = "60" if harness.FULL else "2"
        wanted = dict(harness.by_turns(report, sorted(wanted.items()), 5))
        for target in sorted(set().union(*wanted.values())):
            rules = sorted(rule for rule, named in wanted.items() if target in named)
            done = stubs.run(report, "rules", "test", *rules, "--backend", "cuda", "--graphs", graphs, "--json", timeout=600, cc=target.removeprefix("sm_"))
            try:
                rows = {row["rule"]: row for row in json.loads(done.out)["rules"]}
            except (ValueError, KeyError):
                rows = {}
            for rule in rules:
                row = rows.get(rule)
                good = row and row["ok"] and row["group_instances"] > 0
                if row and not row["group_instances"] and any("does not generate code for" in why for why in row["not_run"]):
                    report.skip(f"{rule} on {target}", "NVRTC does not generate code for it")
                    continue
                report.check(f"{rule} on {target}", stubs.wrong_use(done) or (None if good else f"{row}; {done.tail()}"))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
