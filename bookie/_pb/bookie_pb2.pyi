from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATUS_OK: _ClassVar[Status]
    STATUS_NO_SUCH_LEDGER: _ClassVar[Status]
    STATUS_NO_SUCH_ENTRY: _ClassVar[Status]
    STATUS_FENCED: _ClassVar[Status]
    STATUS_CONFLICT: _ClassVar[Status]
    STATUS_UNAUTHORIZED: _ClassVar[Status]
    STATUS_READ_ONLY: _ClassVar[Status]
    STATUS_TOO_MANY_REQUESTS: _ClassVar[Status]
    STATUS_IO_ERROR: _ClassVar[Status]
    STATUS_UNKNOWN_LEDGER_STATE: _ClassVar[Status]
    STATUS_BAD_REQUEST: _ClassVar[Status]
    STATUS_BAD_CHECKSUM: _ClassVar[Status]
    STATUS_WRONG_CLUSTER: _ClassVar[Status]
    STATUS_SHUTTING_DOWN: _ClassVar[Status]
    STATUS_WRONG_INCARNATION: _ClassVar[Status]
    STATUS_NOT_PERMITTED: _ClassVar[Status]
STATUS_OK: Status
STATUS_NO_SUCH_LEDGER: Status
STATUS_NO_SUCH_ENTRY: Status
STATUS_FENCED: Status
STATUS_CONFLICT: Status
STATUS_UNAUTHORIZED: Status
STATUS_READ_ONLY: Status
STATUS_TOO_MANY_REQUESTS: Status
STATUS_IO_ERROR: Status
STATUS_UNKNOWN_LEDGER_STATE: Status
STATUS_BAD_REQUEST: Status
STATUS_BAD_CHECKSUM: Status
STATUS_WRONG_CLUSTER: Status
STATUS_SHUTTING_DOWN: Status
STATUS_WRONG_INCARNATION: Status
STATUS_NOT_PERMITTED: Status

class AddRequest(_message.Message):
    __slots__ = ("request_id", "ledger_id", "master_key", "first_entry_id", "entry_id_steps", "entry_sizes", "payload_crc32c", "recovery", "deferred_sync", "lac_packet", "together", "payload")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    MASTER_KEY_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_STEPS_FIELD_NUMBER: _ClassVar[int]
    ENTRY_SIZES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_CRC32C_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_FIELD_NUMBER: _ClassVar[int]
    DEFERRED_SYNC_FIELD_NUMBER: _ClassVar[int]
    LAC_PACKET_FIELD_NUMBER: _ClassVar[int]
    TOGETHER_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    ledger_id: int
    master_key: bytes
    first_entry_id: int
    entry_id_steps: _containers.RepeatedScalarFieldContainer[int]
    entry_sizes: _containers.RepeatedScalarFieldContainer[int]
    payload_crc32c: int
    recovery: bool
    deferred_sync: bool
    lac_packet: bytes
    together: _containers.RepeatedScalarFieldContainer[bytes]
    payload: bytes
    def __init__(self, request_id: _Optional[int] = ..., ledger_id: _Optional[int] = ..., master_key: _Optional[bytes] = ..., first_entry_id: _Optional[int] = ..., entry_id_steps: _Optional[_Iterable[int]] = ..., entry_sizes: _Optional[_Iterable[int]] = ..., payload_crc32c: _Optional[int] = ..., recovery: _Optional[bool] = ..., deferred_sync: _Optional[bool] = ..., lac_packet: _Optional[bytes] = ..., together: _Optional[_Iterable[bytes]] = ..., payload: _Optional[bytes] = ...) -> None: ...

