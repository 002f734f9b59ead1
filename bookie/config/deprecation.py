"""Warns about names and values that a later version removes; see `docs/compatibility.md`."""

from __future__ import annotations

import warnings
from functools import cache


@cache  # a process shows each warning only once
def warn_deprecated(what: str, *, since: str, removal: str, instead: str) -> None:
    """Warn that the deprecated name or value `what` was used; equal warnings appear only once.

    Call `warn_deprecated` directly in the deprecated function, or in the function that reads the
    deprecated value. The warning shows the line that called the deprecated function.

    Args:
        what: The old name or value, as a user writes it.
        since: The version that deprecated `what`.
        removal: The version that removes `what`, at least two minor versions after `since`.
        instead: The new name or value.

    Warns:
        DeprecationWarning: If a filter turns warnings into errors, every call raises this error.
    """
    message = f"{what} is deprecated since bookie {since}, and {removal} removes it; use {instead}"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
