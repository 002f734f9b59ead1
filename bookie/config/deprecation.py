"""Warns about spellings that a later version removes; `docs/compatibility.md` has the rules."""

from __future__ import annotations

import warnings
from functools import cache


@cache  # one warning per process
def warn_deprecated(what: str, *, since: str, removal: str, instead: str) -> None:
    """Warn that the deprecated spelling `what` was used; equal arguments warn only once.

    Call this directly in the function that is deprecated, or that reads the deprecated spelling.
    The warning names the caller of that function.

    Args:
        what: The old spelling, as a user writes it.
        since: The version that deprecated it.
        removal: The version that removes it, at least two minor versions later.
        instead: The new spelling.

    Warns:
        DeprecationWarning: If a filter makes it an error, each call raises it.
    """
    message = f"{what} is deprecated since bookie {since}, and {removal} removes it; use {instead}"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
