"""What tolerance.py calls right and wrong. Last line: "N passed, N failed"."""
import sys

import numpy as np

import harness
import tolerance


def main():
    report = harness.Report()
    if not report.ready:
        return report.finish()

    def same(what, got, want, **extra):
        report.check(what, tolerance.difference(got, want, **extra))

    def other(what, got, want, **extra):
        report.check(what, None if tolerance.difference(got, want, **extra) else "called equal")

    one = np.float32([1, -2, 1000, 0])
    relative, absolute, *_ = tolerance.of("f32")
    same("itself", one, one)
    same("within", one * np.float32(1 + relative / 2), one)
    other("just outside", one + np.float32([0, 0, 1000 * relative + 1000 * absolute + 0.01, 0]), one)
    same("near nothing, beside a large one", one + np.float32([0, 0, 0, 900 * absolute]), one)
    other("near nothing, alone", np.float32([2 * absolute]), np.float32([0]))
    x = np.random.default_rng(3).standard_normal(1000)
    for kind, type_ in (("f32", np.float32), ("f64", np.float64), ("f16", np.float16)):
        small = (np.abs(x) * (1e-4 if kind == "f16" else 1e-6)).astype(type_)
        same(f"small in {kind}", np.nextafter(small, type_(0)), small)
        other(f"small in {kind}, all signs wrong", -small, small)
        other(f"small in {kind}, half the signs wrong", np.where(x < 0, -small, small), small)
        other(f"nothing in {kind} where something small is", small * 0, small)
    for kind, type_ in (("f32", np.float32), ("f64", np.float64)):  # of the shorter ones, no noise is known
        least = tolerance.of(kind)[-1] * 2
        beside = np.concatenate(([1], np.abs(x[1:]) * least + least)).astype(type_)
        mask = np.arange(beside.size)
        same(f"small beside a large one in {kind}", np.nextafter(beside, type_(0)), beside)
        same(f"small beside a large one in {kind}, one sign wrong", np.where(mask == 7, -beside, beside), beside)
        same(f"small beside a large one in {kind}, one sign of two wrong", np.where(mask % 2, -beside, beside), beside)
        same(f"below the noise beside a large one in {kind}", np.where(mask, -beside / 20, beside), np.where(mask, beside / 20, beside))
        for what, factor in (("all signs wrong", -1), ("nothing", 0), ("doubled", 2)):
            other(f"small beside a large one in {kind}, {what}", np.where(mask, beside * type_(factor), beside), beside)
    same("what f16 does not resolve", np.float16([0, 6e-8]), np.float16([6e-8, 0]))
    same("what f32 flushes", np.float32([0, 1e-39]), np.float32([1e-39, 0]))
    other("another shape", one[:3], one)
    other("another type", one.astype(np.float64), one)
    same("f16 allows more", np.float16([1.005]), np.float16([1]))
    other("not everything", np.float16([1.05]), np.float16([1]))
    same("f32 that was f16", np.float32([1.005]), np.float32([1]), kind="f16")
    odd = np.float32([np.nan, np.inf, -np.inf, 1])
    same("NaN and infinity in their places", odd, odd)
    for k, value in ((0, 1), (1, 3e38), (2, np.inf), (3, np.nan), (3, np.inf)):
        wrong = odd.copy()
        wrong[k] = value
        other(f"{value} for {odd[k]}", wrong, odd)
    same("integers", np.int64([1, 2]), np.int64([1, 2]))
    other("other integers", np.int64([1, 3]), np.int64([1, 2]))
    same("booleans", np.array([True, False]), np.array([True, False]))
    other("other booleans", np.array([True, True]), np.array([True, False]))
    same("strings", np.array(["a", "b"], object), np.array(["a", "b"], object))
    other("other strings", np.array(["a", "c"]), np.array(["a", "b"]))
    same("nothing", np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32))
    report.check("a result too many", None if tolerance.differences({"y": one, "z": one}, {"y": one}) else "called equal")
    report.check("a result too few", None if tolerance.differences({}, {"y": one}) else "called equal")

    rng = np.random.default_rng(5)
    exact = rng.standard_normal(1000)
    near = exact + rng.standard_normal(1000) * 1e-3

    def reduced(what, right, got):
        problem = tolerance.reduced({"y": got.astype(np.float32)}, {"y": near.astype(np.float32)}, {"y": exact})
        report.check(f"reduced: {what}", problem if right else None if problem else "called right")

    reduced("exact", True, exact)
    reduced("other errors of the same size", True, exact + rng.standard_normal(1000) * 1e-3)
    reduced("ten times the errors", False, exact + rng.standard_normal(1000) * 1e-2)
    single = exact.copy()
    single[7] += 0.1
    reduced("one wrong element", False, single)
    single[7] = np.nan
    reduced("one NaN", False, single)
    small = np.abs(exact) * 1e-6
    report.check("reduced: small, all signs wrong", None if tolerance.reduced({"y": -small.astype(np.float32)}, {"y": small.astype(np.float32)}, {"y": small})
                 else "called right")
    chosen = np.arange(9)
    for what, ours, theirs, right in (("equal", chosen, chosen, True), ("one that the interpreter has right", chosen - (chosen == 3), chosen, False),
                                      ("one, as the interpreter", chosen - (chosen == 3), chosen - (chosen == 4), True), ("another type", chosen.astype(np.int32), chosen, False)):
        problem = tolerance.reduced({"i": ours}, {"i": theirs}, {"i": chosen})
        report.check(f"reduced: choices: {what}", problem if right else None if problem else "called right")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
