"""Run the notebooks of this folder and keep what their cells show; a test compares.

``python docs/notebooks/run.py`` needs nbclient, ipykernel, TensorFlow, PyTorch and Pillow.
"""

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
_CELL_S = 200


def run(path: Path) -> Any:
    """Return the notebook with what its cells show when they run in an empty folder.

    Raises:
        CellExecutionError: if one of them raises an error.
    """
    notebook: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    os.environ.update(
        TF_CPP_MIN_LOG_LEVEL="3", KERAS_BACKEND="tensorflow", TQDM_DISABLE="1", OMP_NUM_THREADS="1"
    )
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    with tempfile.TemporaryDirectory(prefix="yogadl-notebook-") as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=_CELL_S, kernel_name="python3", resources=resources).execute()
    for cell in notebook.cells:
        cell.metadata.clear()
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    return notebook


def shown(notebook: Any) -> Iterator[tuple[str, str]]:
    """Yield the source of each cell of code and the text that it shows."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            texts = [one.get("text") or one["data"]["text/plain"] for one in cell.outputs]
            yield cell.source, re.sub("fingerprint [0-9a-f]+", "fingerprint ...", "".join(texts))


if __name__ == "__main__":
    for path in NOTEBOOKS:
        path.write_text(nbformat.writes(run(path)) + "\n")  # type: ignore[no-untyped-call]
