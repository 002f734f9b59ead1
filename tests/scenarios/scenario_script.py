"""The language of scenario files: one command a line, `#` begins a comment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


class ScriptError(Exception):
    """The file is not a scenario: a command is unknown or incomplete."""


class ScenarioFailedError(AssertionError):
    """What the file expects did not happen, or a rule of the protocol was broken."""


@dataclass(frozen=True, slots=True)
class Line:
    """One command."""

    place: str
    """File and line number, for messages."""
    words: tuple[str, ...]

    @property
    def text(self) -> str:
        """The command without its comment."""
        return " ".join(self.words)


def lines_of(path: Path) -> Iterator[Line]:
    """The commands of a file."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            yield Line(f"{path.name}:{number}", tuple(words))


def number(word: str) -> int:
    """A word that must be a number."""
    try:
        return int(word)
    except ValueError:
        raise ScriptError(f"{word} is not a number") from None


def numbers(words: tuple[str, ...]) -> list[int]:
    """Words that must be numbers; `nothing` gives an empty list."""
    return [] if words == ("nothing",) else [number(word) for word in words]


def demand(condition: object, why: str) -> None:
    """Raise `ScenarioFailedError` unless the condition holds."""
    if not condition:
        raise ScenarioFailedError(why)
