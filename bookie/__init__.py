"""bookie: a storage node for replicated logs, and the client that replicates them.

Importing `bookie` opens nothing and starts nothing: the public names below are loaded when they are
first used (PEP 562), so that a forked worker or a command line pays only for what it touches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = ["BookKeeper", "__version__", "connect", "coordinate"]

if TYPE_CHECKING:
    from bookie.api import BookKeeper, connect, coordinate

_LAZY = dict.fromkeys(("BookKeeper", "connect", "coordinate"), "bookie.api")


def __getattr__(name: str) -> object:
    """Load a public name on first use."""
    module_name = _LAZY.get(name)
    if module_name is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(module_name), name)
