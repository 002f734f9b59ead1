"""The notebook runs from its first cell to its last, with the outputs that its file shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark import notebook
from tests.spark.programs import ROOT, run_program

TOUR = ROOT / "examples" / "spark" / "tour.ipynb"


@pytest.mark.timeout(1800)
def test_the_tour_shows_what_its_file_shows(connect_address: str, uri: str, tmp_path: Path) -> None:
    target = tmp_path / "tour.ipynb"
    run_program(
        *("-m", "tests.spark.notebook", str(TOUR), str(target)),
        SPARK_REMOTE=connect_address,
        BOOKIE_METADATA=uri,
    )
    shown = notebook.outputs(notebook.read(TOUR))
    assert any(shown), "the file has no outputs; run python -m tests.spark.notebook"
    assert notebook.outputs(notebook.read(target)) == shown


def test_an_error_in_a_cell_ends_the_run() -> None:
    cell: dict[str, Any] = {"cell_type": "code", "source": ["1 + 1\n", "1 / 0\n"], "outputs": []}
    with pytest.raises(ZeroDivisionError):
        notebook.run({"cells": [cell]}, "name")
    cell["source"] = ["print('a')\n", "6 * 7"]
    notebook.run({"cells": [cell]}, "name")
    [printed, value] = cell["outputs"]
    assert (printed["text"], value["data"]) == (["a\n"], {"text/plain": ["42"]})
