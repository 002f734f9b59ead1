"""The belief of a session's owner about it, by the events that it hears and their times."""

from __future__ import annotations

import itertools

import pytest

from bookie.metadata.session import (
    EXPIRY_EVENTS,
    LOST_SHARE,
    Announce,
    Answered,
    AuthFailed,
    Closed,
    Connected,
    Disconnected,
    Expired,
    MonitorEvent,
    Probe,
    ProbeFailed,
    ReadOnly,
    Renewed,
    SessionEvent,
    SessionMachine,
    SessionPolicy,
    SessionState,
    Tick,
)

TIMEOUT = 30.0
CONNECTION_LOST, SESSION_LOST, RECONNECTED, REESTABLISHED = EXPIRY_EVENTS


class Session:
    """A machine with a clock of its own, and a server that may answer its probes at once."""

    def __init__(self, jitter: float = 0.5) -> None:
        self.now = 1000.0
        self.machine = SessionMachine(TIMEOUT, self.now, lambda: jitter)
        self.answers = True
        self.probes: list[Probe] = []
        self.heard: list[tuple[float, SessionEvent]] = []

    def tell(self, event: MonitorEvent) -> None:
        for effect in self.machine.step(event, self.now):
            if isinstance(effect, Announce):
                self.heard.append((self.now - 1000.0, effect.event))
            else:
                self.probes.append(effect)
                if self.answers:
                    self.answer(effect)

    def answer(self, probe: Probe) -> None:
        self.tell(Renewed(probe.sent_at) if probe.renew else Answered(probe.sent_at))

    def run(self, seconds: float) -> None:
        """Let time pass, with every tick at its time."""
        until = self.now + seconds
        while (due := self.machine.deadline) is not None and due <= until:
            self.now = max(self.now, due)
            self.tell(Tick())
        self.now = until

    @property
    def events(self) -> list[SessionEvent]:
        return [event for _, event in self.heard]


@pytest.fixture
def session() -> Session:
    return Session()


def test_a_session_that_is_proven_stays_silent(session: Session) -> None:
    session.run(10 * TIMEOUT)
    assert session.events == []
    assert 140 <= len(session.probes) <= 150  # one each fifteenth of the timeout


def test_requests_that_prove_the_session_save_its_probes(session: Session) -> None:
    for _ in range(100):
        session.run(1.0)
        session.tell(Answered(session.now))
    assert session.probes == []


def test_a_short_outage(session: Session) -> None:
    """Case 63."""
    session.answers = False
    session.run(TIMEOUT / 2)
    session.answers = True
    session.run(10 * TIMEOUT)
    assert session.events == [CONNECTION_LOST, RECONNECTED]


def test_a_long_outage(session: Session) -> None:
    """Case 64."""
    session.answers = False
    session.run(3 * TIMEOUT)
    assert session.events == [CONNECTION_LOST, SESSION_LOST]
    assert session.machine.state is SessionState.LOST
    assert session.probes[-1].renew
    session.answers = True
    session.run(10 * TIMEOUT)
    assert session.events == list(EXPIRY_EVENTS)


def test_a_server_ends_the_session(session: Session) -> None:
    """Case 65: the same four events as a long outage, whatever the server's way to say so."""
    session.tell(Expired())
    assert session.events == [CONNECTION_LOST, SESSION_LOST]
    session.run(TIMEOUT)
    assert session.events == list(EXPIRY_EVENTS)


@pytest.mark.parametrize("broken", [True, False], ids=["broken", "black hole"])
def test_the_loss_is_counted_from_the_last_proof(session: Session, broken: bool) -> None:
    """A broken connection and a silent one give the same: 5/6 of the timeout, give a probe."""
    session.run(100.0)
    last_proof = session.machine._proven_at
    session.answers = False
    if broken:
        session.tell(Disconnected())
    session.run(TIMEOUT)
    assert session.events == [CONNECTION_LOST, SESSION_LOST]
    lost_at = 1000.0 + session.heard[-1][0]
    assert lost_at == pytest.approx(last_proof + TIMEOUT * LOST_SHARE)
    assert lost_at - 1100.0 <= TIMEOUT * LOST_SHARE
    assert lost_at - 1100.0 >= TIMEOUT * (LOST_SHARE - 1 / 15) - 1e-6


