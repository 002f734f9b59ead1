"""A session with a metadata store, as its owner knows it: alive, in doubt, or lost.

A session keeps ephemeral records alive. The server ends a session after a timeout without a sign of
life. The owner must treat the session as ended before the server ends it, even if the network is
cut. So the owner measures the timeout itself: from the moment at which it *sent* the last request
whose answer proved that the session is alive. The server's timeout began later, so the server
cannot end the session before the owner's timeout has passed.

=========== ==================================================== ===============================
state       meaning                                              what ends the state
=========== ==================================================== ===============================
CONNECTED   the server answers requests                          a broken connection, a probe
                                                                 without an answer, a pause of
                                                                 this process
DOUBTFUL    the server does not answer; the session may be alive an answer to a request that was
                                                                 sent in this state
READ_ONLY   the server that answers cannot write                 a connection to a server that
                                                                 can write
LOST        the session was not proven for 5/6 of its timeout,   the answer to a renewal that was
            or the server said that the session ended; the owner sent in this state
            must act as if all the session's records were gone
CLOSED      the owner ended the session                          nothing
=========== ==================================================== ===============================

An answer to a request that was sent before the doubt began proves nothing about the time since
then. If the owner's clock declared the session lost, the session may still be alive at the server,
and a renewal may continue it. Even then, consumers get SESSION_LOST and SESSION_REESTABLISHED.

A process may pause: by a signal, when the machine is suspended, or in a long call that blocks its
event loop. The clock of `SessionMachine` also runs while the machine is suspended. So
`SessionMachine` notices a pause in its first step after the pause, before it handles the event of
this step.

Source: PIP-45's session events and the session watcher of Apache Pulsar.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from bookie.env.backoff import Backoff

PROBE_FRACTION = 15
"""If no request proves the session, it is probed at intervals of its timeout / this number."""

PATIENCE_FRACTION = 6
"""If a probe has no answer after the session timeout / this number, the session is in doubt."""

ATTEMPT_FRACTION = 3
"""The longest wait for a probe, and the longest pause between probes: the timeout / this number."""

LOST_SHARE = 5 / 6
"""After this share of the timeout without proof, the owner treats the session as lost."""

PAUSE_FRACTION = 2
"""A step that is late by more than the timeout / this number shows that the process was paused."""

RETRY_SECONDS = 0.5
"""The most seconds for the first pause after a failed probe; the next pauses may be longer."""


class SessionEvent(enum.Enum):
    """An event in the life of the session that owns this store's ephemeral records.

    A short outage is announced as CONNECTION_LOST, RECONNECTED. A long outage, or an expiry, is
    announced as CONNECTION_LOST, SESSION_LOST, RECONNECTED, SESSION_REESTABLISHED. At
    SESSION_REESTABLISHED the store has a session again. It may be a new session: then the server
    has deleted, or will soon delete, the ephemeral records of the old session. Or the old session
    continues: then its records may still exist.
    """

    CONNECTION_LOST = "connection lost"
    RECONNECTED = "reconnected"
    SESSION_LOST = "session lost"
    SESSION_REESTABLISHED = "session re-established"


EXPIRY_EVENTS = (
    SessionEvent.CONNECTION_LOST,
    SessionEvent.SESSION_LOST,
    SessionEvent.RECONNECTED,
    SessionEvent.SESSION_REESTABLISHED,
)


class SessionState(enum.Enum):
    """The state of a session; the module's docstring has a table of the states."""

    CONNECTED = "connected"
    DOUBTFUL = "doubtful"
    READ_ONLY = "read-only"
    LOST = "lost"
    CLOSED = "closed"


# -- events ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tick:
    """Only time has passed. The next tick must come at `SessionMachine.deadline` or before."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A request that keeps the session alive, for example a probe, was answered.

    A read on etcd is not such a request, because etcd answers reads even after the session's end.
    """

    sent_at: float


@dataclass(frozen=True, slots=True)
class Renewed:
    """A renewal succeeded: the old session continues, or a new session has begun."""

    sent_at: float


@dataclass(frozen=True, slots=True)
class ProbeFailed:
    """The probe or renewal sent at `sent_at` was answered with an error, or could not be sent."""

    sent_at: float


