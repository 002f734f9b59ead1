"""Damage that a seed chooses: flipped bits, overwritten or exchanged bytes, shortened files."""

from __future__ import annotations

import random
from pathlib import Path

_STRETCH_BYTES_MAX = 3000


def vandalize(rng: random.Random, root: Path) -> str:
    """Damage one file under `root`, chosen by kind first, so that small ones are not spared.

    An index that was closed in order is spared: a start does not read all of it.
    """
    everything = sorted(path for path in root.rglob("*") if path.is_file())
    if (root / "ledgers" / "STOPPED").exists():
        everything = [path for path in everything if path.suffix != ".mdb"]
    kinds = sorted({path.suffix or path.name for path in everything})
    larger = [kind for kind in kinds if kind in {".journal", ".log", ".mdb"}]
    kind = rng.choice([*kinds, *larger, *larger])
    path = rng.choice([p for p in everything if (p.suffix or p.name) == kind])
    data = bytearray(path.read_bytes())
    name = path.relative_to(root)
    if not data:
        path.write_bytes(b"\x55")
        return f"{name}: a byte where there was none"
    at = _somewhere(rng, data)
    size = min(rng.randrange(1, _STRETCH_BYTES_MAX), len(data) - at)
    match rng.choice(["flip", "flip", "flip", "noise", "zeros", "copy", "cut"]):
        case "flip":
            data[at] ^= 1 << rng.randrange(8)
            words = f"a bit flipped at {at}"
        case "noise":
            data[at : at + size] = rng.randbytes(size)
            words = f"noise from {at} to {at + size}"
        case "zeros":
            data[at : at + size] = bytes(size)
            words = f"zeros from {at} to {at + size}"
        case "copy":
            source = rng.randrange(len(data))
            piece = data[source : source + size]
            data[at : at + len(piece)] = piece
            words = f"{len(piece)} bytes of {source} at {at}"
        case _:
            del data[at:]
            words = f"cut at {at}"
    path.write_bytes(data)
    return f"{name}: {words}"


def _somewhere(rng: random.Random, data: bytearray) -> int:
    """An offset; often where something begins, and rarely in the empty rest of a file."""
    used = len(data.rstrip(b"\0")) or len(data)
    at = rng.randrange(used)
    if rng.random() < 0.3:
        at = at - at % 512 + rng.randrange(64)
    return min(at, len(data) - 1)
