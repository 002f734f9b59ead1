"""Limits of open files as a service's filter of system calls, or an older kernel, shows them."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from bookie.daemon import descriptors
from bookie.errors import ConfigurationError


def forbidden(*_: object) -> tuple[int, int]:
    """The answer of a filter of system calls."""
    raise PermissionError(1, "Operation not permitted")


@pytest.mark.parametrize(("hard", "number"), [("524288", 524288), ("unlimited", -1)])
def test_limits_are_read_where_asking_is_forbidden(
    hard: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unit forbids the call that sets limits, by which libraries read them, too."""
    path = tmp_path / "limits"
    path.write_text(
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max cpu time              unlimited            unlimited            seconds   \n"
        f"Max open files            1024                 {hard:<20} files     \n"
    )
    monkeypatch.setattr(descriptors, "_LIMITS", path)
    monkeypatch.setattr(resource, "getrlimit", forbidden)
    monkeypatch.setattr(resource, "setrlimit", forbidden)
    assert descriptors.limits() == (1024, number)
    assert descriptors.raise_limit() == 1024


def test_limits_are_the_same_in_both_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is the kernel's."""
    asked = descriptors.limits()
    monkeypatch.setattr(resource, "getrlimit", forbidden)
    assert descriptors.limits() == asked


def test_descriptors_are_counted_with_and_without_a_listing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Older kernels do not count for us."""
    before = descriptors.in_use()
    ends = os.pipe()
    assert descriptors.in_use() == before + 2
    size_unknown = os.stat_result((0,) * 10)
    monkeypatch.setattr(os, "stat", lambda path: size_unknown)
    assert descriptors.in_use() == before + 2
    for end in ends:
        os.close(end)


@pytest.mark.parametrize("limit", [descriptors.DESCRIPTORS_MIN, -1])
def test_enough_is_enough(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """-1 is unlimited; one fewer than needed is refused."""
    monkeypatch.setattr(descriptors, "raise_limit", lambda: limit)
    assert descriptors.require_descriptors() == limit
    monkeypatch.setattr(descriptors, "raise_limit", lambda: descriptors.DESCRIPTORS_MIN - 1)
    with pytest.raises(ConfigurationError, match="open files"):
        descriptors.require_descriptors()