@dataclass(frozen=True, slots=True)
class Connected:
    """The client has connected to a server that can write; this does not prove the session."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection broke."""


@dataclass(frozen=True, slots=True)
class ReadOnly:
    """The client is connected to a server in read-only mode, which has no sessions."""


@dataclass(frozen=True, slots=True)
class Expired:
    """The server says that the session ended.

    `sent_at` is the time when the request was sent that the server answered in this way; None if
    the server said so without a request. If the request was sent before the current session began,
    the answer concerns an older session, and is ignored.
    """

    sent_at: float | None = None


@dataclass(frozen=True, slots=True)
class AuthFailed:
    """The server does not accept our credentials; `sent_at` is as in `Expired`."""

    sent_at: float | None = None


@dataclass(frozen=True, slots=True)
class Closed:
    """The owner ended the session. Later events are ignored."""


MonitorEvent: TypeAlias = (
    Tick
    | Answered
    | Renewed
    | ProbeFailed
    | Connected
    | Disconnected
    | ReadOnly
    | Expired
    | AuthFailed
    | Closed
)

# -- effects ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Announce:
    """Announce an event to all consumers."""

    event: SessionEvent


@dataclass(frozen=True, slots=True)
class Probe:
    """Send a request that proves or, with `renew`, renews the session; cancel the earlier probe.

    The outcome comes as an event: `Answered` (with `renew`: `Renewed`), `ProbeFailed`, `Expired` or
    `AuthFailed`. A cancelled probe causes no event.
    """

    sent_at: float
    renew: bool


SessionEffect: TypeAlias = Announce | Probe


