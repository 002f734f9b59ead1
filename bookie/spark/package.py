"""Write bookie's code as a zip for ``--py-files``, for clusters without bookie's wheel."""

from __future__ import annotations

import zipfile
from importlib.metadata import requires
from pathlib import Path

import bookie
import pyspark_bookkeeper

MOMENT = (1980, 1, 1, 0, 0, 0)
"""The time of all files in the zip. With a fixed time, equal packages make equal zips."""


def write_package(directory: Path) -> Path:
    """Write ``bookie-VERSION.zip`` to a directory and return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / f"bookie-{bookie.__version__}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in (bookie, pyspark_bookkeeper):
            assert package.__file__ is not None
            root = Path(package.__file__).parent
            for path in sorted(root.rglob("*.py")):
                info = zipfile.ZipInfo(str(path.relative_to(root.parent)), MOMENT)
                info.external_attr = 0o644 << 16
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, path.read_bytes())
    return target


def requirements() -> list[str]:
    """Return the libraries that pip must install on executors; a zip cannot hold compiled code."""
    declared = [one for one in requires("bookie") or () if "extra ==" not in one]
    return sorted([*declared, "pyarrow>=18"])