def test_an_answer_counts_from_when_its_question_was_sent(session: Session) -> None:
    session.answers = False
    session.run(5.0)
    session.tell(Answered(session.now - 4.0))
    assert session.machine._proven_at == 1001.0
    session.run(TIMEOUT)
    assert session.heard[-1][1] is SESSION_LOST
    assert session.heard[-1][0] == pytest.approx(1.0 + TIMEOUT * LOST_SHARE)


def repeated(event: MonitorEvent) -> list[MonitorEvent]:
    return [event, event, event]


@pytest.mark.parametrize(
    ("told", "heard"),
    [
        (repeated(Connected()), []),
        (repeated(Answered(1000.0)), []),
        (repeated(Disconnected()), [CONNECTION_LOST]),
        (repeated(Expired()), [CONNECTION_LOST, SESSION_LOST]),
        (repeated(AuthFailed()), [CONNECTION_LOST, SESSION_LOST]),
        (repeated(ReadOnly()), [CONNECTION_LOST]),
        (repeated(Closed()), []),
        ([Closed(), Expired(), Disconnected(), Answered(1000.0)], []),
        ([Disconnected(), Answered(1000.0)], [CONNECTION_LOST, RECONNECTED]),
        ([Disconnected(), Answered(999.0)], [CONNECTION_LOST]),
        ([Disconnected(), ReadOnly(), Answered(1000.0)], [CONNECTION_LOST]),
        ([Disconnected(), Connected()], [CONNECTION_LOST]),
        ([Disconnected(), Expired()], [CONNECTION_LOST, SESSION_LOST]),
        ([Disconnected(), AuthFailed()], [CONNECTION_LOST, SESSION_LOST]),
        ([ReadOnly(), Expired()], [CONNECTION_LOST, SESSION_LOST]),
        ([ReadOnly(), Connected(), Answered(1000.0)], [CONNECTION_LOST, RECONNECTED]),
        ([Expired(), Expired(), AuthFailed()], [CONNECTION_LOST, SESSION_LOST]),
        ([Expired(), Disconnected(), ReadOnly()], [CONNECTION_LOST, SESSION_LOST]),
        ([Expired(), Answered(1000.0)], [CONNECTION_LOST, SESSION_LOST]),
        ([Expired(), Renewed(999.0)], [CONNECTION_LOST, SESSION_LOST]),
        ([Expired(), Renewed(1000.0)], list(EXPIRY_EVENTS)),
        ([Renewed(1000.0)], []),
        ([Disconnected(), Renewed(1000.0)], [CONNECTION_LOST]),
        ([Expired(999.0)], []),
        ([ProbeFailed(999.0)], []),
    ],
    ids=str,
)
def test_each_transition_is_announced_once(
    session: Session, told: list[MonitorEvent], heard: list[SessionEvent]
) -> None:
    """Case 68, and what its rows leave open."""
    session.answers = False
    for event in told:
        session.tell(event)
    assert session.events == heard


def test_a_silent_probe_is_a_lost_connection(session: Session) -> None:
    """Case 68: and its late answer a found one."""
    session.answers = False
    session.run(TIMEOUT / 4)
    assert session.events == [CONNECTION_LOST]
    assert len(session.probes) == 1
    session.answer(session.probes[0])
    assert session.events == [CONNECTION_LOST, RECONNECTED]


def test_a_failed_probe_is_a_lost_connection(session: Session) -> None:
    session.answers = False
    session.run(TIMEOUT / 15)
    session.tell(ProbeFailed(session.probes[-1].sent_at))
    assert session.events == [CONNECTION_LOST]


