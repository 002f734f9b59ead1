"""The grants of roles, kept in the metadata store: one record per cluster.

Each change replaces the whole record by compare-and-set, so concurrent changes cannot overwrite
each other. If a bookie cannot read the record, the bookie continues with the grants that it read
last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bookie.cluster import keys
from bookie.cluster.instance import require_instance
from bookie.errors import (
    BadRequestError,
    BadVersionError,
    FormatError,
    KeyExistsError,
    NoSuchKeyError,
)
from bookie.ids import MAX_ID
from bookie.metadata import json_record
from bookie.metadata.mirror import follow
from bookie.metadata.model import NOT_EXISTS
from bookie.metadata.store import MetadataStore
from bookie.security.grants import GRANTS_MAX, Grant, Grants, GrantScope
from bookie.security.rights import Role

RECORD_BYTES_MAX: Final = 256 * 1024
"""The maximum size of the record; the metadata stores accept values up to 512 KiB."""

_FORMAT: Final = "bookie-roles"
_VERSION: Final = 1


def encode_grants(grants: Grants) -> bytes:
    """Encode all grants as one record; the order of the grants does not change the result."""
    rows: list[dict[str, object]] = []
    for one in sorted(grants.all, key=lambda x: (x.principal, x.role.value, str(x.scope))):
        row: dict[str, object] = {"principal": one.principal, "role": one.role.value}
        if one.scope.log:
            row["log"] = one.scope.log
        if (one.scope.first_ledger_id, one.scope.last_ledger_id) != (0, MAX_ID):
            row["first_ledger"] = one.scope.first_ledger_id
            row["last_ledger"] = one.scope.last_ledger_id
        rows.append(row)
    return json_record.encode(_FORMAT, _VERSION, {"grants": rows})


def decode_grants(value: bytes) -> Grants:
    """Decode the grants in the record's value.

    Raises:
        FormatError: the record is damaged, or a newer version wrote it.
    """
    grants = []
    for row in json_record.decode(_FORMAT, _VERSION, value).objects("grants"):
        first, last = (
            row.optional_integer(name, minimum=0) for name in ("first_ledger", "last_ledger")
        )
        try:
            scope = GrantScope(
                0 if first is None else first,
                MAX_ID if last is None else last,
                row.text("log") if "log" in row.values else "",
            )
            grants.append(Grant(row.text("principal"), Role(row.text("role")), scope))
        except (ValueError, BadRequestError) as error:
            raise FormatError(f"{_FORMAT}: {error}") from error
    return Grants(grants)


class RoleGrants:
    """The grants of one cluster in its metadata store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read(self) -> Grants:
        """Return all grants; the result is empty without a record.

        Raises:
            FormatError: the record is damaged, or a newer version wrote it.
        """
        return (await self._read())[0]

    async def grant(self, grant: Grant) -> bool:
        """Add a grant; return False if the record already has this grant.

        Raises:
            BadRequestError: the record is too large for another grant.
            FormatError: the record is damaged, or a newer version wrote it.
        """
        while True:
            grants, version = await self._read()
            if grant in grants.all:
                return False
            more = Grants((*grants.all, grant))
            if len(more.all) > GRANTS_MAX or len(encode_grants(more)) > RECORD_BYTES_MAX:
                raise BadRequestError(
                    f"there are {len(grants.all)} grants, and there is no room for more; a name "
                    "may end in *, to mean several"
                )
            if await self._write(more, version):
                return True

    async def revoke(self, principal: str, role: Role | None, scope: GrantScope | None) -> int:
        """Remove all grants that match the arguments; return the number of removed grants.

        Args:
            principal: the principal, spelled exactly as in the grants.
            role: the role of the grants; None means every role.
            scope: the scope of the grants; None means every scope.

        Raises:
            FormatError: the record is damaged, or a newer version wrote it.
        """
        while True:
            grants, version = await self._read()
            left = [
                one
                for one in grants.all
                if one.principal != principal
                or (role is not None and one.role is not role)
                or (scope is not None and one.scope != scope)
            ]
            taken = len(grants.all) - len(left)
            if not taken or await self._write(Grants(left), version):
                return taken

    async def follow(self, take: Callable[[Grants], None], *, instance_id: str) -> None:
        """Call `take` with all grants, now and after each change; see `mirror.follow`.

        `take` is not called while the record is damaged or the store holds another cluster.
        """

        async def read() -> Grants:
            await require_instance(self._store, instance_id)
            return await self.read()

        await follow(self._store, keys.ROLES, read, take)

    async def _read(self) -> tuple[Grants, int]:
        record = await self._store.get(keys.ROLES)
        if record is None:
            return Grants(), NOT_EXISTS
        try:
            return decode_grants(record.value), record.version
        except FormatError as error:
            raise type(error)(f"the metadata key {keys.ROLES}: {error}") from error

    async def _write(self, grants: Grants, version: int) -> bool:
        try:
            await self._store.put(keys.ROLES, encode_grants(grants), version=version)
        except (BadVersionError, NoSuchKeyError, KeyExistsError):
            return False
        return True
