"""Bugs in the limits of a bookie: a peer could take all of it, or lose its part for ever."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_SHARES = "tests/unit/wire/grpc/server/test_shares.py"
_TURNS = "tests/unit/env/test_turns.py"
_POLLER = "tests/unit/wire/grpc/test_grpc_poller.py"

LIMITS_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "a read that the whole has no room for keeps its share",
        "bookie/wire/grpc/server/read_budget.py",
        "            visit.end_read(charge)\n            raise",
        "            raise",
        (f"{_SHARES}::test_reads_that_the_whole_has_no_room_for_return_their_share",),
        "A peer that was refused often enough could never read again.",
    ),
    Mutant(
        "the adds of a broken stream keep their share",
        "bookie/wire/grpc/server/add_stream.py",
        "            if not left:\n                self._visit.end_add(rest)\n",
        "",
        (f"{_SHARES}::test_a_broken_stream_holds_its_share_until_its_adds_are_done",),
        "A writer that reconnects often would be held back for ever.",
    ),
    Mutant(
        "the shares of a call are never forgotten",
        "bookie/wire/grpc/server/shares.py",
        "            if share.is_empty and shares.get(share.key) is share:\n",
        "            if not share and shares.get(share.key) is share:\n",
        (f"{_SHARES}::test_who_holds_nothing_is_forgotten",),
        "A million names would fill the memory.",
    ),
    Mutant(
        "the share of an identity is not checked",
        "bookie/wire/grpc/server/visits.py",
        "        return Visit(self, peer, both, is_stream=is_stream)\n",
        "        return Visit(self, peer, both[:1], is_stream=is_stream)\n",
        (f"{_SHARES}::test_another_connection_of_an_identity_has_no_share_of_its_own",),
        "Whoever opens a thousand connections takes the whole bookie.",
    ),
    Mutant(
        "a client that takes no answers keeps its connection",
        "bookie/wire/grpc/server/visits.py",
        "            self._to_end.add(visit.peer)\n",
        "            self._to_end.add(visit.peer + '0')\n",
        (f"{_SHARES}::test_a_client_that_takes_no_answers_loses_its_connection",),
        "gRPC would keep its answers for ever.",
    ),
    Mutant(
        "no wait for a client is bounded",
        "bookie/wire/grpc/server/stream_handler.py",
        "        visit.sends()\n        try:\n",
        "        try:\n",
        (f"{_SHARES}::test_a_client_that_takes_no_answers_loses_its_connection",),
        "A slow reader would hold its share for ever.",
    ),
    Mutant(
        "a call without a deadline waits for ever",
        "bookie/wire/grpc/server/service.py",
        "        visit.works()\n        return caller, visit\n",
        "        return caller, visit\n",
        (f"{_SHARES}::test_a_call_without_a_deadline_is_given_up",),
        "Reads of a device that hangs would pile up.",
    ),
    Mutant(
        "a recovery waits for its turn",
        "bookie/wire/grpc/server/add_stream.py",
        "            self._is_urgent = command.recovery\n",
        "",
        (f"{_SHARES}::test_recovery_adds_take_no_turn",),
        "A log could not be opened while others write.",
    ),
    Mutant(
        "a line keeps its place at the front",
        "bookie/env/turns.py",
        "            waiting = lines.pop(line)\n",
        "            waiting = lines[line] if len(lines[line]) > 1 else lines.pop(line)\n",
        (f"{_TURNS}::test_lines_take_turns",),
        "A peer with many streams would be served before all others.",
    ),
    Mutant(
        "gRPC's thread waits for the event loop",
        "bookie/config/grpc_poller.py",
        "                writing.setblocking(False)\n",
        "                writing.setblocking(True)\n",
        (f"{_POLLER}::test_pairs_that_others_make_stay_as_they_are",
         f"{_POLLER}::test_a_full_pair_of_a_server_does_not_block"),
        "Under load, a fence on another connection waits for seconds.",
    ),
)  # fmt: skip