def test_a_read_only_server_never_loses_the_session(session: Session) -> None:
    """Case 68: however long it lasts; nor does the way back to one that can write."""
    session.tell(ReadOnly())
    session.run(10 * TIMEOUT)
    session.tell(Connected())
    assert session.probes
    session.run(1.0)
    assert session.events == [CONNECTION_LOST, RECONNECTED]


def test_a_read_only_server_that_goes_too_takes_the_session_with_it(session: Session) -> None:
    session.tell(ReadOnly())
    session.run(10 * TIMEOUT)
    session.answers = False
    session.tell(Disconnected())
    assert session.events == [CONNECTION_LOST, SESSION_LOST]


def test_a_session_that_a_key_proves(session: Session) -> None:
    """Case 69: what a backend tells that looks after a key of its own."""
    # Its own key is deleted, and written again.
    session.tell(Expired())
    session.answers = False
    session.run(TIMEOUT / 15)
    renewal = session.probes[-1]
    assert renewal.renew
    # Writing it fails: tried again, and nobody hears of it.
    session.tell(ProbeFailed(renewal.sent_at))
    assert session.events == [CONNECTION_LOST, SESSION_LOST]
    session.answers = True
    session.run(TIMEOUT / 15)
    assert session.events == list(EXPIRY_EVENTS)
    # A check that was under way before says that the key is missing: it speaks of the old one.
    session.tell(Expired(sent_at=1000.0))
    assert session.events == list(EXPIRY_EVENTS)
    # One that was sent since does not.
    session.tell(Expired(sent_at=session.now))
    assert session.events[4:] == [CONNECTION_LOST, SESSION_LOST]


def test_a_pause_is_noticed_before_what_waited_through_it(session: Session) -> None:
    """An answer that lay in the socket while the process was stopped revives nothing."""
    session.answers = False
    session.run(TIMEOUT / 15)
    session.now += TIMEOUT
    session.answer(session.probes[0])
    assert session.events == [CONNECTION_LOST, SESSION_LOST]


def test_a_pause_of_half_the_timeout_asks_for_a_round_trip(session: Session) -> None:
    session.answers = False
    session.run(TIMEOUT / 15)
    asked_before = session.probes[0]
    session.now += TIMEOUT * 0.7
    session.answer(asked_before)
    assert session.events == [CONNECTION_LOST]
    assert len(session.probes) == 2
    session.answer(session.probes[1])
    assert session.events == [CONNECTION_LOST, RECONNECTED]


def test_a_shorter_pause_is_not_blamed_on_the_server(session: Session) -> None:
    session.answers = False
    session.run(TIMEOUT / 15)
    session.now += TIMEOUT * 0.4
    session.tell(Tick())
    assert session.events == []
    session.answer(session.probes[0])
    assert session.events == []


def test_attempts_slow_down_and_differ_between_clients() -> None:
    times = []
    for jitter in (0.0, 0.9):
        session = Session(jitter)
        session.answers = False
        session.tell(Expired())
        sent = []
        for _ in range(10):
            while not session.probes:
                session.run((session.machine.deadline or 0.0) - session.now)
            sent.append(session.probes.pop().sent_at)
            session.tell(ProbeFailed(sent[-1]))
        pauses = [after - before for before, after in itertools.pairwise(sent)]
        assert pauses == sorted(pauses)
        assert TIMEOUT / 6 <= pauses[-1] <= TIMEOUT / 3
        times.append(sent)
    assert all(early < late for early, late in zip(*times, strict=True))


@pytest.mark.parametrize("refusal", [Expired(), Expired(1000.0), AuthFailed()], ids=str)
def test_many_refusals_of_one_loss_are_one_failure(refusal: MonitorEvent) -> None:
    """Writes that were under way when the session ended all say so; none makes it end twice."""
    due = []
    for refusals in (1, 60):
        session = Session()
        session.answers = False
        session.tell(Expired())
        for _ in range(refusals):
            session.tell(refusal)
        due.append(session.machine.deadline)
        session.run(1.0)
        assert len(session.probes) == 1
        # Nor is the renewal under way given up for it.
        session.tell(refusal)
        session.answer(session.probes[0])
        assert session.events == list(EXPIRY_EVENTS)
    assert due[0] == due[1]


