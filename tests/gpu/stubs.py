"""Running ferrule on the stub libraries of build/stub: a GPU made of host memory, for tests of everything but speed."""
import os
import pathlib

import harness

STUB = pathlib.Path(os.environ.get("FERRULE_STUBS", harness.ROOT / "build" / "stub"))
KEPT = STUB / "cache"  # compiled kernels, by content: a compiler takes half a second for one

for name in ("CUDA_HOME", "CUDA_PATH"):  # a real NVRTC would be found there
    os.environ.pop(name, None)

DRIVER = "NVIDIA's driver (libcuda.so.1)"


def environment(report, hide=(), **orders):
    """The stubs in front of everything; orders: fail="cuMemAlloc_v2:3=2" is FERRULE_STUB_FAIL, and so on."""
    env = {"LD_LIBRARY_PATH": str(STUB), "FERRULE_STUB_CACHE": str(KEPT), "FERRULE_CACHE": str(report.folder / "cache")}
    if hide:
        env |= {"LD_PRELOAD": str(STUB / "libhide.so"), "FERRULE_STUB_HIDE": ",".join(hide)}
    return env | {f"FERRULE_STUB_{name.upper()}": str(value) for name, value in orders.items()}


def run(report, *arguments, hide=(), timeout=120, **orders):
    return harness.run(*arguments, env=environment(report, hide, **orders), timeout=timeout)


def wrong_use(done):
    """What the stubs complained about, or None."""
    lines = [line for line in done.err.splitlines() if line.startswith("stub: wrong use")]
    return f"{lines[0]} ({len(lines)} such lines); {done.tail()}" if lines else None


def there(report):
    """Whether the stubs are built; a check that fails where they are not."""
    missing = [name for name in ("libcuda.so.1", "libnvrtc.so.13", "libhide.so") if not (STUB / name).exists()]
    report.check("the stub libraries", f"not built: {', '.join(missing)} in {STUB}" if missing else None)
    return not missing
