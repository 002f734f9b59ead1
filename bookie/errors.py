"""Every error that bookie raises on purpose, as a tree; its first level groups errors by cause.

::

    BookieError
    ├─ RequestError                 the request is wrong; a repetition will fail, too
    │  ├─ BadRequestError             an argument is out of range, or two arguments contradict
    │  ├─ UnauthorizedError           a wrong ledger password, or no right in the metadata store
    │  ├─ WeakDigestError             the client's settings forbid the ledger's weak digest
    │  ├─ NotPermittedError           the caller's roles forbid the request, or his token is refused
    │  ├─ WrongClusterError           the bookie belongs to another cluster
    │  ├─ ConfigurationError          a setting is unknown, missing or out of range
    │  └─ ClientClosedError           the client or handle was closed before
    ├─ LedgerError                  the state of the ledger forbids the request
    │  ├─ NoSuchLedgerError
    │  ├─ NoSuchEntryError
    │  ├─ LedgerExistsError
    │  ├─ LedgerClosedError
    │  ├─ LedgerFencedError           another client fenced the ledger; the outcome is unknown
    │  │  └─ ForeignEnsembleError       another client changed the last ensemble; outcome unknown
    │  └─ ConflictError               other bytes are stored under this entry id
    ├─ LogError                     the state of the log forbids the request
    │  ├─ NoSuchLogError
    │  ├─ LogExistsError
    │  ├─ LogTakenOverError           another process owns the log now; outcome unknown
    │  ├─ LogTruncatedError           the position was truncated; has the earliest readable offset
    │  ├─ LogFullError                the quota of the log is used up
    │  ├─ LogClosedError              the handle of the log was closed, or has failed
    │  ├─ DuplicateRecordError        a sequence number is old, and no longer remembered
    │  ├─ NoSuchCursorError
    │  └─ CursorLostError             another consumer took the cursor, or it was reset
    ├─ UnavailableError             try again later; nothing is wrong with the request  (retryable)
    │  ├─ NotEnoughBookiesError
    │  ├─ BookieUnreachableError
    │  │  └─ TlsError                   a certificate is refused, or one end speaks plaintext
    │  ├─ ReadOnlyError
    │  ├─ TooManyRequestsError
    │  ├─ ShuttingDownError
    │  ├─ UnknownLedgerStateError     the bookie may have lost data of this ledger
    │  ├─ WrongBookieError            another bookie answers at this address
    │  ├─ WrongIncarnationError       the bookie may have lost entries that it acknowledged
    │  ├─ LedgerRecoveryError         too few bookies answered to decide where the ledger ends
    │  ├─ DiskFullError
    │  ├─ CannotStartError            a port is taken, or a directory cannot be used now
    │  ├─ ClockError                  the clock of this machine contradicts all bookies
    │  └─ OperationTimeoutError
    ├─ CorruptionError              stored or received bytes are wrong
    │  ├─ ChecksumError
    │  └─ FormatError                 not our format
    │     └─ NewerFormatError           a newer version wrote the bytes; they are not damaged
    ├─ StorageFailedError           a disk failed; the process must end (exit code 74)
    ├─ IdentityError                cookie, instance id or directory belongs to somebody else
    │  ├─ CookieError
    │  └─ DirectoryLockedError
    └─ MetadataError                the metadata store
       ├─ BadVersionError             compare-and-set lost
       ├─ KeyExistsError
       │  └─ LayoutExistsError          the cluster was initialized before
       ├─ NoSuchKeyError
       ├─ KeyHasChildrenError
       ├─ InvalidKeyError
       ├─ StoreWentBackError          the store has an older state than a bookie knows
       ├─ ClusterInUseError           registered bookies or unexpected keys prevent the change
       ├─ UnsupportedError            this kind of metadata store cannot do the request
       ├─ SessionLostError                                                   (retryable)
       ├─ SessionGivenUpError         the process must end (exit code 3)
       ├─ MetadataUnavailableError                                           (retryable)
       ├─ LockBusyError               somebody else holds the lock            (retryable)
       ├─ LockLostError               the lock is not held any more
       └─ MetadataClosedError
"""

from __future__ import annotations

from typing import ClassVar

from bookie.ids import Status


class BookieError(Exception):
    """The root of the tree of errors; ``str(error)`` is one sentence that a user can act on."""

    retryable: bool = False
    """True if the same request may succeed later without a change by the caller.

    `retryable` is a fact of the class, with one exception: the errors of a writer that has ended
    are never retryable.
    """

    status: ClassVar[Status] = Status.IO_ERROR
    """The status that a bookie answers when this error ends a request."""


class RequestError(BookieError):
    """The caller asked for something wrong."""

    status = Status.BAD_REQUEST


class BadRequestError(RequestError):
    """An argument is out of range or the parts of a request contradict each other."""


