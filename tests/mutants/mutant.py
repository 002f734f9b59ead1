"""A bug that somebody could make, as one change of one text, and the tests that have to see it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug."""

    name: str
    path: str
    """The file, from the root."""
    before: str
    """A text that stands there once."""
    after: str
    """What stands there instead."""
    killers: tuple[str, ...]
    """Tests as pytest names them, each of which passes without the bug. One has to fail with it."""
    why: str
    """What a user would see."""
    harmless: str = ""
    """Why no test has to see it. Then `killers` have to pass all the same."""

    def apply(self, root: Path) -> None:
        """Change the file below `root`.

        Raises:
            ValueError: the text does not stand there once.
        """
        path = root / self.path
        text = path.read_text(encoding="utf-8")
        if (found := text.count(self.before)) != 1:
            raise ValueError(
                f"the mutant {self.name}: its text stands {found} times in {self.path}; "
                "it has to stand there once"
            )
        path.write_text(text.replace(self.before, self.after), encoding="utf-8")
