"""Charges the requests of one caller to his rate and to those of namespaces."""

from __future__ import annotations

from bookie.security.gatekeeper import Caller, Gatekeeper
from bookie.security.grants import ANONYMOUS
from bookie.security.rates import Rates, Traffic, account_name
from bookie.security.rights import Right
from bookie.wire.commands import AddCommand, ReadCommand, ReadReply
from bookie.wire.grpc.server.callers import caller_of
from bookie.wire.interfaces import IdentifiedCall


class RateMeter:
    """The meter of one stream or call.

    Requests of a recovery pass, and so do those of callers who may repair: they have the right
    LIST, which repairers and admins alone have. Where no roles are asked for, everybody has it, so
    it exempts nobody there.

    Args:
        rates: decides, and charges.
        gatekeeper: tells who calls; None if all callers are only addresses.
        context: the call, whose caller has been let in.
    """

    def __init__(
        self, rates: Rates, gatekeeper: Gatekeeper | None, context: IdentifiedCall
    ) -> None:
        self._rates = rates
        self._judged: Caller | None = None
        """The caller, if his roles may exempt him."""
        principal = ANONYMOUS
        if gatekeeper is not None:
            caller = caller_of(gatekeeper, context)
            principal = caller.principal
            self._judged = caller if gatekeeper.is_required else None
        self._identity = account_name(principal, context.peer())

    def add(self, command: AddCommand, size: int) -> None:
        """Admit an add whose request has `size` bytes.

        Raises:
            TooManyRequestsError: a rate is used up.
        """
        if self._rates.is_on and not (command.recovery or self._is_exempt(command.ledger_id)):
            self._rates.admit(self._identity, command.ledger_id, Traffic.ADD, size)

    def read(self, command: ReadCommand) -> None:
        """Admit a read; its bytes are charged by `has_read`.

        Raises:
            TooManyRequestsError: a rate is used up.
        """
        if not command.fence:
            self.ask(command.ledger_id)

    def has_read(self, reply: ReadReply) -> None:
        """Charge the bytes of a read that was admitted."""
        batch = reply.batch
        if batch is not None and self._rates.is_on and not self._is_exempt(batch.ledger_id):
            size = batch.payload_bytes
            self._rates.charge(self._identity, batch.ledger_id, Traffic.READ, size)

    def ask(self, ledger_id: int) -> None:
        """Admit a request whose answer is small.

        Raises:
            TooManyRequestsError: a rate is used up.
        """
        if self._rates.is_on and not self._is_exempt(ledger_id):
            self._rates.admit(self._identity, ledger_id, Traffic.READ)

    def _is_exempt(self, ledger_id: int) -> bool:
        return self._judged is not None and bool(self._judged.decide(Right.LIST, ledger_id))
