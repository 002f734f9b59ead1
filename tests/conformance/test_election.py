"""Elections: who leads, who follows, and who does not know."""

from __future__ import annotations

import asyncio

import pytest

from bookie.coordination.claim import Claim, encode_claim
from bookie.coordination.election import Election, LeaderState
from bookie.coordination.participant import Participant
from bookie.errors import LockLostError
from tests.conformance.backends import Backend
from tests.conformance.clients import Client, NewClient
from tests.conformance.waiting import settle, until

PATH = "/leader"
NO_LEADER, FOLLOWING, LEADING, UNKNOWN = (
    LeaderState.NO_LEADER,
    LeaderState.FOLLOWING,
    LeaderState.LEADING,
    LeaderState.UNKNOWN,
)


class Candidate:
    """An election and what its listener heard."""

    def __init__(self, client: Client, owner: str = "") -> None:
        self.client = client
        self.heard: list[LeaderState] = []
        self.election = Election(client.participant, PATH, owner=owner, on_change=self.heard.append)

    async def leader(self) -> bytes | None:
        """The leader's value, as this candidate sees it."""
        await self.client.session.sync()
        holder = await self.election.leader()
        return None if holder is None else holder.content

    async def turns(self, state: LeaderState) -> None:
        async with asyncio.timeout(60):
            await self.election.wait_for(state)


async def test_a_lone_candidate_leads_until_it_resigns(client: Client) -> None:
    """Case 55."""
    candidate = Candidate(client)
    assert candidate.election.state is NO_LEADER
    assert await candidate.leader() is None
    assert await candidate.election.elect(b"me") is LEADING
    assert await candidate.election.elect(b"again") is LEADING
    assert candidate.heard == [LEADING]
    assert await candidate.leader() == b"me"
    lock = candidate.election.lock
    await candidate.election.close()
    assert candidate.heard == [LEADING, NO_LEADER]
    assert not lock.is_held, "whoever kept it hears that it is over"
    assert await candidate.leader() is None
    with pytest.raises(LockLostError):
        _ = candidate.election.token
    # Standing again is another term.
    assert await candidate.election.elect(b"later") is LEADING
    await candidate.election.close()


async def test_the_next_in_line_follows_and_then_leads(new_client: NewClient) -> None:
    """Case 56."""
    first, second = Candidate(await new_client()), Candidate(await new_client())
    assert await first.election.elect(b"1") is LEADING
    token = first.election.token
    assert await second.election.elect(b"2") is FOLLOWING
    assert await second.leader() == b"1"
    await first.election.close()
    await second.turns(LEADING)
    assert second.heard == [FOLLOWING, LEADING]
    assert second.election.token > token
    assert await second.leader() == b"2"
    await second.election.close()


async def test_who_audits_is_known_to_all_and_followed_by_the_next(new_client: NewClient) -> None:
    """Case 134: the one auditor of a cluster is whoever leads."""
    first, second = Candidate(await new_client()), Candidate(await new_client())
    assert await first.leader() is await second.leader() is None
    assert await first.election.elect(b"auditor-1") is LEADING
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(second.turns(LEADING))
        assert await second.election.elect(b"auditor-2") is FOLLOWING
        assert await first.leader() == await second.leader() == b"auditor-1"
        assert not waiting.done()
        await first.election.close()
    assert await second.leader() == b"auditor-2"
    await second.election.close()


async def test_a_leader_whose_record_was_deleted_leads_again(client: Client) -> None:
    """Case 57."""
    candidate = Candidate(client)
    await candidate.election.elect(b"me")
    await client.session.delete(candidate.election.lock.check().key)
    await until(lambda: candidate.heard == [LEADING, UNKNOWN, LEADING])
    assert await candidate.leader() == b"me"


async def test_closing_the_participant_resigns_everywhere(new_client: NewClient) -> None:
    """Case 58."""
    observer, client = await new_client(), await new_client()
    async with Participant(client.store) as participant:
        for name in "abc":
            assert await Election(participant, f"/elections/{name}").elect() is LEADING
        follower = Election(observer.participant, "/elections/a")
        assert await follower.elect() is FOLLOWING
        await follower.close()
    await observer.session.sync()
    assert await observer.session.get_children("/elections") == []


async def test_a_leftover_of_its_own_is_replaced(client: Client) -> None:
    """Case 59."""
    abandoned = client.participant.new_guid()
    client.participant.abandon(abandoned)
    value = encode_claim(Claim(abandoned, content=b"old"))
    await client.session.put(f"{PATH}/claim-", value, ephemeral=True, sequential=True)
    candidate = Candidate(client)
    assert await candidate.election.elect(b"new") is LEADING
    assert await candidate.leader() == b"new"


