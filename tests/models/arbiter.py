"""The fp64 arbiter: what a model computes when everything in it is f64, and how far the interpreter with the reduced rules is from that.
A device that computes in f16, bf16 or tf32 may be as far off as the interpreter, times a factor (tolerance.reduced)."""
import numpy as np
import onnx

import harness
import narrow
import tolerance

# Of each kind: the rules that ask for it, and the rules that the interpreter is given. It knows no tf32, which keeps 3 bits more
# than bf16, but cuts the others off where bf16 rounds.
KINDS = {"f16": ("half_*", "half_*"), "bf16": ("bfloat_*", "bfloat_*"), "tf32": ("tf32", "bfloat_*")}


def rules(kind):
    """The options of `ferrule run` for f32 or one of KINDS."""
    return ("--enable", KINDS[kind][0]) if kind in KINDS else ()


class Arbiter:
    """For one model on one set of inputs. scratch: a folder for files; run: what runs the program."""

    def __init__(self, model, inputs, scratch, run=harness.run):
        self.model, self.inputs, self.scratch, self.run = model, inputs, scratch, run
        self.yardsticks = {}
        wide, arrays = scratch / "f64.onnx", scratch / "f64.npz"
        onnx.save(narrow.narrow(onnx.load(str(model)), "f64"), str(wide))
        with np.load(inputs) as stored:
            np.savez(arrays, **{k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in stored.items()})
        self.exact = self.interpreted(wide, arrays)

    def interpreted(self, model, inputs, *extra):
        out = self.scratch / "arbiter.npz"
        done = self.run("run", model, "--inputs", inputs, "--backend", "reference", "--outputs", out, "--force", *extra, timeout=600)
        if done.code != harness.OK:
            raise RuntimeError(done.tail())
        with np.load(out) as stored:
            return dict(stored)

    def unfit(self, kind):
        """Why this model is not to be judged in this type, or None."""
        if kind not in self.yardsticks:
            self.yardsticks[kind] = self.interpreted(self.model, self.inputs, "--enable", KINDS[kind][1])
        bad = [name for name, array in self.yardsticks[kind].items() if not np.isfinite(array).all()]
        return f"its numbers do not fit: {', '.join(bad)} of the interpreter is not finite" if bad else None

    def judge(self, kind, got):
        """None, or what is wrong with results by name; unfit() is None."""
        return tolerance.reduced(got, self.yardsticks[kind], self.exact)
