"""Print the way of each act through the product: ``make walk``."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bookie.daemon.loop import run
from tests.walks.ways import all_walks

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        print(*run(all_walks(Path(directory))).values(), sep="\n\n")
