"""Identify the caller of a gRPC call by certificate, token and address, for the gatekeeper."""

from __future__ import annotations

from typing import Final

from bookie.security.gatekeeper import Caller, Gatekeeper
from bookie.security.identity import identity_of_call
from bookie.wire.call_metadata import named
from bookie.wire.interfaces import CallerContext

AUTHORIZATION: Final = "authorization"
"""The key of call metadata that holds a token."""


def caller_of(gatekeeper: Gatekeeper, context: CallerContext) -> Caller:
    """Return the caller of a call.

    Raises:
        NotPermittedError: the token is not valid.
    """
    identity = identity_of_call(context.auth_context())
    token = named(context.invocation_metadata(), AUTHORIZATION)
    return gatekeeper.caller(identity, token, context.peer())
