"""The notebooks of examples/notebooks run from top to bottom, and each cell shows what is kept in the file, but for numbers.
notebooks.py [--write]: writes what they show into the files. Needs nbclient and ipykernel (deps.sh --python package)."""
import pathlib
import re
import sys

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError


def shown(cell):
    """What a cell shows, without numbers and what depends on their width. A busy kernel hands a stream on in several pieces."""
    texts = []
    for output in cell.outputs:
        data = output.get("data", {})
        if texts and output.output_type == "stream" and texts[-1][0] == "stream":
            texts[-1] = ("stream", texts[-1][1] + output.text)
            continue
        texts.append((output.output_type, output.get("text", ""), *(data[kind] for kind in sorted(data))))
    return [tuple(re.sub(r"[ ─-]+", " ", re.sub(r"\d+(\.\d+)?(e-?\d+)?", "#", text)) for text in output) for output in texts]


passed = failed = 0
for path in sorted((pathlib.Path(__file__).resolve().parents[2] / "examples" / "notebooks").glob("*.ipynb")):
    notebook = nbformat.read(path, as_version=4)
    kept = [shown(cell) for cell in notebook.cells if cell.cell_type == "code"]
    try:
        NotebookClient(notebook, timeout=300, kernel_name="python3", record_timing=False).execute()
    except CellExecutionError as e:
        print(f"FAILED {path.name}: {e}")
        failed += 1
        continue
    if "--write" in sys.argv:
        nbformat.write(notebook, path)
        continue
    now = [shown(cell) for cell in notebook.cells if cell.cell_type == "code"]
    different = [(a, b) for a, b in zip(kept, now, strict=True) if a != b]
    for a, b in different[:1]:
        print(f"FAILED {path.name} shows something else (tests/examples/run --write writes it anew)\n  kept: {a}\n  now:  {b}")
    failed += bool(different)
    passed += not different
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
