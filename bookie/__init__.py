"""bookie: a storage node for replicated logs, and the client that writes and reads the copies.

Importing `bookie` has no side effects. A public name is loaded at its first use (PEP 562), so a
command loads only what it uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "BookKeeper",
    "MetadataStore",
    "Record",
    "Resync",
    "Stat",
    "__version__",
    "connect",
    "coordinate",
    "open_store",
    "retry",
]

if TYPE_CHECKING:
    from bookie.api import (
        BookKeeper,
        MetadataStore,
        Record,
        Resync,
        Stat,
        connect,
        coordinate,
        open_store,
        retry,
    )
else:  # otherwise, a type checker would accept misspelt names

    def __getattr__(name: str) -> object:
        """Load a public name on first use."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module("bookie.api"), name)


def __dir__() -> list[str]:
    """Return the names in this module, including public names that are not loaded yet."""
    return sorted({*globals(), *__all__})