class SessionMachine:
    """The state machine of one session, from the moment at which the session began.

    Args:
        timeout_seconds: after this time without a sign of life the server may end the session.
        now: the time when the request that began the session was sent.
        jitter: returns random numbers in [0, 1), so that not all clients retry at the same time.
    """

    def __init__(self, timeout_seconds: float, now: float, jitter: Callable[[], float]) -> None:
        self._timeout = timeout_seconds
        self._state = SessionState.CONNECTED
        self._begun_at = now
        self._proven_at = now
        self._doubt_since = now
        """Answers to requests sent before this time do not end the session's doubt or loss."""
        self._probe_sent_at: float | None = None
        self._patience_until = now
        self._probe_at = now + timeout_seconds / PROBE_FRACTION
        """The time at which the next probe is due, if no probe is running now."""
        self._backoff = Backoff(
            min(timeout_seconds / PROBE_FRACTION, RETRY_SECONDS),
            timeout_seconds / ATTEMPT_FRACTION,
            jitter,
        )
        self._effects: list[SessionEffect] = []

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def deadline(self) -> float | None:
        """The time by which the next `Tick` must come; None if this state needs no tick."""
        if self._state in (SessionState.CLOSED, SessionState.READ_ONLY):
            return None
        due = self._probe_at
        if self._probe_sent_at is not None:
            due = self._probe_sent_at + self._timeout / ATTEMPT_FRACTION
            if self._state is SessionState.CONNECTED:
                due = min(due, self._patience_until)
        return due if self._state is SessionState.LOST else min(due, self._lost_at)

    def step(self, event: MonitorEvent, now: float) -> list[SessionEffect]:
        """Handle the time that passed until `now`, then `event`; return the effects, in order."""
        if self._state is SessionState.CLOSED or isinstance(event, Closed):
            self._state = SessionState.CLOSED
            return []
        self._effects = []
        self._notice_pause(now)
        self._pass_time(now)
        self._take(event, now)
        self._pass_time(now)
        self._ask_if_due(now)
        return self._effects

    # ---- time

    @property
    def _lost_at(self) -> float:
        return self._proven_at + self._timeout * LOST_SHARE

    def _notice_pause(self, now: float) -> None:
        deadline = self.deadline
        if deadline is None:
            return
        late = now - deadline
        if late > self._timeout / PAUSE_FRACTION:
            if self._state is SessionState.CONNECTED:
                self._doubt(now)
            self._doubt_since = self._probe_at = now
            self._probe_sent_at = None
        elif late > self._timeout / PATIENCE_FRACTION / 2:
            # This process itself was late: an answer may have arrived in time, but was not read
            # yet. So wait a little longer.
            self._patience_until = max(self._patience_until, now + self._timeout / PROBE_FRACTION)

    def _pass_time(self, now: float) -> None:
        if self._state in (SessionState.CLOSED, SessionState.READ_ONLY):
            return
        asked_at = self._probe_sent_at if now >= self._patience_until else None
        if asked_at is not None and self._state is SessionState.CONNECTED:
            # Do not cancel the probe. Its answer, even a late one, still ends the doubt, because
            # the doubt counts from the time at which the probe was sent.
            self._doubt(asked_at, keep_probe=True)
        if self._state is not SessionState.LOST and now >= self._lost_at:
            self._lose(now)
        asked_at = self._probe_sent_at
        if asked_at is not None and now >= asked_at + self._timeout / ATTEMPT_FRACTION:
            self._retry(now)

    def _ask_if_due(self, now: float) -> None:
        if self._state is SessionState.READ_ONLY or self._probe_sent_at is not None:
            return
        if now >= self._probe_at:
            self._probe_sent_at = now
            self._patience_until = now + self._timeout / PATIENCE_FRACTION
            self._effects.append(Probe(now, renew=self._state is SessionState.LOST))

    def _retry(self, now: float) -> None:
        """Schedule the next probe after a failed probe, with a pause that doubles each time."""
        self._probe_at = now + self._backoff.next()
        self._probe_sent_at = None

    # ---- events

    def _take(self, event: MonitorEvent, now: float) -> None:
        match event:
            case Tick() | Closed():
                pass
            case Answered(sent_at):
                self._take_answer(sent_at)
            case Renewed(sent_at):
                self._take_renewal(sent_at)
            case ProbeFailed(sent_at):
                self._take_failure(sent_at, now)
            case Connected():
                self._take_connection(now)
            case Disconnected() | ReadOnly():
                self._take_disconnection(now, read_only=isinstance(event, ReadOnly))
            case Expired(sent_at=asked_at):
                if asked_at is None or asked_at >= self._begun_at:
                    self._take_end(asked_at, now)
            case AuthFailed(sent_at=asked_at):
                self._take_end(asked_at, now)
            case _:
                assert_never(event)

    def _take_answer(self, sent_at: float) -> None:
        if self._state in (SessionState.LOST, SessionState.READ_ONLY):
            return
        if self._state is SessionState.DOUBTFUL and sent_at >= self._doubt_since:
            self._connect()
        self._prove(sent_at)

    def _take_renewal(self, sent_at: float) -> None:
        if self._state is not SessionState.LOST or sent_at < self._doubt_since:
            return
        self._connect()
        self._effects.append(Announce(SessionEvent.SESSION_REESTABLISHED))
        self._begun_at = self._proven_at = sent_at
        self._prove(sent_at)

    def _prove(self, sent_at: float) -> None:
        self._proven_at = max(self._proven_at, sent_at)
        if self._probe_sent_at is not None and sent_at >= self._probe_sent_at:
            self._probe_sent_at = None
        if self._state is SessionState.CONNECTED:
            self._backoff.reset()
            self._probe_at = self._proven_at + self._timeout / PROBE_FRACTION

    def _take_failure(self, sent_at: float, now: float) -> None:
        if sent_at != self._probe_sent_at:
            return
        if self._state is SessionState.CONNECTED:
            self._doubt(now)
        self._retry(now)

    def _take_connection(self, now: float) -> None:
        if self._state is SessionState.CONNECTED:
            return
        if self._state is SessionState.LOST:
            # A renewal that was sent continues: if each connection restarted the renewal, an
            # unstable network would prevent it. A renewal that was not sent yet is sent sooner, but
            # not at once: otherwise all clients would send theirs when the server returns.
            self._probe_at = min(self._probe_at, now + self._backoff.after(0))
            return
        if self._state is SessionState.READ_ONLY:
            # A read-only server could not prove the session, so the time without proof may be long.
            # Leave enough time for one probe before the session counts as lost.
            self._state = SessionState.DOUBTFUL
            grace = self._timeout * LOST_SHARE - self._timeout / ATTEMPT_FRACTION
            self._proven_at = max(self._proven_at, now - grace)
        # A probe that was sent on the former connection gets no answer, so send a new probe.
        self._probe_sent_at = None
        self._probe_at = now

    def _take_disconnection(self, now: float, *, read_only: bool) -> None:
        if self._state is SessionState.CONNECTED:
            self._doubt(now)
            self._retry(now)
        elif self._state is SessionState.READ_ONLY and not read_only:
            self._state = SessionState.DOUBTFUL
            self._retry(now)
        if read_only and self._state is SessionState.DOUBTFUL:
            self._state = SessionState.READ_ONLY

    def _take_end(self, asked_at: float | None, now: float) -> None:
        if self._state is not SessionState.LOST:
            self._lose(now)
        elif asked_at is not None and asked_at == self._probe_sent_at:
            # Only the answer to the renewal itself counts as a failed renewal. Otherwise each late
            # answer to an older request would double the pause.
            self._retry(now)

    # ---- transitions, each announced once

    def _doubt(self, since: float, *, keep_probe: bool = False) -> None:
        self._state = SessionState.DOUBTFUL
        self._doubt_since = since
        if not keep_probe:
            self._probe_sent_at = None
        self._effects.append(Announce(SessionEvent.CONNECTION_LOST))

    def _lose(self, now: float) -> None:
        if self._state is SessionState.CONNECTED:
            self._effects.append(Announce(SessionEvent.CONNECTION_LOST))
        self._effects.append(Announce(SessionEvent.SESSION_LOST))
        self._state = SessionState.LOST
        self._doubt_since = now
        self._retry(now)

    def _connect(self) -> None:
        self._state = SessionState.CONNECTED
        self._effects.append(Announce(SessionEvent.RECONNECTED))


