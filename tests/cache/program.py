"""The cache as the program's user meets it: warm runs compile nothing and give the same bytes, damage and
folders that cannot be trusted change nothing but time, `ferrule cache` says what is there.
"""
import json
import os
import sys

import numpy as np
import onnx

import harness
from harness import DIFFERS, OK, USAGE, refusal, run

# Two pointwise layers with a matmul between them: two generated kernels.
NET = """
agraph (float[4,64] x, float[64,64] w) => (float[4,64] y) {
  s = Sigmoid (x)
  p = Mul (s, x)
  m = MatMul (p, w)
  e = Exp (m)
  q = Sub (e, x)
  r = Softplus (q)
  y = Mul (r, s)
}
"""


class Bench:
    """One model, one cache folder, results of runs as bytes."""

    def __init__(self, report):
        self.report, self.folder = report, report.folder
        self.net, self.inputs, self.cache = self.folder / "net.onnx", self.folder / "x.npz", self.folder / "cache"
        onnx.save(harness.onnx_text(NET), str(self.net))
        rng = np.random.default_rng(5)
        np.savez(self.inputs, x=rng.standard_normal((4, 64)).astype(np.float32), w=rng.standard_normal((64, 64)).astype(np.float32) / 8)
        self.right = self.result("--no-cache")[1]

    def files(self):
        return sorted(p for p in (self.cache / "kernels").glob("*") if p.name != "swept")

    def result(self, *arguments, env=None):
        """How a run ended, and its output's bytes."""
        out = self.folder / "y.npz"
        done = run("run", self.net, "--inputs", self.inputs, "--outputs", out, "--force", *arguments, env=env)
        return done, np.load(out)["y"].tobytes() if done.code == OK else None

    def same(self, what, *arguments, env=None, warning=None):
        """The right result; `warning`: what stderr must say, once. Without one it must say nothing."""
        done, bytes_ = self.result(*arguments, env=env)
        problem = harness.crash(done)
        if problem is None and bytes_ != self.right:
            problem = "another result; " + done.tail()
        warnings = done.err.count("warning")
        if problem is None and warnings != (warning is not None):
            problem = f"{warnings} warnings; " + done.tail()
        if problem is None and warning and warning not in done.err:
            problem = f"the warning does not say {warning!r}; " + done.tail()
        self.report.check(what, problem)

    def counts(self, what, hits, misses):
        """Hits and misses that bench reports."""
        value, problem = harness.answer(run("bench", self.net, "--seconds", "0.05", "--cache", self.cache, "--json"))
        if problem is None and (value["cache_hits"], value["cache_misses"]) != (hits, misses):
            problem = f"wanted {hits} hits, {misses} misses; got {value['cache_hits']}, {value['cache_misses']}"
        self.report.check(what, problem)

    def command(self, what, word, code=OK, **wanted):
        """`ferrule cache WORD --json` and what it must answer."""
        done = run("cache", word, "--cache", self.cache, "--json")
        problem = None if done.code == code else f"wanted exit status {code}; {done.tail()}"
        got = json.loads(done.out) if problem is None else {}
        got = {k: got.get(k) for k in wanted}
        if problem is None and got != wanted:
            problem = f"wanted {wanted}, got {got}"
        self.report.check(what, problem)


def warm(b):
    b.report.check("--no-cache makes no folder", None if not b.cache.exists() else "it is there")
    b.counts("cold: every kernel is compiled", 0, 2)
    b.counts("warm: none is", 2, 0)
    b.same("the result from the cache", "--cache", b.cache)
    b.same("FERRULE_CACHE", env={"FERRULE_CACHE": str(b.cache)})
    b.report.check("two entries, for their owner", None if [p.stat().st_mode & 0o777 for p in b.files()] == [0o600] * 2
                   else f"{[(p.name, oct(p.stat().st_mode)) for p in b.files()]}")
    b.counts("--cache and FERRULE_CACHE are the same cache", 2, 0)
    nowhere = {"HOME": str(b.folder / "no_home"), "XDG_CACHE_HOME": "", "FERRULE_CACHE": ""}
    b.same("a home that is not there", env=nowhere)
    b.same("no home at all", env={**nowhere, "HOME": ""})
    other = b.folder / "limited"
    b.same("cache_bytes=0", "--cache", other, "--limit", "cache_bytes=0")
    b.report.check("cache_bytes=0 keeps nothing", None if not list(other.glob("kernels/*")) else "there are files")


