"""How long a bookie goes on without its session with the metadata store.

While the store is away the bookie serves: adds and reads of open ledgers need no metadata. When
`[session]` says so, it ends with one sentence and exit status 3. A supervisor or an operator then
starts it again where the store can be reached.

Source: PIP-57.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NoReturn

from bookie.config.sections import SessionSettings
from bookie.env import boot_time_seconds
from bookie.errors import SessionGivenUpError
from bookie.metadata.store import MetadataStore
from bookie.protocol.session import SessionEvent, SessionPolicy
from bookie.telemetry import event_log

_log = event_log(__name__)


async def obey_session_policy(
    store: MetadataStore,
    settings: SessionSettings,
    *,
    clock: Callable[[], float] = boot_time_seconds,
) -> NoReturn:
    """Follow the store's session, and log it, until the policy says that this is the end.

    Raises:
        SessionGivenUpError: the process must end; the sentence says why.
        MetadataClosedError: the store was closed before.
    """
    policy = SessionPolicy(
        store.session_timeout_seconds,
        give_up_after_timeouts=settings.give_up_after_timeouts,
        shutdown_when_lost=settings.policy == "shutdown",
    )
    async with store.session_events() as events:
        while True:
            event = await _next_before(events, policy.deadline, clock)
            if event is not None:
                _log.warning("session_changed", session=event.value)
            verdict = policy.step(event, clock())
            if verdict:
                raise SessionGivenUpError(verdict)


async def _next_before(
    events: AsyncIterator[SessionEvent], deadline: float | None, clock: Callable[[], float]
) -> SessionEvent | None:
    """The next event, or None when the deadline came first."""
    try:
        async with asyncio.timeout(None if deadline is None else max(0.0, deadline - clock())):
            return await anext(events)
    except TimeoutError:
        return None
