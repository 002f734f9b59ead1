"""``bookie node``: what the commands make of a bookie's answers."""

from __future__ import annotations

from typing import Any

import pytest

from bookie.cli import app
from bookie.cli import node as commands


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ({"read_only": True, "version": "0.1"}, 1),
        ({"read_only": True, "read_only_persists": False, "version": "0.2"}, 1),
        ({"read_only": True, "read_only_persists": True, "version": "0.2"}, 0),
    ],
)
def test_a_switch_that_does_not_persist_is_an_error(
    answer: dict[str, Any],
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An older bookie ignores what it does not know, and turns read-only until its next start."""

    async def ask(*_: object) -> dict[str, Any]:
        return {"read_only_reasons": ["command"]} | answer

    monkeypatch.setattr(commands, "_ask", ask)
    words = ["node", "readonly", "b1", "on", "--metadata", "memory://any"]
    assert app.run([*words, "--persist"]) == status
    said = capsys.readouterr().err
    assert ("only until its next start" in said) == bool(status)
    assert app.run(words) == 0
