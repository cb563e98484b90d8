"""Run a tutorial, and keep of it what is the same on every machine.

python -m tests.tutorials.notebooks [NAME ...]    # runs them and writes them back: make tutorials
"""

import os
import re
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from PIL import Image

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
TUTORIALS = sorted(FOLDER.glob("*.ipynb"))
KEPT = ("image/png", "text/html", "text/plain")
"""Of an output; of several the first is shown."""


def read(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def run(notebook: NotebookNode, folder: Path, timeout_s: int = 240) -> NotebookNode:
    """The notebook as it is after all its cells were run in a folder, in a process of its own."""
    here = Path(sys.executable).parent  # where the command `fedfade` is
    os.environ |= {  # the kernel inherits it
        "PATH": f"{here}{os.pathsep}{os.environ.get('PATH', '')}",
        "OMP_NUM_THREADS": "1",
        "IPYTHONDIR": str(folder / ".ipython"),  # nothing is left at home
        "JUPYTER_RUNTIME_DIR": str(folder / ".jupyter"),
    }
    where = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, timeout=timeout_s, kernel_name="python3", resources=where)
    return client.execute()


def cleaned(notebook: NotebookNode) -> NotebookNode:
    """Without times, counters and what a library says about itself (standard error)."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = [*_outputs(cell.outputs)]
    return notebook


def _outputs(outputs: list[NotebookNode]) -> Iterator[NotebookNode]:
    """What a cell printed, in one piece, then what it shows."""
    new = nbformat.v4.new_output
    if text := "".join(output.text for output in outputs if output.get("name") == "stdout"):
        yield new("stream", name="stdout", text=text)
    for output in outputs:
        data = {kind: output.data[kind] for kind in KEPT if kind in output.get("data", {})}
        if "image/png" in data:
            data = {"image/png": _small(data["image/png"])}  # not <Figure size 640x480 ...>
        if data:
            yield new("display_data", data=data)


def _small(picture: str, width: int = 900) -> str:
    """A PNG in base64, no wider than a page."""
    with Image.open(BytesIO(b64decode(picture))) as image:
        if image.width <= width:
            return picture
        narrow, file = image.resize((width, image.height * width // image.width)), BytesIO()
    narrow.convert("RGB").quantize(256).save(file, "PNG", optimize=True)
    return b64encode(file.getvalue()).decode()


def shape(notebook: NotebookNode) -> list[tuple[str, list[str]]]:
    """Every cell and what it shows, numbers and spaces left out: what must not go stale."""
    return [(cell.source, [_shape(o) for o in cell.get("outputs", [])]) for cell in notebook.cells]


def _shape(output: NotebookNode) -> str:
    text = output.get("text") or "\n".join(
        f"{kind} {'' if kind == 'image/png' else content}" for kind, content in output.data.items()
    )
    return re.sub(r"[\s\d.+\-e%]+", " ", text)


def main() -> None:
    for path in TUTORIALS:
        if not sys.argv[1:] or path.stem in sys.argv[1:]:
            with TemporaryDirectory() as folder:
                nbformat.write(cleaned(run(read(path), Path(folder))), path)


if __name__ == "__main__":
    main()
