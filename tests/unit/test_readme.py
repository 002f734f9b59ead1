"""The examples of the documents that need no cluster do what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from bookie import api, coordinate
from bookie.coordination.participant import Participant

ROOT = Path(__file__).resolve().parents[2]
COORDINATION = ROOT / "docs" / "metadata.md"


def test_the_example_of_coordination_runs(tmp_path: Path) -> None:
    """As it is printed, but for the place of the store."""
    blocks = re.findall(r"```python\n(.*?)```", COORDINATION.read_text(encoding="utf-8"), re.DOTALL)
    (example,) = (block for block in blocks if "coordinate(" in block)
    assert "local:///path/to/orders" in example
    (tmp_path / "example.py").write_text(
        example.replace("/path/to/orders", str(tmp_path / "orders")), encoding="utf-8"
    )
    done = subprocess.run(
        [sys.executable, str(tmp_path / "example.py")],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    leading, sending = done.stdout.splitlines()
    assert re.fullmatch(r"leading; fencing token \d+", leading)
    assert sending == "sending b'welcome'"


async def test_everything_is_given_up_when_the_block_is_left(tmp_path: Path) -> None:
    """What one process held, the next one gets; what was written stays."""
    uri = f"local://{tmp_path}"
    async with coordinate(uri, session_timeout_seconds=5) as me:
        assert isinstance(me, Participant)
        lock = await api.LockManager(me).try_acquire("/lock")
        await me.store.put("/kept", b"")
        assert await api.Counter(me, "/ids").next() == 0
    assert lock.state is api.LockState.RELEASED
    async with coordinate(uri) as other:
        await api.LockManager(other).try_acquire("/lock")
        assert await other.store.exists("/kept")
        assert await api.Counter(other, "/ids").next() == 1


def test_the_public_names_are_there() -> None:
    """Each that `bookie.api` promises."""
    assert all(hasattr(api, name) for name in api.__all__)
