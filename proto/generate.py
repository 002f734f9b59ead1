"""Generate `bookie/_pb` from every `.proto` file here, or check that the committed code is current.

The modules are flat (`bookie/_pb/bookie_pb2.py`, with type stubs), while the descriptors keep the
file names of the contract (`bookie/v1/bookie.proto`), so that they cannot collide with those of
anyone else in one process. Imports between generated modules are rewritten to the flat package.

    python proto/generate.py            writes bookie/_pb
    python proto/generate.py --check    exits 1 and names the files that differ
"""

from __future__ import annotations

import argparse
import importlib.resources
import re
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "proto"
TARGET = ROOT / "bookie" / "_pb"

INIT = '"""Generated protobuf messages: `make proto` writes them, `make proto-check` compares."""\n'


def generate() -> dict[str, str]:
    """The generated files by name, as they should stand in `bookie/_pb`."""
    sources = sorted(path.relative_to(SOURCES).as_posix() for path in SOURCES.rglob("*.proto"))
    well_known = str(importlib.resources.files("grpc_tools") / "_proto")
    generated = {"__init__.py": INIT}
    with tempfile.TemporaryDirectory() as scratch:
        arguments = ["protoc", f"-I{SOURCES}", f"-I{well_known}"]
        arguments += [f"--python_out={scratch}", f"--pyi_out={scratch}", *sources]
        if protoc.main(arguments) != 0:
            raise SystemExit("protoc refused the sources; its messages stand above")
        for path in sorted(Path(scratch).rglob("*_pb2.py*")):
            if path.name in generated:
                raise SystemExit(f"two .proto files would both become {path.name}; rename one")
            generated[path.name] = flatten(path.read_text(encoding="utf-8"))
    return generated


def flatten(text: str) -> str:
    """Point imports between our own generated modules at the flat package."""
    return re.sub(
        r"^from bookie(?:\.\w+)+ import (\w+_pb2)",
        r"from bookie._pb import \1",
        text,
        flags=re.MULTILINE,
    )


def differences(generated: dict[str, str]) -> list[str]:
    """Names of files under `bookie/_pb` that are missing, stale or left over."""
    present = {path.name: path.read_text(encoding="utf-8") for path in TARGET.glob("*.py*")}
    return sorted(
        name
        for name in present.keys() | generated.keys()
        if present.get(name) != generated.get(name)
    )


def main() -> int:
    """Write the generated files, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if anything differs"
    )
    check = parser.parse_args().check
    generated = generate()
    stale = differences(generated)
    if check:
        if stale:
            names = ", ".join(stale)
            print(
                f"bookie/_pb is not what proto/ says ({names}): run `make proto`", file=sys.stderr
            )
        return 1 if stale else 0
    TARGET.mkdir(exist_ok=True)
    for name in stale:
        if name in generated:
            (TARGET / name).write_text(generated[name], encoding="utf-8")
        else:
            (TARGET / name).unlink()
    print(f"bookie/_pb: {len(stale)} of {len(generated)} files changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