# -- the reaction of the process -------------------------------------------------------------------


class SessionPolicy:
    """Decides when a process must end because it has no session with the metadata store.

    Source: PIP-57, which has two policies for a lost session: shut down, or reconnect.

    Args:
        timeout_seconds: the session timeout.
        give_up_after_timeouts: the process must end after an outage of this number of session
            timeouts; 0 means that no outage ends the process.
        shutdown_when_lost: if true, the process must end when a session is lost.
    """

    def __init__(
        self,
        timeout_seconds: float,
        *,
        give_up_after_timeouts: float,
        shutdown_when_lost: bool = False,
    ) -> None:
        patience = timeout_seconds * give_up_after_timeouts
        self._patience_seconds = patience or math.inf
        self._shutdown_when_lost = shutdown_when_lost
        self._timeout_seconds = timeout_seconds
        self._since: float | None = None
        self._verdict = ""

    @property
    def deadline(self) -> float | None:
        """The time at which the present outage ends the process; None if it has no such time."""
        if self._since is None or math.isinf(self._patience_seconds):
            return None
        return self._since + self._patience_seconds

    @property
    def is_away(self) -> bool:
        """True during an outage: from the loss of the connection or session until it is back."""
        return self._since is not None

    def away_seconds(self, now: float) -> float:
        """Return the seconds since the store stopped answering; 0 while the store answers."""
        return 0.0 if self._since is None else now - self._since

    def step(self, event: SessionEvent | None, now: float) -> str:
        """Handle `event`; return the reason for which the process must end, or "".

        If `event` is None, only time has passed. After a call has returned a reason, every later
        call returns the same reason.
        """
        if self._verdict:
            return self._verdict
        match event:
            case SessionEvent.CONNECTION_LOST | SessionEvent.SESSION_LOST:
                self._since = now if self._since is None else self._since
                if event is SessionEvent.SESSION_LOST and self._shutdown_when_lost:
                    self._verdict = (
                        "the session with the metadata store is lost, and session.policy is"
                        " shutdown"
                    )
            case SessionEvent.RECONNECTED | SessionEvent.SESSION_REESTABLISHED:
                self._since = None
            case None:
                pass
            case _:
                assert_never(event)
        deadline = self.deadline
        if deadline is not None and now >= deadline:
            self._verdict = (
                f"the metadata store did not answer for {self._patience_seconds:g} seconds,"
                f" {self._patience_seconds / self._timeout_seconds:g} session timeouts"
            )
        return self._verdict
