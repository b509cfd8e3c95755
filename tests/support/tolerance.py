"""Whether results are right, for scripts that compare arrays. How far they may be off is read from the program
(`ferrule doctor --json` prints engine/base/tolerance.h, the one place that says so), and judged as `ferrule verify` judges:
each element |got - want| <= relative * |want| + absolute * max(1, largest |want|), all finite ones together |got - want| <=
norm * |want| + least * sqrt(their number), NaN and infinity at the same places; integers, booleans and strings equal. What `verify`
mistrusts beside that, small elements beside a large one that differ in the same way, is a difference here.
"""
import functools
import json

import numpy as np

import harness

NAMES = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}


@functools.cache
def printed(program):
    done = harness.run("doctor", "--json")  # which may miss something: a bundle for a GPU has no CPU backend
    if done.code not in (harness.OK, harness.ENVIRONMENT) or not done.out:
        raise RuntimeError(f"no tolerances: {done.tail()}")
    return json.loads(done.out)


def of(kind):
    """(relative, absolute, norm, least, noise) of an element type, by ferrule's name."""
    row = printed(harness.PROGRAM)["tolerances"][kind]
    return tuple(row[what] for what in ("relative", "absolute", "norm", "least", "noise"))


def scale(want):
    """What absolute differences are measured by: the largest finite element, at least 1."""
    return max(1.0, np.abs(want[np.isfinite(want)]).max(initial=0.0))


def difference(got, want, kind=None):
    """None, or how one array differs from the other. kind: the element type whose tolerance holds, where it is not want's."""
    got, want = np.asarray(got), np.asarray(want)
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype}{list(got.shape)}, wanted {want.dtype}{list(want.shape)}"
    if want.dtype.name not in NAMES:
        return None if np.array_equal(got, want) else f"{np.count_nonzero(got != want)} of {want.size} elements differ"
    relative, absolute, norm, least, noise = of(kind or NAMES[want.dtype.name])
    a, b = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(invalid="ignore"):
        allowed = relative * np.abs(b) + absolute * scale(b)
        off = np.abs(a - b)
        bad = ~((np.isfinite(b) & (off <= allowed)) | (a == b) | (np.isnan(a) & np.isnan(b)))
    if not bad.any():
        return together(a, b, norm, least) or (alike(a, b, noise * scale(b)) if noise else None)
    at = np.unravel_index(np.argmax(np.where(bad, np.nan_to_num(off, nan=np.inf), -1)), b.shape)
    return f"{np.count_nonzero(bad)} of {b.size} elements differ; worst at {[int(i) for i in at]}: {a[at]:.9g}, wanted {b[at]:.9g}"


def together(a, b, norm, least):
    """None, or by how much arrays differ whose elements are right one by one, because `absolute` is large beside them."""
    finite = np.isfinite(a) & np.isfinite(b)
    unit = np.abs(b[finite]).max(initial=0.0) or 1.0
    off, size = (float(np.linalg.norm(x[finite] / unit)) for x in (a - np.where(finite, b, 0), b))
    if off <= norm * size + least / unit * np.sqrt(a.size):
        return None
    return f"all {b.size} elements together differ by {off / size if size else np.inf:.3g} of their size"


def alike(a, b, noise, octaves=3, sure=5):
    """None, or which of the elements as small as each other, above `noise`, mostly differ in one way: the other sign, less than half,
    more than 1.5 times (systematic() in engine/graph/compare.cpp)."""
    with np.errstate(invalid="ignore"):
        sizes = np.maximum(np.abs(a), np.abs(b))
        at = np.flatnonzero(np.isfinite(a) & np.isfinite(b) & (sizes >= noise))
    g, w = a.flat[at], b.flat[at]
    turned = np.signbit(g) != np.signbit(w)
    ways = turned & (g != 0) & (w != 0), np.abs(g) < np.abs(w) / 2, ~turned & (np.abs(g) > np.abs(w) * 1.5)
    bands = np.floor(np.log2(sizes.flat[at] / noise)) // octaves
    for band in np.unique(bands):
        count = np.count_nonzero(bands == band)
        for way in ways:
            if 2 * np.count_nonzero(way[bands == band]) - count > sure * np.sqrt(count):
                k = np.flatnonzero((bands == band) & way)[0]
                return f"most elements as small as element {at[k]} differ alike: it is {g[k]:.9g}, wanted {w[k]:.9g}"
    return None


def differences(got, want, kind=None):
    """The same of results by name (a dict, or what numpy.load gives)."""
    if set(got) != set(want):
        return f"outputs {', '.join(got)}, wanted {', '.join(want)}"
    return next((f"{name}: {text}" for name in want if (text := difference(got[name], want[name], kind))), None)


def largest(got, want):
    """The largest difference of any result, relative to its scale."""
    return max((float(np.abs(got[name].astype(np.float64) - want[name]).max(initial=0) / scale(np.asarray(want[name], np.float64)))
                for name in want), default=0.0)


def errors(got, exact):
    """Root mean square and largest of the differences, relative to the largest finite element, however small."""
    off = np.abs(got.astype(np.float64) - exact) / (np.abs(exact[np.isfinite(exact)]).max(initial=0.0) or 1.0)
    return (float(np.sqrt(np.mean(off ** 2))), float(off.max())) if off.size else (0.0, 0.0)


def reduced(got, yardstick, exact):
    """None, or where results in a shorter type are further from `exact` (f64) than the interpreter's in that type (`yardstick`)
    explain: the factor is the program's, and what f32 is allowed is free."""
    factor, free = printed(harness.PROGRAM)["reduced_factor"], of("f32")[1]
    for name, want in exact.items():
        if got[name].shape != want.shape:
            return f"{name}: {list(got[name].shape)}, wanted {list(want.shape)}"
        if want.dtype != np.float64:  # a choice among numbers, which rounding may turn, as it does the interpreter's
            ours, theirs = (int(np.count_nonzero(array != want)) for array in (got[name], yardstick[name]))
            if got[name].dtype != want.dtype or ours > factor * theirs:
                return f"{name}: {ours} of {want.size} elements differ, {theirs} of the interpreter's"
            continue
        for what, ours, theirs in zip(("root mean square", "largest"), errors(got[name], want), errors(yardstick[name], want)):
            if not ours <= factor * theirs + free:  # NaN, too
                return f"{name}: {what} error {ours:.2e} of the largest element, the interpreter's is {theirs:.2e}"
    return None