async def test_a_leader_of_the_same_owner_is_replaced_if_that_is_wanted(
    new_client: NewClient,
) -> None:
    """Case 60."""
    first = Candidate(await new_client(), "broker-1")
    other = Candidate(await new_client(), "broker-2")
    successor = Candidate(await new_client(), "broker-1")
    assert await first.election.elect(b"1") is LEADING
    assert await other.election.elect(b"2", take_over=True) is FOLLOWING
    assert await other.leader() == b"1"
    await other.election.close()
    await successor.client.session.sync()
    assert await successor.election.elect(b"1 again", take_over=True) is LEADING
    await first.turns(FOLLOWING)
    assert first.heard == [LEADING, UNKNOWN, FOLLOWING]
    assert await first.leader() == b"1 again"


async def test_a_listener_may_call_back(client: Client) -> None:
    """Case 61: what hears of a change may ask, and start things; nothing waits for it."""
    seen: list[tuple[LeaderState, LeaderState]] = []
    readers: list[asyncio.Task[None]] = []

    async def read() -> None:
        await election.leader()
        await election.elect()

    def listen(state: LeaderState) -> None:
        seen.append((state, election.state))
        if state is LEADING:
            readers.append(client.participant.spawn(read()))

    election = Election(client.participant, PATH, on_change=listen)
    async with asyncio.timeout(60):
        await election.elect()
        await asyncio.wait(readers)
    assert seen == [(LEADING, LEADING)]


@pytest.mark.parametrize("heir_first", [True, False])
async def test_a_late_resignation_hits_nobody_else(new_client: NewClient, heir_first: bool) -> None:
    """Case 62: a leader that lost its record and closes leaves the next one's alone."""
    stale, heir = Candidate(await new_client()), Candidate(await new_client())
    assert await stale.election.elect(b"stale") is LEADING
    key = stale.election.lock.check().key
    if heir_first:
        assert await heir.election.elect(b"heir") is FOLLOWING
        stale.client.store.is_down = True
        await heir.client.session.delete(key)
    else:
        stale.client.store.is_down = True
        await heir.client.session.delete(key)
        assert await heir.election.elect(b"heir") is LEADING
    await heir.turns(LEADING)
    closing = stale.client.participant.spawn(stale.election.close())
    await settle()
    stale.client.store.is_down = False
    await asyncio.wait([closing])
    await settle()
    assert heir.election.state is LEADING
    assert await heir.leader() == b"heir"
    assert stale.election.state is NO_LEADER


async def test_a_leader_survives_its_session_if_it_is_alone(
    backend: Backend, new_client: NewClient
) -> None:
    """Case 66."""
    candidate = Candidate(await new_client(session_timeout_seconds=3.0))
    await candidate.election.elect(b"me")
    token = candidate.election.token
    await backend.expire(candidate.client.session)
    await candidate.turns(UNKNOWN)
    await candidate.turns(LEADING)
    await until(lambda: candidate.election.state is LEADING and candidate.election.token > token)
    assert await candidate.leader() == b"me"


async def test_a_follower_leads_when_the_leader_loses_its_session(
    backend: Backend, new_client: NewClient
) -> None:
    leader = Candidate(await new_client(session_timeout_seconds=3.0))
    follower = Candidate(await new_client())
    await leader.election.elect(b"1")
    await follower.election.elect(b"2")
    await backend.expire(leader.client.session)
    await follower.turns(LEADING)
    await leader.turns(FOLLOWING)
    assert UNKNOWN in leader.heard
    assert await leader.leader() == b"2"


async def test_nobody_knows_while_the_session_is_in_doubt(
    backend: Backend, new_client: NewClient
) -> None:
    """Case 67: and afterwards the state is what the store says."""
    if not backend.can_disconnect:
        return
    leader, follower = Candidate(await new_client()), Candidate(await new_client())
    await leader.election.elect(b"1")
    await follower.election.elect(b"2")
    key = leader.election.lock.check().key
    for candidate in (leader, follower):
        await backend.disconnect(candidate.client.session)
        await candidate.turns(UNKNOWN)
    observer = await new_client()
    await observer.session.delete(key)
    for candidate in (leader, follower):
        await backend.reconnect(candidate.client.session)
    await follower.turns(LEADING)
    await leader.turns(FOLLOWING)
    assert await leader.leader() == b"2"
