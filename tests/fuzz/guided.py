"""Coverage-guided fuzzing of one row of the table, by atheris (libFuzzer for Python).

Atheris has wheels for Python 3.11 on Linux. It is no requirement of the tests, because it
instruments every module that it loads. Install it into an environment of its own::

    python -m venv /tmp/guided && /tmp/guided/bin/pip install -e . -r requirements/test.txt atheris
    /tmp/guided/bin/python -m tests.fuzz.guided metadata.claim -max_total_time=300

Further arguments are those of libFuzzer. New inputs go to `build/fuzz/ROW`. A failure prints its
input and writes a file ``crash-…`` there; give it a name in `tests/fuzz/corpus/ROW`.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

WORK = Path("build/fuzz")


def main(arguments: list[str]) -> None:
    """Fuzz the row that the first argument names, until libFuzzer's limits or a failure."""
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["bookie"]):
        from tests.fuzz.table import TARGETS
        from tests.fuzz.target import CORPUS, watched

    name, *options = arguments or [""]
    if name not in TARGETS:
        raise SystemExit(f"usage: python -m tests.fuzz.guided ROW …; rows: {' '.join(TARGETS)}")
    target = TARGETS[name]
    found = WORK / name
    found.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds):
        (found / f"seed-{number}").write_bytes(seed)
    known = [str(path) for path in (CORPUS / name,) if path.exists()]
    with watched(target):
        atheris.Setup(
            [sys.argv[0], str(found), *known, f"-artifact_prefix={found}/", *options], target.check
        )
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