class AddResponse(_message.Message):
    __slots__ = ("request_id", "status", "message", "retry_after_ms", "together")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    TOGETHER_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    status: Status
    message: str
    retry_after_ms: int
    together: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, request_id: _Optional[int] = ..., status: _Optional[_Union[Status, str]] = ..., message: _Optional[str] = ..., retry_after_ms: _Optional[int] = ..., together: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("ledger_id", "first_entry_id", "last_entry_id", "max_entries", "max_bytes", "fence", "master_key", "stripe_modulus", "stripe_first_residue", "stripe_count", "request_id", "timeout_milliseconds")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    MASTER_KEY_FIELD_NUMBER: _ClassVar[int]
    STRIPE_MODULUS_FIELD_NUMBER: _ClassVar[int]
    STRIPE_FIRST_RESIDUE_FIELD_NUMBER: _ClassVar[int]
    STRIPE_COUNT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    max_entries: int
    max_bytes: int
    fence: bool
    master_key: bytes
    stripe_modulus: int
    stripe_first_residue: int
    stripe_count: int
    request_id: int
    timeout_milliseconds: int
    def __init__(self, ledger_id: _Optional[int] = ..., first_entry_id: _Optional[int] = ..., last_entry_id: _Optional[int] = ..., max_entries: _Optional[int] = ..., max_bytes: _Optional[int] = ..., fence: _Optional[bool] = ..., master_key: _Optional[bytes] = ..., stripe_modulus: _Optional[int] = ..., stripe_first_residue: _Optional[int] = ..., stripe_count: _Optional[int] = ..., request_id: _Optional[int] = ..., timeout_milliseconds: _Optional[int] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("status", "message", "first_entry_id", "entry_id_steps", "entry_sizes", "next_entry_id", "stopped_by", "max_lac", "request_id", "retry_after_ms", "payload")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRY_ID_STEPS_FIELD_NUMBER: _ClassVar[int]
    ENTRY_SIZES_FIELD_NUMBER: _ClassVar[int]
    NEXT_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    STOPPED_BY_FIELD_NUMBER: _ClassVar[int]
    MAX_LAC_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    status: Status
    message: str
    first_entry_id: int
    entry_id_steps: _containers.RepeatedScalarFieldContainer[int]
    entry_sizes: _containers.RepeatedScalarFieldContainer[int]
    next_entry_id: int
    stopped_by: Status
    max_lac: int
    request_id: int
    retry_after_ms: int
    payload: bytes
    def __init__(self, status: _Optional[_Union[Status, str]] = ..., message: _Optional[str] = ..., first_entry_id: _Optional[int] = ..., entry_id_steps: _Optional[_Iterable[int]] = ..., entry_sizes: _Optional[_Iterable[int]] = ..., next_entry_id: _Optional[int] = ..., stopped_by: _Optional[_Union[Status, str]] = ..., max_lac: _Optional[int] = ..., request_id: _Optional[int] = ..., retry_after_ms: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class ReadLacRequest(_message.Message):
    __slots__ = ("ledger_id", "master_key")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    MASTER_KEY_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    master_key: bytes
    def __init__(self, ledger_id: _Optional[int] = ..., master_key: _Optional[bytes] = ...) -> None: ...

class FenceRequest(_message.Message):
    __slots__ = ("ledger_id", "master_key")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    MASTER_KEY_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    master_key: bytes
    def __init__(self, ledger_id: _Optional[int] = ..., master_key: _Optional[bytes] = ...) -> None: ...

class LacResponse(_message.Message):
    __slots__ = ("status", "message", "last_entry", "lac_packet", "max_lac", "fenced", "retry_after_ms")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_FIELD_NUMBER: _ClassVar[int]
    LAC_PACKET_FIELD_NUMBER: _ClassVar[int]
    MAX_LAC_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    message: str
    last_entry: bytes
    lac_packet: bytes
    max_lac: int
    fenced: bool
    retry_after_ms: int
    def __init__(self, status: _Optional[_Union[Status, str]] = ..., message: _Optional[str] = ..., last_entry: _Optional[bytes] = ..., lac_packet: _Optional[bytes] = ..., max_lac: _Optional[int] = ..., fenced: _Optional[bool] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class WatchLacRequest(_message.Message):
    __slots__ = ("subscribe", "unsubscribe")
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    UNSUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    subscribe: _containers.RepeatedScalarFieldContainer[int]
    unsubscribe: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, subscribe: _Optional[_Iterable[int]] = ..., unsubscribe: _Optional[_Iterable[int]] = ...) -> None: ...

class LacUpdate(_message.Message):
    __slots__ = ("ledger_id", "max_lac", "fenced", "status", "lac_packet", "key_tag")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_LAC_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LAC_PACKET_FIELD_NUMBER: _ClassVar[int]
    KEY_TAG_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    max_lac: int
    fenced: bool
    status: Status
    lac_packet: bytes
    key_tag: bytes
    def __init__(self, ledger_id: _Optional[int] = ..., max_lac: _Optional[int] = ..., fenced: _Optional[bool] = ..., status: _Optional[_Union[Status, str]] = ..., lac_packet: _Optional[bytes] = ..., key_tag: _Optional[bytes] = ...) -> None: ...

class ForceRequest(_message.Message):
    __slots__ = ("ledger_id",)
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    def __init__(self, ledger_id: _Optional[int] = ...) -> None: ...

class ForceResponse(_message.Message):
    __slots__ = ("status", "message", "retry_after_ms")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    message: str
    retry_after_ms: int
    def __init__(self, status: _Optional[_Union[Status, str]] = ..., message: _Optional[str] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class WriteLacRequest(_message.Message):
    __slots__ = ("ledger_id", "master_key", "lac_packet")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    MASTER_KEY_FIELD_NUMBER: _ClassVar[int]
    LAC_PACKET_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    master_key: bytes
    lac_packet: bytes
    def __init__(self, ledger_id: _Optional[int] = ..., master_key: _Optional[bytes] = ..., lac_packet: _Optional[bytes] = ...) -> None: ...

class WriteLacResponse(_message.Message):
    __slots__ = ("status", "message", "retry_after_ms")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    message: str
    retry_after_ms: int
    def __init__(self, status: _Optional[_Union[Status, str]] = ..., message: _Optional[str] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class ListEntriesRequest(_message.Message):
    __slots__ = ("ledger_id", "first_entry_id", "last_entry_id", "master_key")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    MASTER_KEY_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    master_key: bytes
    def __init__(self, ledger_id: _Optional[int] = ..., first_entry_id: _Optional[int] = ..., last_entry_id: _Optional[int] = ..., master_key: _Optional[bytes] = ...) -> None: ...

class ListEntriesResponse(_message.Message):
    __slots__ = ("status", "message", "range_first", "range_last", "retry_after_ms")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIRST_FIELD_NUMBER: _ClassVar[int]
    RANGE_LAST_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    message: str
    range_first: _containers.RepeatedScalarFieldContainer[int]
    range_last: _containers.RepeatedScalarFieldContainer[int]
    retry_after_ms: int
    def __init__(self, status: _Optional[_Union[Status, str]] = ..., message: _Optional[str] = ..., range_first: _Optional[_Iterable[int]] = ..., range_last: _Optional[_Iterable[int]] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class ListLedgersRequest(_message.Message):
    __slots__ = ("after_ledger_id",)
    AFTER_LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    after_ledger_id: int
    def __init__(self, after_ledger_id: _Optional[int] = ...) -> None: ...

class ListLedgersResponse(_message.Message):
    __slots__ = ("status", "message", "ledgers", "retry_after_ms")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    message: str
    ledgers: _containers.RepeatedCompositeFieldContainer[LedgerRow]
    retry_after_ms: int
    def __init__(self, status: _Optional[_Union[Status, str]] = ..., message: _Optional[str] = ..., ledgers: _Optional[_Iterable[_Union[LedgerRow, _Mapping]]] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class LedgerRow(_message.Message):
    __slots__ = ("ledger_id", "fenced", "limbo", "first_entry_id", "last_entry_id", "entries", "bytes", "max_lac", "key_tag")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    LIMBO_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_LAC_FIELD_NUMBER: _ClassVar[int]
    KEY_TAG_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    fenced: bool
    limbo: bool
    first_entry_id: int
    last_entry_id: int
    entries: int
    bytes: int
    max_lac: int
    key_tag: bytes
    def __init__(self, ledger_id: _Optional[int] = ..., fenced: _Optional[bool] = ..., limbo: _Optional[bool] = ..., first_entry_id: _Optional[int] = ..., last_entry_id: _Optional[int] = ..., entries: _Optional[int] = ..., bytes: _Optional[int] = ..., max_lac: _Optional[int] = ..., key_tag: _Optional[bytes] = ...) -> None: ...

class GetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetInfoResponse(_message.Message):
    __slots__ = ("status", "message", "bookie_id", "instance_id", "version", "read_only", "total_bytes", "free_bytes", "ledgers", "incarnation", "now_ms")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    BOOKIE_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    status: Status
    message: str
    bookie_id: str
    instance_id: str
    version: str
    read_only: bool
    total_bytes: int
    free_bytes: int
    ledgers: int
    incarnation: str
    now_ms: int
    def __init__(self, status: _Optional[_Union[Status, str]] = ..., message: _Optional[str] = ..., bookie_id: _Optional[str] = ..., instance_id: _Optional[str] = ..., version: _Optional[str] = ..., read_only: _Optional[bool] = ..., total_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ..., ledgers: _Optional[int] = ..., incarnation: _Optional[str] = ..., now_ms: _Optional[int] = ...) -> None: ...