class UnauthorizedError(RequestError):
    """The ledger has another password, or the metadata store refuses the user or a request.

    The metadata store refuses a request for which the user has no right.
    """

    status = Status.UNAUTHORIZED


class WeakDigestError(RequestError):
    """The ledger's digest is weaker than the client's setting ``client.digest_least`` permits."""


class NotPermittedError(RequestError):
    """The caller's roles do not permit the request, or the caller's token is not valid."""

    status = Status.NOT_PERMITTED


class WrongClusterError(RequestError):
    """The bookie belongs to another cluster than the caller."""

    status = Status.WRONG_CLUSTER


class ConfigurationError(RequestError):
    """A setting is unknown, missing or out of range."""


class ClientClosedError(RequestError):
    """The client or the handle was closed before the call."""


class LedgerError(BookieError):
    """The state of the ledger forbids the request."""


class NoSuchLedgerError(LedgerError):
    """The ledger does not exist."""

    status = Status.NO_SUCH_LEDGER


class NoSuchEntryError(LedgerError):
    """The entry does not exist: every replica that may hold it said so."""

    status = Status.NO_SUCH_ENTRY


class LedgerExistsError(LedgerError):
    """A ledger with this id exists already."""

    status = Status.CONFLICT


class LedgerClosedError(LedgerError):
    """The ledger is closed; nothing can be appended."""

    status = Status.FENCED


class LedgerFencedError(LedgerError):
    """Another client took the ledger over.

    Pending appends have an unknown outcome: recovery may have kept them or not.
    """

    status = Status.FENCED


class ForeignEnsembleError(LedgerFencedError):
    """Another client changed the last ensemble of an open ledger."""


class ConflictError(LedgerError):
    """The bookie stores other bytes under this entry id.

    Either two writers wrote the entry without a fence between them, or the bytes were corrupted.
    """

    status = Status.CONFLICT


class LogError(BookieError):
    """The state of the log forbids the request."""


class NoSuchLogError(LogError):
    """The log does not exist, or is being deleted."""


class LogExistsError(LogError):
    """A log of this name exists already."""


class LogTakenOverError(LogError):
    """Another process owns the partition now.

    Appends that were pending have an unknown outcome: the new owner's recovery decided which of
    them the log keeps.
    """

    def __init__(self, message: str, *, owner: str = "", since_ms: int = 0) -> None:
        super().__init__(message)
        self.owner = owner
        """The process that took the partition over."""
        self.since_ms = since_ms
        """The time of the take-over in ms since 1970, by the new owner's clock."""


class LogTruncatedError(LogError):
    """The entries at the requested position were truncated."""

    def __init__(self, message: str, *, earliest_offset: int = 0) -> None:
        super().__init__(message)
        self.earliest_offset = earliest_offset
        """The first offset that can be read."""


class LogFullError(LogError):
    """The log has reached the quota of its policy; nothing was appended."""


class LogClosedError(LogError):
    """The handle of the log was closed, or has failed; open the log again."""


class DuplicateRecordError(LogError):
    """A sequence number is below the producer's last number, and is not remembered.

    Nothing was appended.
    """


class NoSuchCursorError(LogError):
    """The cursor does not exist."""


class CursorLostError(LogError):
    """The cursor belongs to another consumer now, or was reset; nothing was committed."""


class UnavailableError(BookieError):
    """Nothing is wrong with the request; it may succeed later."""

    retryable = True


class NotEnoughBookiesError(UnavailableError):
    """Fewer bookies are available, or answered in time, than the operation needs."""


class BookieUnreachableError(UnavailableError):
    """A bookie did not answer, or an I/O error on the bookie ended the request."""


class TlsError(BookieUnreachableError):
    """TLS with the bookie failed, or the client's settings forbid every address of the bookie.

    The error is retryable, because certificates and registrations may change while a cluster
    introduces TLS.
    """


class ReadOnlyError(UnavailableError):
    """The bookie takes no new entries."""

    status = Status.READ_ONLY


class TooManyRequestsError(UnavailableError):
    """The bookie has too many requests in flight, or the caller has used up its permitted rate."""

    status = Status.TOO_MANY_REQUESTS

    retry_after_seconds: float = 0.0
    """The number of seconds after which the bookie wants to be asked again; 0 if it named no
    time."""

    def __init__(self, *args: object, retry_after_seconds: float = 0.0) -> None:
        super().__init__(*args)
        self.retry_after_seconds = retry_after_seconds


class ShuttingDownError(UnavailableError):
    """The bookie is stopping."""

    status = Status.SHUTTING_DOWN


class UnknownLedgerStateError(UnavailableError):
    """The bookie may have lost data of this ledger, so it gives no negative answer about it."""

    status = Status.UNKNOWN_LEDGER_STATE


