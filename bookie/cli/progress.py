"""A progress bar on standard error while something long runs.

Shown only when standard error is a terminal: logs and pipes stay clean, and `rich` stays unloaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], None]


@contextmanager
def progress_bar(
    title: str, *, total: int | None, unit: str = "bytes", watched: bool | None = None
) -> Iterator[Advance]:
    """Show a bar until the block ends; the value is the function that advances it.

    Args:
        title: what is being done.
        total: the end of the bar in units. None if it is unknown: then a count and a rate.
        unit: ``bytes`` (shown as KiB, MiB …) or the plural of what is counted.
        watched: show it; when None, if standard error is a terminal.
    """
    if watched is None:
        watched = sys.stderr.isatty()
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
