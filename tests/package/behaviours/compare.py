"""What can be compared of what a case returned or raised."""
import contextlib
import io
import warnings

import numpy as np


def plain(value):
    """What can be compared of a value, whichever of the two made it."""
    if isinstance(value, np.ndarray):
        return "array", str(value.dtype), value.shape, [plain(x) for x in value.ravel().tolist()]
    if isinstance(value, (bool, str, bytes, type(None))):
        return value
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.6g}")
    if isinstance(value, (int, np.integer)) or hasattr(value, "name") and hasattr(value, "value"):
        return int(value)
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return type(value).__name__


def outcome(function, ort):
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return plain(function(ort))
    except Exception as e:  # pylint: disable=broad-except
        text = str(e).splitlines()
        return f"raises {type(e).__name__}", text[0][:200] if text else ""


def same(a, b):
    raised = [isinstance(x, tuple) and len(x) == 2 and str(x[0]).startswith("raises ") for x in (a, b)]
    return a[0] == b[0] if all(raised) else a == b
