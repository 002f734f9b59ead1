"""What a store in etcd remembers of its records, to need fewer compares and rounds."""

from __future__ import annotations

CACHED_MAX = 4096
"""Keys of each kind that a store remembers something of."""


class RecordCache:
    """What a store remembers to guess right; whatever is forgotten costs a compare or a round."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}
        """Sequence → the last number and the revision of its counter."""
        self._persistent: dict[str, int] = {}
        """Key → a version in which the record had no lease."""

    def is_persistent(self, key: str, version: int) -> bool:
        """Whether the record of that version is known to have no lease."""
        return self._persistent.get(key) == version

    def saw_persistent(self, key: str, version: int) -> None:
        """Remember that it has none."""
        if len(self._persistent) >= CACHED_MAX:
            self._persistent.clear()
        self._persistent[key] = version

    def last(self, key: str) -> tuple[int, int]:
        """Number and mod_revision of the counter; (0, 0) if nothing is known."""
        return self._seen.get(key, (0, 0))

    def saw(self, key: str, number: int, revision: int) -> None:
        """Remember a counter."""
        if len(self._seen) >= CACHED_MAX:
            self._seen.clear()
        self._seen[key] = (number, revision)
