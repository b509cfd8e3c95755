"""Where the command line program is. Apart from the rest: it needs neither numpy nor the library."""
import os
import pathlib


def program() -> str:
    """$FERRULE_PROGRAM, else the one in this package."""
    return os.environ.get("FERRULE_PROGRAM") or str(pathlib.Path(__file__).resolve().parent / "bin" / "ferrule")
