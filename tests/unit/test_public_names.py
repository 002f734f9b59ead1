"""The names that users write down are those of `tests/public_names.txt`."""

from __future__ import annotations

from difflib import unified_diff

from tests.public_names import COMMAND, listed_names, public_names


def test_public_names_change_on_purpose() -> None:
    """A lost name breaks somebody's program, dashboard or settings file."""
    listed, found = listed_names(), public_names()
    changes = "\n".join(unified_diff(listed, found, "tests/public_names.txt", "the code", n=0))
    assert listed == found, (
        f"public names have changed:\n{changes}\n"
        f"Give back each name that is missing. If the change is meant, run `{COMMAND}`, commit "
        "the file with the change, and tell users in CHANGELOG.md."
    )
