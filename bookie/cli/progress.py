"""A progress bar on standard error for commands that take long.

The bar appears only if standard error is a terminal, and if the command runs in the terminal's
foreground. In all other cases the module prints nothing, and does not load the library `rich`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], None]


@contextmanager
def progress_bar(
    title: str, *, total: int | None, unit: str = "bytes", watched: bool | None = None
) -> Iterator[Advance]:
    """Show a progress bar until the block ends; yield the function that advances the bar.

    Args:
        title: the name of the work.
        total: the number of units at the end of the bar; None if this number is unknown.
        unit: ``bytes`` (shown as KiB, MiB …) or the plural name of the counted things.
        watched: True shows the bar, and False hides it. None shows the bar if this command is in
            the foreground of a terminal.
    """
    if watched is None:
        watched = _has_the_terminal()
    if not watched:
        yield lambda _count: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TransferSpeedColumn,
    )

    counts: tuple[ProgressColumn, ...]
    if unit == "bytes":
        counts = (DownloadColumn(binary_units=True), TransferSpeedColumn())
    else:
        counts = (MofNCompleteColumn(), TextColumn(unit))
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *counts,
        TimeElapsedColumn(),
        console=Console(stderr=True, force_terminal=True),
        transient=True,
    ) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)


def _has_the_terminal() -> bool:
    """True if standard error is a terminal, and this process runs in its foreground."""
    if not sys.stderr.isatty():
        return False
    try:
        return os.tcgetpgrp(sys.stderr.fileno()) == os.getpgrp()
    except OSError:  # the terminal is not this process's controlling terminal
        return True
