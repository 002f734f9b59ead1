"""The policy of a log: quorum, digest, limits for new ledgers, retention, quota, partitions.

The record is canonical JSON (:mod:`bookie.metadata.json_record`), format ``bookie-log-policy``,
version 1. A field that is absent or null is inherited. A log inherits fields from its namespace,
and a namespace inherits fields from the cluster's defaults.
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
    """The policy of a log, a namespace or the cluster; a field with the value None is inherited.

    Fields that end in ``_bytes`` are in bytes; fields that end in ``_seconds`` are in seconds.

    Raises:
        BadRequestError: a value is out of range, or the quorums contradict each other.
    """

    ensemble_size: int | None = None
    write_quorum_size: int | None = None
    ack_quorum_size: int | None = None
    digest: str | None = None
    """One of `DIGESTS`."""

    roll_bytes: int | None = None
    """After this many bytes, a partition continues in a new ledger; 0 means never."""

    roll_seconds: int | None = None
    """After this many seconds, a partition continues in a new ledger; 0 means never."""

    retention_bytes: int | None = None
    """Retention keeps at least this many bytes of each partition; 0 means no limit by size.

    If a size and a time are set, retention deletes a record only if both limits allow it. Without a
    limit by size or time, all records are kept.
    """

    retention_seconds: int | None = None
    """Records are kept for at least this time; 0 means no limit by time."""

    quota_bytes: int | None = None
    """A partition of this size refuses new records; 0 means unlimited."""

    ahead_seconds: int | None = None
    """A record's timestamp may be at most this much later than the append; 0 means no limit.

    For example, the limit rejects a time in microseconds that was passed as milliseconds. A single
    timestamp far in the future would hide the times of all later records from searches by time.
    """

    allow_degraded: bool | None = None
    """True if a ledger may be made with fewer bookies than its ensemble has slots.

    An entry in a degraded ledger has fewer copies, but at least the ack quorum. Bookies that become
    available later fill the vacant slots.
    """

    partitions: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and field.name not in _NO_NUMBERS:
                self._check_number(field.name, value)
        if not isinstance(self.allow_degraded, bool | None):  # the number 1 also equals True
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
        """Return this policy; each field that is None here is replaced by the field of `inherited`.

        Raises:
            BadRequestError: the sizes of the ensemble and the quorums in the result contradict each
                other.
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
"""The values of fields that neither the log nor its namespace sets."""


def encode_policy(policy: LogPolicy) -> bytes:
    """Encode a policy as bytes, without the inherited fields."""
    given = {name: value for name, value in asdict(policy).items() if value is not None}
    return json_record.encode(_FORMAT, _VERSION, given)


def decode_policy(data: bytes) -> LogPolicy:
    """Decode the policy in `data`.

    Raises:
        FormatError: `data` is not a policy, is damaged, or has a newer version.
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
