"""Keep the registration of this bookie up to date while the bookie runs.

The registration contains the bookie's addresses, and its free space, which is a weight for
placement. The bookie updates the registration within a second if its labels, its read-only state or
its doubt that the metadata store is up to date changes. Without such a change, the bookie updates
the registration once a minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NoReturn

from bookie.cluster.registration import BookieRegistration
from bookie.cluster.registration_record import Endpoint, Registration
from bookie.daemon.readiness import Part, Readiness
from bookie.env import Pause
from bookie.errors import MetadataError, RequestError
from bookie.node.bookie import Bookie
from bookie.telemetry import Metrics, event_log

LOOK_INTERVAL_SECONDS = 1.0
"""The time between two checks of the bookie's state; each check costs one call of statvfs."""

REFRESH_INTERVAL_SECONDS = 60.0
"""The time between two updates if only the free space changed; an update is one write to the store.
"""

TOLD_AT_ONCE = ("read_only", "labels", "store_doubt")
"""The fields on which clients act; the bookie registers a change of these fields at once."""

_log = event_log(__name__)


class RegistrationUpdater:
    """Makes one bookie's registration from its addresses, labels, space and state."""

    def __init__(
        self,
        bookie: Bookie,
        endpoints: tuple[Endpoint, ...],
        own_labels: Mapping[str, str],
        given_labels: Mapping[str, str],
        is_in_doubt: Callable[[], bool],
        store_doubt: Callable[[], str],
    ) -> None:
        self._bookie = bookie
        self._endpoints = endpoints
        self._own_labels = own_labels
        self._given_labels = given_labels
        self._is_in_doubt = is_in_doubt
        self._store_doubt = store_doubt
        self.interval = Pause()
        """The pause between two checks of the bookie's state; a change of labels ends it early."""

    def set_own_labels(self, labels: Mapping[str, str]) -> None:
        """Replace the labels that come from the bookie's own settings."""
        self._own_labels = labels
        self.interval.end()

    def set_given_labels(self, labels: Mapping[str, str]) -> None:
        """Replace the labels set by an operator, which override equal names in the settings."""
        self._given_labels = labels
        self.interval.end()

    def remarks(self) -> dict[Part, str]:
        """Return the remarks for the readiness report; an empty text means no remark."""
        why = ", ".join(self._bookie.read_only_reasons())
        return {
            Part.READ_ONLY: f"read-only ({why}): new entries are refused" if why else "",
            Part.DOUBT: (
                "in doubt: it may miss entries and denies none of them;"
                f" `bookie node check {self._bookie.bookie_id}` tells more"
            )
            if self._is_in_doubt()
            else "",
            Part.STORE: f"clients create no ledgers: {doubt}"
            if (doubt := self._store_doubt())
            else "",
        }

    async def registration(self) -> Registration:
        """Return the registration with the bookie's present state."""
        info = await self._bookie.info()
        return Registration(
            bookie_id=info.bookie_id,
            endpoints=self._endpoints,
            labels={**self._own_labels, **self._given_labels},
            total_bytes=info.total_bytes,
            free_bytes=info.free_bytes,
            read_only=info.read_only,
            version=info.version,
            incarnation=info.incarnation,
            store_doubt=self._store_doubt(),
        )


async def keep_registered(
    updater: RegistrationUpdater,
    registered: BookieRegistration,
    metrics: Metrics,
    readiness: Readiness,
) -> NoReturn:
    """Keep the bookie's registration, readiness and gauges up to date, until cancelled.

    Raises:
        IdentityError: another process took the bookie's id.
    """
    loop = asyncio.get_running_loop()
    updated_at = loop.time()
    while True:
        wanted = await updater.registration()
        show_registration(wanted, registered, metrics, readiness, updater.remarks())
        last = registered.registration
        changed = any(getattr(wanted, name) != getattr(last, name) for name in TOLD_AT_ONCE)
        if registered.is_registered and (
            changed or loop.time() - updated_at >= REFRESH_INTERVAL_SECONDS
        ):
            updated_at = loop.time()
            try:
                await registered.update(wanted)
            except (MetadataError, RequestError) as error:
                # A task of `registered` repeats the write later, with the newest state.
                _log.warning("registration_not_updated", reason=str(error))
        await updater.interval.wait(lambda: LOOK_INTERVAL_SECONDS)


def show_registration(
    wanted: Registration,
    registered: BookieRegistration,
    metrics: Metrics,
    readiness: Readiness,
    remarks: dict[Part, str],
) -> None:
    """Set the metric `server_status`, and the remarks for the readiness report."""
    for part, text in remarks.items():
        readiness.remark(part, text)
    if registered.is_registered:
        readiness.remark(Part.REGISTRATION, "")
        metrics.server_status.set(0 if wanted.read_only else 1)
    else:
        obstacle = f": {registered.obstacle}" if registered.obstacle else ""
        readiness.remark(
            Part.REGISTRATION, f"not registered, so new clients do not find the bookie{obstacle}"
        )
        metrics.server_status.set(-1)
