"""The first minutes of a user of the wheel: first.py MODEL. Nothing but what the wheel brought, numpy and what every Linux has may be used."""
import subprocess
import sys

import numpy as np

import ferrule

MODEL = sys.argv[1]
session = ferrule.Session(MODEL, backend="cpu")
print(session.explain())
(port,) = session.inputs
shape = [d if isinstance(d, int) else w for d, w in zip(port.shape, (1, 3, 48, 192))]
x = {port.name: np.random.default_rng(0).standard_normal(shape).astype(port.dtype)}
fused = session.run(x)
plain = ferrule.Session(MODEL, backend="reference").run(x)
for name, want in plain.items():
    np.testing.assert_allclose(fused[name], want, rtol=1e-4, atol=1e-5)
# The command line program.
for command in (["ferrule"], [sys.executable, "-m", "ferrule"]):
    out = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
    assert ferrule.__version__ in out, out
assert "conv_activation" in subprocess.run(["ferrule", "explain", MODEL], capture_output=True, text=True, check=True).stdout
# Libraries come from the wheel; of the system's only those that the manylinux standard names.
site = ferrule.__file__.rsplit("/", 2)[0]
with open("/proc/self/maps", encoding="utf-8") as f:
    files = {line.split(maxsplit=5)[5].strip() for line in f if ".so" in line}
system = ("ld-linux", "libc.", "libc-", "libm.", "libm-", "libdl", "libpthread", "librt", "libstdc++", "libgcc_s", "libz.", "libutil", "libresolv", "libnss")
others = [p for p in files if not p.startswith((site, sys.prefix, sys.base_prefix)) and not p.rsplit("/", 1)[1].startswith(system)]
ours = [p for p in others if any(s in p for s in ("proto", "yaml", "fmt", "sleef", "xxhash", "zstd", "dnnl", "gomp", "ferrule"))]
assert not ours, ours
print("first result")
