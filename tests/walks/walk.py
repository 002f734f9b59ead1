"""Record the functions under ``bookie/`` that this process enters, in the order of first entry."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from types import CodeType, FrameType

import bookie

PACKAGE = Path(bookie.__file__).parent


@dataclass(slots=True)
class Walk:
    """The functions that one act enters, in all threads."""

    name: str
    entered: dict[CodeType, None] = field(default_factory=dict)
    """All code that was called, in the order of first entry."""

    def has(self, function: Callable[..., object]) -> bool:
        """True once `function` was called, or resumed if it is a coroutine."""
        return function.__code__ in self.entered

    @property
    def steps(self) -> list[tuple[str, str]]:
        """File below ``bookie/`` and function of each first entry.

        Bodies of modules and classes, which run at an import, do not count; nor do lambdas.
        """
        return [
            (path.relative_to(PACKAGE).as_posix(), code.co_qualname)
            for code in self.entered
            if code.co_flags & inspect.CO_OPTIMIZED
            and not code.co_name.startswith("<")
            and (path := Path(code.co_filename)).is_relative_to(PACKAGE)
        ]

    @property
    def files(self) -> list[str]:
        """The files in the order of first entry."""
        return list(dict.fromkeys(file for file, _ in self.steps))

    def __str__(self) -> str:
        """A line of totals, then each function below the file that it stands in."""
        steps = self.steps
        stays = [
            (file, list(of_file)) for file, of_file in groupby(steps, key=lambda step: step[0])
        ]
        lines = [
            f"{self.name}: {len(self.files)} files, {len(steps)} functions,"
            f" {max(0, len(stays) - 1)} changes of file"
        ]
        for file, of_file in stays:
            lines.append(f"  {file}")
            lines += [f"    {function}" for _, function in of_file]
        return "\n".join(lines)


class WalkRecorder:
    """Sees the calls of this thread, and of threads that start inside `watching`."""

    def __init__(self) -> None:
        self.walks: list[Walk] = []
        self._walk: Walk | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See calls. Threads that shall be seen have to start inside the block."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @contextmanager
    def walk(self, name: str) -> Iterator[Walk]:
        """Record the calls of the block, background work of the process included."""
        self._walk = Walk(name)
        self.walks.append(self._walk)
        try:
            yield self._walk
        finally:
            self._walk = None

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        walk = self._walk
        if walk is not None and event == "call":
            walk.entered.setdefault(frame.f_code)