class WrongBookieError(UnavailableError):
    """Another bookie than the expected bookie answers at the address."""


class WrongIncarnationError(UnavailableError):
    """The bookie has another incarnation, so it may have lost entries that it acknowledged."""

    status = Status.WRONG_INCARNATION


class LedgerRecoveryError(UnavailableError):
    """Too few bookies answered to decide where the ledger ends; the ledger stays IN_RECOVERY."""


class DiskFullError(UnavailableError):
    """A device is full; nothing was lost, and the bookie turns read-only."""

    status = Status.READ_ONLY


class CannotStartError(UnavailableError):
    """A port is taken or a directory cannot be used now: a later start may succeed."""


class ClockError(UnavailableError):
    """This machine's clock contradicts all bookies' clocks, so it must not set records' times."""


class OperationTimeoutError(UnavailableError):
    """The operation did not end within its timeout; its outcome is unknown."""


class CorruptionError(BookieError):
    """Stored or received bytes are wrong."""


class ChecksumError(CorruptionError):
    """A checksum or digest does not match its bytes."""

    status = Status.BAD_CHECKSUM


class FormatError(CorruptionError):
    """Bytes are not in the format of this version of bookie."""


class NewerFormatError(FormatError):
    """A newer version of bookie wrote the bytes; they are not damaged, this version is too old."""


class StorageFailedError(BookieError):
    """A disk or the index failed: the process must end with exit code 74."""


class IdentityError(BookieError):
    """A directory, cookie or instance id belongs to another bookie or cluster."""


class CookieError(IdentityError):
    """A cookie is missing, or two cookies of this bookie differ."""


class DirectoryLockedError(IdentityError):
    """Another process uses the directory."""


class MetadataError(BookieError):
    """The metadata store refused a request, or it failed."""


class BadVersionError(MetadataError):
    """A compare-and-set failed: the key has another version than expected."""


class KeyExistsError(BadVersionError):
    """The key that the request wants to create exists already."""


class LayoutExistsError(KeyExistsError):
    """The metadata store holds a cluster already."""


class NoSuchKeyError(MetadataError):
    """The key does not exist."""


class KeyHasChildrenError(MetadataError):
    """The key has children and cannot be deleted."""


class InvalidKeyError(MetadataError):
    """The key or value breaks the limits that all stores share."""


class StoreWentBackError(MetadataError):
    """The metadata store has an older state than a bookie knows, so it could reassign used ids."""


class ClusterInUseError(MetadataError):
    """A cluster or namespace cannot be created or removed: it holds bookies or unexpected keys."""


class UnsupportedError(MetadataError):
    """This kind of metadata store does not support the request; another kind does."""


class SessionLostError(MetadataError):
    """The session ended, so the store deletes every ephemeral record of the session."""

    retryable = True


class SessionGivenUpError(MetadataError):
    """The session is lost, and a setting forbids to wait for a new session.

    The process must exit with code 3.
    """


class MetadataUnavailableError(MetadataError):
    """The metadata store did not answer."""

    retryable = True


class LockBusyError(MetadataError):
    """Another process holds the lock, or waits for it."""

    retryable = True


class LockLostError(MetadataError):
    """The lock is no longer held: it was released, or another process took it."""


class MetadataClosedError(MetadataError):
    """The store object was closed before the call."""


_BY_STATUS: dict[Status, type[BookieError]] = {
    Status.NO_SUCH_LEDGER: NoSuchLedgerError,
    Status.NO_SUCH_ENTRY: NoSuchEntryError,
    Status.FENCED: LedgerFencedError,
    Status.CONFLICT: ConflictError,
    Status.UNAUTHORIZED: UnauthorizedError,
    Status.READ_ONLY: ReadOnlyError,
    Status.TOO_MANY_REQUESTS: TooManyRequestsError,
    Status.IO_ERROR: BookieUnreachableError,
    Status.UNKNOWN_LEDGER_STATE: UnknownLedgerStateError,
    Status.BAD_REQUEST: BadRequestError,
    Status.BAD_CHECKSUM: ChecksumError,
    Status.WRONG_CLUSTER: WrongClusterError,
    Status.SHUTTING_DOWN: ShuttingDownError,
    Status.WRONG_INCARNATION: WrongIncarnationError,
    Status.NOT_PERMITTED: NotPermittedError,
}


def error_for_status(status: Status, message: str, retry_after_seconds: float = 0) -> BookieError:
    """Return the error that a client raises for a bookie's answer other than OK.

    `retry_after_seconds` is the pause that an answer of TOO_MANY_REQUESTS asked for.
    """
    if status is Status.TOO_MANY_REQUESTS:
        return TooManyRequestsError(message, retry_after_seconds=retry_after_seconds)
    return _BY_STATUS[status](message)
