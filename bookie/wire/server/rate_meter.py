"""Charges the requests of one caller to the caller's rate and to the rates of namespaces."""

from __future__ import annotations

from bookie.security.gatekeeper import Caller, Gatekeeper
from bookie.security.grants import ANONYMOUS
from bookie.security.rates import Rates, Traffic, account_name
from bookie.security.rights import Right
from bookie.wire.commands import AddCommand, ReadCommand, ReadReply
from bookie.wire.interfaces import CallerContext
from bookie.wire.server.callers import caller_of


class RateMeter:
    """Charges the requests of one stream or one call to the rates.

    Recovery adds and fencing reads are admitted without a charge. Callers with the right LIST are
    exempt, too: only repairers and admins have this right. If roles are not required, every caller
    has the right LIST. So in this case, the right exempts nobody.

    Args:
        rates: admits or refuses requests, and charges them.
        gatekeeper: identifies the caller; None if callers are known only by address.
        context: the call, which was already accepted.
    """

    def __init__(self, rates: Rates, gatekeeper: Gatekeeper | None, context: CallerContext) -> None:
        self._rates = rates
        self._judged: Caller | None = None
        """The caller, if its roles may exempt it from the rates; otherwise None."""
        principal = ANONYMOUS
        if gatekeeper is not None:
            caller = caller_of(gatekeeper, context)
            principal = caller.principal
            self._judged = caller if gatekeeper.is_required else None
        self._identity = account_name(principal, context.peer())

    def add(self, command: AddCommand, size: int) -> None:
        """Charge an add whose request has `size` bytes, or refuse it.

        Raises:
            TooManyRequestsError: a rate is used up.
        """
        if self._rates.is_on and not (command.recovery or self._is_exempt(command.ledger_id)):
            self._rates.admit(self._identity, command.ledger_id, Traffic.ADD, size)

    def read(self, command: ReadCommand) -> None:
        """Charge a read as one request, or refuse it; `has_read` charges its bytes later.

        Raises:
            TooManyRequestsError: a rate is used up.
        """
        if not command.fence:
            self.ask(command.ledger_id)

    def has_read(self, reply: ReadReply) -> None:
        """Charge the bytes of the entries that a read returned; never refuse."""
        batch = reply.batch
        if batch is not None and self._rates.is_on and not self._is_exempt(batch.ledger_id):
            size = batch.payload_bytes
            self._rates.charge(self._identity, batch.ledger_id, Traffic.READ, size)

    def ask(self, ledger_id: int) -> None:
        """Charge one request without its bytes, or refuse it.

        Raises:
            TooManyRequestsError: a rate is used up.
        """
        if self._rates.is_on and not self._is_exempt(ledger_id):
            self._rates.admit(self._identity, ledger_id, Traffic.READ)

    def _is_exempt(self, ledger_id: int) -> bool:
        return self._judged is not None and bool(self._judged.decide(Right.LIST, ledger_id))
