"""Runs a notebook: ``python -m tests.spark.notebook FILE [TARGET]``, with the outputs of this run.

The cells run in order, in one process, as Jupyter runs them. Outputs are what a cell prints and
the value of its last expression. An error in a cell ends the run. Jupyter itself would be 37
packages of 106 MB.
"""

from __future__ import annotations

import ast
import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

Notebook = dict[str, Any]
"""As the file has it, in version 4 of the format."""

MIME_TYPES = {"_repr_svg_": "image/svg+xml", "_repr_html_": "text/html"}
"""The text that an object shows of itself, by the method that Jupyter asks."""


def read(path: Path) -> Notebook:
    """A notebook."""
    found = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    assert found["nbformat"] == 4
    return found


def write(notebook: Notebook, path: Path) -> None:
    """Write a notebook, as Jupyter lays it out."""
    text = json.dumps(notebook, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def outputs(notebook: Notebook) -> list[list[dict[str, Any]]]:
    """The outputs of the cells with code."""
    return [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run(notebook: Notebook, name: str) -> None:
    """Run all cells with code; their outputs replace those that were there."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    number = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            number += 1
            cell["execution_count"] = number
            cell["outputs"] = _run_cell("".join(cell["source"]), number, name, namespace)


def _run_cell(code: str, number: int, name: str, namespace: dict[str, Any]) -> list[dict[str, Any]]:
    tree = ast.parse(code, f"{name}[{number}]")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with redirect_stdout(printed):
        exec(compile(tree, f"{name}[{number}]", "exec"), namespace)
        if isinstance(last, ast.Expr):
            shown = ast.Expression(last.value)
            value = eval(compile(shown, f"{name}[{number}]", "eval"), namespace)
    found: list[dict[str, Any]] = []
    if text := printed.getvalue():
        lines = text.splitlines(keepends=True)
        found.append({"name": "stdout", "output_type": "stream", "text": lines})
    if value is not None:
        data = {"text/plain": [repr(value)]}
        for method, kind in MIME_TYPES.items():
            if hasattr(value, method):
                data[kind] = getattr(value, method)().splitlines(keepends=True)
        found.append(
            {
                "data": data,
                "execution_count": number,
                "metadata": {},
                "output_type": "execute_result",
            }
        )
    return found


def main(source: str, target: str = "") -> None:
    """Run a file, and write it to another one or back."""
    notebook = read(Path(source))
    run(notebook, Path(source).name)
    write(notebook, Path(target or source))


if __name__ == "__main__":
    main(*sys.argv[1:])