def damaged(b):
    whole = [p.read_bytes() for p in b.files()]
    changes = {
        "empty": lambda d: b"", "cut in the header": lambda d: d[:50], "cut in the code": lambda d: d[:-100],
        "a byte of the code": lambda d: d[:-200] + bytes([d[-200] ^ 1]) + d[-199:],
        "another build": lambda d: d[:20] + b"X" + d[21:], "longer": lambda d: d + b"more", "text": lambda d: b"#!/bin/sh\n" * 50,
    }
    for what, change in changes.items():
        for path, data in zip(b.files(), whole):
            path.write_bytes(change(data))
        b.same(f"damaged entries ({what})", "--cache", b.cache)
        b.report.check(f"damaged entries are made again ({what})", None if [p.read_bytes() for p in b.files()] == whole else "they differ")
    one, two = b.files()
    one.write_bytes(whole[1])
    two.write_bytes(whole[0])
    b.same("swapped entries", "--cache", b.cache)
    b.counts("swapped entries are made again", 2, 0)


def untrusted(b):
    for folder in (b.cache, b.cache / "kernels"):
        folder.chmod(0o777)
        before = sorted((p.name, p.stat().st_mtime_ns) for p in b.cache.glob("**/*"))
        b.same("a folder that everyone may write to", "--cache", b.cache, warning="everyone may write to it")
        b.report.check("it is left as it is", None if before == sorted((p.name, p.stat().st_mtime_ns) for p in b.cache.glob("**/*"))
                       else "something changed")
        b.report.check("ferrule cache refuses it", refusal(run("cache", "stat", "--cache", b.cache), USAGE, "everyone may write", str(folder)))
        folder.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(b.cache, 65534, 65534)
        b.same("another user's folder", "--cache", b.cache, warning="belongs to user 65534")
        os.chown(b.cache, 0, 0)
    else:
        b.report.skip("another user's folder", "only root can give one away")


def commands(b):
    size = sum(p.stat().st_size for p in b.files())
    b.command("cache stat", "stat", folder=str(b.cache / "kernels"), entries=2, bytes=size, unfinished=0)
    b.command("cache verify", "verify", entries=2, other_builds=0, damaged=[], removed=0)
    bad = b.files()[0]
    bad.write_bytes(bad.read_bytes()[:-1])
    b.command("cache verify finds damage", "verify", code=DIFFERS, entries=2, damaged=[bad.name], removed=1)
    b.command("cache verify removed it", "verify", entries=1, damaged=[])
    (b.cache / "kernels" / "notes.txt").write_text("mine")
    b.command("cache clear", "clear", removed=1)
    b.command("nothing is left", "stat", entries=0, bytes=0)
    b.report.check("what is not the cache's stays", None if (b.cache / "kernels" / "notes.txt").exists() else "it is gone")
    done = run("cache", "stat", "--cache", b.cache)
    b.report.check("cache stat in words", None if done.code == OK and str(b.cache) in done.out else done.tail())
    b.report.check("cache of nowhere", refusal(run("cache", "stat", "--no-cache"), USAGE, "--cache"))
    b.report.check("cache without a word", refusal(run("cache"), USAGE, "stat", "clear"))
    done = run("cache", "--help")
    b.report.check("cache --help", None if done.code == OK and "Example" in done.out else done.tail())


def main():
    report = harness.Report()
    b = Bench(report)
    warm(b)
    damaged(b)
    untrusted(b)
    commands(b)
    sys.exit(report.finish())


if __name__ == "__main__":
    main()
