"""A bookie that loses its session with the metadata store serves on, and reports the loss.

While the metadata store does not answer, adds and reads of open ledgers continue, because adds and
reads need no metadata. The bookie stays ready: if the bookie were not ready, a Kubernetes service
would hide its address from clients. A remark and a metric report the outage.

The settings `[session]` may limit the outage. If an outage lasts longer than the limit, the bookie
ends with an error of one sentence and exit status 3. A supervisor can then start the bookie on a
machine that reaches the store. By default the bookie waits for ever, because an outage of the store
must not end all bookies of a cluster.

Source: PIP-57, and the default of its later versions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NoReturn

from bookie.config.sections import SessionSettings
from bookie.daemon.readiness import Part, Readiness
from bookie.env import boot_time_seconds
from bookie.errors import SessionGivenUpError
from bookie.metadata.session import SessionEvent, SessionPolicy
from bookie.metadata.store import MetadataStore
from bookie.telemetry import Metrics, event_log

_AWAY = "the metadata store does not answer: reads and appends to open ledgers go on"

_log = event_log(__name__)


async def obey_session_policy(
    store: MetadataStore,
    settings: SessionSettings,
    metrics: Metrics,
    readiness: Readiness,
    *,
    clock: Callable[[], float] = boot_time_seconds,
) -> NoReturn:
    """Follow the session of the store, and show its state in a metric, a remark and the log.

    Raises:
        SessionGivenUpError: the policy requires that the process ends; the message has the reason.
        MetadataClosedError: the store was closed.
    """
    policy = SessionPolicy(
        store.session_timeout_seconds,
        give_up_after_timeouts=settings.give_up_after_timeouts,
        shutdown_when_lost=settings.policy == "shutdown",
    )
    metrics.metadata_away_seconds.set_function(lambda: policy.away_seconds(clock()))
    async with store.session_events() as events:
        while True:
            event = await _next_before(events, policy.deadline, clock)
            now = clock()
            if event is not None:
                away_seconds = round(policy.away_seconds(now), 1)
                _log.warning("session_changed", session=event.value, away_seconds=away_seconds)
            verdict = policy.step(event, now)
            if verdict:
                raise SessionGivenUpError(verdict)
            readiness.remark(Part.METADATA, _AWAY if policy.is_away else "")


async def after_outages(store: MetadataStore, look: Callable[[], object]) -> None:
    """Call `look` after each new session, because the store may be a restored backup.

    A restore of the store ends all sessions.

    Raises:
        MetadataClosedError: the store was closed.
    """
    async with store.session_events() as events:
        async for event in events:
            if event is SessionEvent.SESSION_REESTABLISHED:
                look()


async def _next_before(
    events: AsyncIterator[SessionEvent], deadline: float | None, clock: Callable[[], float]
) -> SessionEvent | None:
    """Return the next event of the session; None if the `deadline` passes first."""
    try:
        async with asyncio.timeout(None if deadline is None else max(0.0, deadline - clock())):
            return await anext(events)
    except TimeoutError:
        return None
