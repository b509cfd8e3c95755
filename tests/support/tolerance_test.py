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
    relative, absolute = tolerance.of("f32")
    same("itself", one, one)
    same("within", one * np.float32(1 + relative / 2), one)
    other("just outside", one + np.float32([0, 0, 1000 * relative + 1000 * absolute + 0.01, 0]), one)
    same("near nothing, beside a large one", one + np.float32([0, 0, 0, 900 * absolute]), one)
    other("near nothing, alone", np.float32([2 * absolute]), np.float32([0]))
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
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
