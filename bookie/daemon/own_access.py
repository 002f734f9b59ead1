"""The access control of this bookie: a gatekeeper with the grants from the metadata store."""

from __future__ import annotations

from collections.abc import Collection

from bookie.cluster.instance import read_instance_id
from bookie.cluster.role_grants import RoleGrants
from bookie.config import Settings
from bookie.env import SystemClock
from bookie.errors import FormatError, NoSuchLedgerError
from bookie.ids import LOG_TAG
from bookie.ledger.catalog.ledgers import LedgerManager
from bookie.metadata.store import MetadataStore
from bookie.security.audit import AuditLog
from bookie.security.gatekeeper import Gatekeeper, PrincipalRules
from bookie.security.grants import Grant, Grants
from bookie.security.permissions import LedgerLogs
from bookie.security.tokens import TokenKeys, TokenVerifier
from bookie.telemetry import event_log

GRANTS_TOLD_MAX = 20
"""The largest number of grants that one log line names."""

_log = event_log(__name__)


class OwnAccess:
    """Creates this bookie's gatekeeper, and keeps its grants up to date.

    A bookie requires roles if it speaks TLS and ``security.require_roles`` is set. A bookie that
    requires roles refuses every caller until the grants are loaded. If the bookie requires no
    roles, its gatekeeper refuses no caller, and the audit log contains only fences and changes.

    Raises:
        ConfigurationError: ``security.principal_rules`` are wrong.
    """

    def __init__(self, settings: Settings) -> None:
        clock, security = SystemClock(), settings.security
        self.gatekeeper = Gatekeeper(
            PrincipalRules(security.principal_rules.split()),
            LedgerLogs(self._find_log),
            clock,
            AuditLog(clock),
            is_required=security.serves_tls and security.require_roles,
        )
        self._grants: frozenset[Grant] = frozenset()
        self._token_keys_file = security.token_keys_file
        self._ledgers: LedgerManager | None = None

    async def load(self, store: MetadataStore) -> str:
        """Load the token keys and the grants, and return the cluster's id.

        Call this before the bookie serves its first request.

        Raises:
            MetadataError: the store does not answer, or holds no cluster.
            FormatError: the cluster's id or the grants are damaged.
            ConfigurationError: the file of token keys cannot be used.
        """
        instance_id = await read_instance_id(store)
        self._ledgers = LedgerManager(store)
        if self._token_keys_file:
            keys = TokenKeys(self._token_keys_file)
            self.gatekeeper.take_tokens(TokenVerifier(keys, instance_id))
        if self.gatekeeper.is_required:
            self._take(await RoleGrants(store).read())
        return instance_id

    async def follow(self, store: MetadataStore, instance_id: str) -> None:
        """Apply each change of the grants; return at once if the bookie requires no roles."""
        if self.gatekeeper.is_required:
            await RoleGrants(store).follow(self._take, instance_id=instance_id)

    def _take(self, grants: Grants) -> None:
        self.gatekeeper.take(grants)
        now = frozenset(grants.all)
        _log.info(
            "roles_taken",
            grants=len(now),
            given=_told(now - self._grants),
            revoked=_told(self._grants - now),
        )
        self._grants = now
        if not grants.all:
            _log.warning(
                "nobody_has_a_role",
                meaning="every request is refused: give roles by bookie security role grant, "
                "or set security.require_roles = false",
            )

    async def _find_log(self, ledger_id: int) -> str | None:
        """Return the name of the log that a ledger belongs to.

        If the ledger belongs to no log, return an empty text. If the ledger does not exist, return
        None.
        """
        assert self._ledgers is not None
        try:
            try:
                found = await self._ledgers.read(ledger_id)
            except NoSuchLedgerError:
                # The metadata server that answered may not have received the new ledger yet.
                found = await self._ledgers.read_latest(ledger_id)
        except NoSuchLedgerError:
            return None
        try:
            tag = found.value.custom_metadata.get(LOG_TAG, b"").decode()
        except UnicodeDecodeError as error:
            raise FormatError(f"ledger {ledger_id} names its log by no text") from error
        return tag.partition(" ")[0]


def _told(grants: Collection[Grant]) -> list[str]:
    """Describe grants for a log line; after a revocation, only the log still shows the grants."""
    told = sorted(f"{one.principal} is {one.role.value} for {one.scope}" for one in grants)
    more = len(told) - GRANTS_TOLD_MAX
    return told if more <= 0 else [*told[:GRANTS_TOLD_MAX], f"and {more} more"]