@pytest.mark.parametrize("refusal", [Expired, AuthFailed, ProbeFailed])
def test_a_renewal_that_is_refused_is_followed_by_another(
    session: Session, refusal: type[Expired | AuthFailed | ProbeFailed]
) -> None:
    session.answers = False
    session.tell(Expired())
    session.run(1.0)
    (renewal,) = session.probes
    session.tell(refusal(renewal.sent_at))
    session.run(TIMEOUT / 4)
    assert len(session.probes) > 1
    assert session.machine.deadline is not None
    assert session.machine.deadline - renewal.sent_at < TIMEOUT


def test_a_flapping_link_lets_a_renewal_end(session: Session) -> None:
    """Each connection while the session is lost would begin the renewal anew, if it could."""
    session.answers = False
    session.tell(Expired())
    for _ in range(20 * 20):
        session.run(0.05)
        session.tell(Connected())
    renewals = [probe.sent_at for probe in session.probes]
    assert all(after - before >= TIMEOUT / 3 for before, after in itertools.pairwise(renewals))


def test_a_connection_shortens_the_pause_before_a_renewal_by_chance() -> None:
    """A rest of the pause remains, because all clients hear of a returned server at once."""
    begun = []
    for jitter in (0.0, 0.9):
        session = Session(jitter)
        session.answers = False
        session.tell(Expired())
        for _ in range(8):
            while not session.probes:
                session.run((session.machine.deadline or 0.0) - session.now)
            session.tell(ProbeFailed(session.probes.pop().sent_at))
        assert session.machine.deadline is not None
        assert session.machine.deadline - session.now > 1.0
        connected_at = session.now
        session.tell(Connected())
        assert session.probes == []
        session.run(0.6)
        begun.append(session.probes[0].sent_at - connected_at)
    assert 0 < begun[0] < begun[1] <= 0.5


# -- the policy of a process -----------------------------------------------------------------------


def test_a_process_outlives_outages_up_to_its_limit() -> None:
    policy = SessionPolicy(10.0, give_up_after_timeouts=10)
    assert policy.step(CONNECTION_LOST, 50.0) == ""
    assert policy.step(SESSION_LOST, 58.0) == ""
    assert policy.deadline == 150.0
    assert policy.step(RECONNECTED, 149.0) == ""
    assert policy.step(REESTABLISHED, 149.0) == ""
    assert policy.step(CONNECTION_LOST, 200.0) == ""
    assert policy.deadline == 300.0
    assert policy.step(None, 299.0) == ""
    verdict = policy.step(None, 300.0)
    assert verdict == "the metadata store did not answer for 100 seconds, 10 session timeouts"
    assert policy.step(RECONNECTED, 301.0) == verdict


def test_a_process_without_a_limit_outlives_every_outage() -> None:
    policy = SessionPolicy(10.0, give_up_after_timeouts=0)
    assert policy.step(CONNECTION_LOST, 50.0) == ""
    assert policy.step(SESSION_LOST, 58.0) == ""
    assert policy.deadline is None
    assert policy.step(None, 1e9) == ""
    assert policy.away_seconds(1e9) == 1e9 - 50.0
    assert policy.step(RECONNECTED, 1e9) == ""
    assert policy.away_seconds(1e9) == 0.0


def test_a_process_may_end_with_its_session() -> None:
    policy = SessionPolicy(10.0, give_up_after_timeouts=10, shutdown_when_lost=True)
    assert policy.step(CONNECTION_LOST, 0.0) == ""
    assert policy.step(RECONNECTED, 1.0) == ""
    assert policy.deadline is None
    assert policy.step(CONNECTION_LOST, 2.0) == ""
    assert "session.policy is shutdown" in policy.step(SESSION_LOST, 3.0)
