"""The policy of a log: quorum, digest, the size and age of a roll, retention, quota, partitions.

Canonical JSON (:mod:`bookie.metadata.json_record`), format ``bookie-log-policy``, version 1. An
absent or null field is inherited: a log's from its namespace, a namespace's from the cluster's
defaults.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from bookie.errors import BadRequestError, FormatError
from bookie.log.catalog.log_metadata import PARTITIONS_MAX
from bookie.metadata import json_record

_FORMAT = "bookie-log-policy"
_VERSION = 1
_BOOKIES_MAX = 1024
_NO_NUMBERS = ("digest", "allow_degraded")
DIGESTS = ("crc32c", "crc32", "hmac", "dummy")


@dataclass(frozen=True, slots=True)
class LogPolicy:
    """The decisions of one level; None is inherited. Sizes are bytes, times seconds.

    Raises:
        BadRequestError: a value is out of range, or the quorums contradict each other.
    """

    ensemble_size: int | None = None
    write_quorum_size: int | None = None
    ack_quorum_size: int | None = None
    digest: str | None = None
    """One of `DIGESTS`."""

    roll_bytes: int | None = None
    """A log continues in a new ledger after this many bytes; 0 means never."""

    roll_seconds: int | None = None
    """A log continues in a new ledger after this time; 0 means never."""

    retention_bytes: int | None = None
    """At least this number of bytes of each partition is kept; 0 sets no limit by size.

    With a size and a time, only records beyond both may go. With neither, everything is kept."""

    retention_seconds: int | None = None
    """Records are kept for at least this time; 0 sets no limit by time."""

    quota_bytes: int | None = None
    """A partition of this size takes no more records; 0 means unlimited."""

    ahead_seconds: int | None = None
    """A record's time may be ahead of its append by at most this time; 0 sets no limit.

    The limit finds microseconds given as milliseconds, which would hide all times behind them."""

    allow_degraded: bool | None = None
    """True if a ledger may be made with fewer bookies than its ensemble has slots.

    Entries then have fewer copies, at least the ack quorum. Later bookies get the free slots."""

    partitions: int | None = None
    """The number of partitions of a new log."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and field.name not in _NO_NUMBERS:
                self._check_number(field.name, value)
        if self.allow_degraded not in (None, False, True):
            raise BadRequestError(
                f"allow_degraded is {self.allow_degraded!r}, and must be true or false"
            )
        if self.digest is not None and self.digest not in DIGESTS:
            raise BadRequestError(f"digest is {self.digest!r}, and must be one of {DIGESTS}")
        sizes = (self.ensemble_size, self.write_quorum_size, self.ack_quorum_size)
        given = [size for size in sizes if size is not None]
        if given != sorted(given, reverse=True):
            raise BadRequestError(
                "a policy needs ensemble_size >= write_quorum_size >= ack_quorum_size, not "
                + " >= ".join("?" if size is None else str(size) for size in sizes)
            )

    def _check_number(self, name: str, value: object) -> None:
        least, most = (0, 2**63 - 1)
        if name.endswith("_size"):
            least, most = 1, _BOOKIES_MAX
        elif name == "partitions":
            least, most = 1, PARTITIONS_MAX
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise BadRequestError(f"{name} is {value!r}, and must be in {least} … {most}")

    def over(self, inherited: LogPolicy) -> LogPolicy:
        """This policy, with its open decisions taken from `inherited`.

        Raises:
            BadRequestError: the quorums of the two contradict each other.
        """
        own, other = asdict(self), asdict(inherited)
        return LogPolicy(
            **{name: other[name] if value is None else value for name, value in own.items()}
        )


DEFAULTS = LogPolicy(
    ensemble_size=3,
    write_quorum_size=3,
    ack_quorum_size=2,
    digest="crc32c",
    roll_bytes=2**30,
    roll_seconds=0,
    retention_bytes=0,
    retention_seconds=0,
    quota_bytes=0,
    ahead_seconds=24 * 3600,
    allow_degraded=False,
    partitions=1,
)
"""The decisions that no level makes."""


def encode_policy(policy: LogPolicy) -> bytes:
    """The bytes of a policy, without inherited fields."""
    given = {name: value for name, value in asdict(policy).items() if value is not None}
    return json_record.encode(_FORMAT, _VERSION, given)


def decode_policy(data: bytes) -> LogPolicy:
    """The policy in `data`.

    Raises:
        FormatError: not a policy, damaged, or of a newer version.
    """
    found = json_record.decode(_FORMAT, _VERSION, data)
    digest = None if found.values.get("digest") is None else found.text("digest")
    numbers = {
        field.name: found.optional_integer(field.name, minimum=0)
        for field in fields(LogPolicy)
        if field.name not in _NO_NUMBERS
    }
    degraded = None
    if found.values.get("allow_degraded") is not None:
        degraded = found.boolean("allow_degraded")
    try:
        return LogPolicy(digest=digest, allow_degraded=degraded, **numbers)
    except BadRequestError as error:
        raise FormatError(f"{_FORMAT}: {error}") from error
