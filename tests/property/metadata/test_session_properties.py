"""Whatever is told in whatever order, the events of a session make one of few sentences."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from bookie.metadata.session import (
    LOST_SHARE,
    Announce,
    Answered,
    AuthFailed,
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
    SessionState,
    Tick,
)

TIMEOUT = 15.0
LETTERS = {
    SessionEvent.CONNECTION_LOST: "D",
    SessionEvent.RECONNECTED: "C",
    SessionEvent.SESSION_LOST: "L",
    SessionEvent.SESSION_REESTABLISHED: "E",
}
SENTENCES = re.compile(r"(D(C|LCE))*(D|DL)?")

_ages = st.floats(0, 2 * TIMEOUT)
_told = st.one_of(
    st.just(Tick()),
    st.just(Connected()),
    st.just(Disconnected()),
    st.just(ReadOnly()),
    st.just(AuthFailed()),
    st.just(Expired()),
    _ages.map(Answered),
    _ages.map(Renewed),
    _ages.map(ProbeFailed),
    _ages.map(Expired),
)
"""Events; a time in one is an age, for the present is not known yet."""

_steps = st.lists(
    st.tuples(
        st.one_of(st.just(0.0), st.floats(0, 1), st.floats(0, 2 * TIMEOUT)),
        _told,
        st.sampled_from(["on time", "late"]),
        st.booleans(),
    ),
    max_size=60,
)


def _dated(event: MonitorEvent, now: float) -> MonitorEvent:
    match event:
        case Answered(age):
            return Answered(now - age)
        case Renewed(age):
            return Renewed(now - age)
        case ProbeFailed(age):
            return ProbeFailed(now - age)
        case Expired(age) if age is not None:
            return Expired(now - age)
        case _:
            return event


class Run:
    """A machine, the truth about what was proven, and what must hold after each step."""

    def __init__(self) -> None:
        self.now = 0.0
        self.machine = SessionMachine(TIMEOUT, 0.0, lambda: 0.25)
        self.word = ""
        self.proofs = [0.0]
        self.read_only = False
        self.probe: Probe | None = None
        """The last one that nobody answered."""

    def is_in(self, state: SessionState) -> bool:
        return self.machine.state is state

    def answer(self) -> None:
        probe, self.probe = self.probe, None
        if probe is not None:
            self.tell(Renewed(probe.sent_at) if probe.renew else Answered(probe.sent_at))

    def tell(self, event: MonitorEvent) -> None:
        before = self.machine.state
        effects = self.machine.step(event, self.now)
        new = "".join(LETTERS[e.event] for e in effects if isinstance(e, Announce))
        self.word += new
        assert SENTENCES.fullmatch(self.word), self.word
        probes = [effect for effect in effects if isinstance(effect, Probe)]
        assert len(probes) <= 1
        if probes:
            (self.probe,) = probes
            assert self.probe.sent_at == self.now
            assert self.probe.renew == (self.machine.state is SessionState.LOST)
        if "E" in new:
            # Only a renewal does it, and only one that was sent since the session was lost.
            assert isinstance(event, Renewed)
        if before is SessionState.LOST and isinstance(event, Answered):
            assert new == ""
        if isinstance(event, Answered | Renewed):
            self.proofs.append(event.sent_at)
        deadline = self.machine.deadline
        if self.machine.state in (SessionState.CONNECTED, SessionState.DOUBTFUL):
            assert deadline is not None
            assert deadline > self.now
            # What is believed alive was proven within 5/6 of the timeout.
            assert self.now < self.machine._proven_at + TIMEOUT * LOST_SHARE
            if not self.read_only:
                assert self.machine._proven_at in self.proofs
        self.read_only = self.read_only or self.machine.state is SessionState.READ_ONLY


@given(_steps)
def test_every_history_is_a_sentence(
    steps: list[tuple[float, MonitorEvent, str, bool]],
) -> None:
    """Each transition once; never re-established without a loss; nothing believed without proof."""
    run = Run()
    for seconds, event, driver, answers in steps:
        until = run.now + seconds
        while driver == "on time":
            due = run.machine.deadline
            if due is None or due > until:
                break
            run.now = max(run.now, due)
            run.tell(Tick())
            if answers:
                run.answer()
        run.now = until
        run.tell(_dated(event, run.now))


@given(_steps, st.booleans())
def test_every_session_heals(
    steps: list[tuple[float, MonitorEvent, str, bool]], read_only: bool
) -> None:
    """When the server answers again, the session is back within two thirds of the timeout."""
    run = Run()
    for seconds, event, _, _ in steps:
        run.now += seconds
        run.tell(_dated(event, run.now))
    if read_only:
        run.tell(ReadOnly())
    if run.is_in(SessionState.READ_ONLY):
        run.tell(Connected())
    until = run.now + TIMEOUT * 2 / 3 + 1e-6
    run.probe = None
    while not run.is_in(SessionState.CONNECTED):
        due = run.machine.deadline
        assert due is not None
        run.now = max(run.now, due)
        assert run.now <= until
        run.tell(Tick())
        run.answer()
    assert run.word == "" or run.word[-1] in "CE"
