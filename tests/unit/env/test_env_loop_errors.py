"""Errors that nobody awaits: whose complaint a command prints."""

from __future__ import annotations

import asyncio

import pytest

from bookie.daemon.loop import run


def test_a_loop_that_was_closed_before_disturbs_no_command(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """gRPC raises the error in the loop that took the event; other errors are logged."""

    def fail(error: Exception) -> None:
        raise error

    async def command() -> None:
        for text in ("Event loop is closed", "a bug"):
            asyncio.get_running_loop().call_soon(fail, RuntimeError(text))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    run(command())
    assert "a bug" in caplog.text
    assert "is closed" not in caplog.text
