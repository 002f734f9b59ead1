"""Bugs in the limits of a bookie: a peer could take all of it, or lose its part for ever."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_SHARES = "tests/unit/wire/grpc/server/test_shares.py"
_LINES = "tests/unit/wire/grpc/server/test_lines.py"
_TURNS = "tests/unit/env/test_turns.py"
_POLLER = "tests/unit/wire/grpc/test_grpc_poller.py"
_UNFINISHED = "tests/unit/daemon/test_unfinished.py"
_CONNECTIONS = "tests/unit/daemon/test_connections.py"

LIMITS_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "calls of all methods wait in one line",
        "bookie/wire/grpc/server/grpc_server.py",
        "        self._server.add_registered_method_handlers(SERVICE, self._gate.methods)\n",
        "",
        (f"{_LINES}::test_a_fence_does_not_wait_for_calls_of_other_methods",),
        "A fence would wait for a thousand opened streams, or be refused because of them.",
    ),
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
        "            ended.add(visit.peer)\n",
        "            ended.add(visit.peer + '0')\n",
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
    Mutant(
        "a fence that is forbidden takes no turn",
        "bookie/wire/grpc/server/read_stream.py",
        "            self._is_urgent = command.fence and not must_learn\n",
        "            self._is_urgent = command.fence\n",
        ("tests/unit/security/test_roles_on_streams.py"
         "::test_fencing_reads_skip_turns_once_they_are_permitted",),
        "Whoever may not fence would be answered before all others.",
    ),
    Mutant(
        "calls that are refused lengthen the line of fences",
        "bookie/wire/grpc/server/visits.py",
        "        self.turns.hurry()\n        principal = ANONYMOUS if caller is None else"
        " caller.principal\n        both = self.shares.enter(peer, principal,"
        " is_stream=is_stream, is_urgent=is_urgent)\n",
        "        principal = ANONYMOUS if caller is None else"
        " caller.principal\n        both = self.shares.enter(peer, principal,"
        " is_stream=is_stream, is_urgent=is_urgent)\n        self.turns.hurry()\n",
        (f"{_SHARES}::test_calls_that_are_refused_shorten_turns_as_well",),
        "A fence behind 300 of them would wait five times as long.",
    ),
    Mutant(
        "what pings receive is never forgotten",
        "bookie/daemon/unfinished.py",
        "            known.held = max(0, known.held + more - drift)\n",
        "            known.held = max(0, known.held + more)\n",
        (f"{_UNFINISHED}::test_what_pings_receive_is_forgotten",),
        "The oldest connections would end, although they hold nothing.",
    ),
    Mutant(
        "what was explained too much explains later bytes",
        "bookie/daemon/unfinished.py",
        "            known.held = max(0, known.held + more - drift)\n",
        "            known.held = known.held + more - drift\n",
        (f"{_UNFINISHED}::test_a_port_that_is_used_again",),
        "A peer with many small calls could hide a gigabyte afterwards.",
    ),
    Mutant(
        "a stream that is held back has no allowance",
        "bookie/daemon/unfinished.py",
        "            held[one.peer] = max(0, known.held - arrived.allowance)\n",
        "            held[one.peer] = known.held\n",
        (f"{_UNFINISHED}::test_a_look_allows_for_streams_that_are_held_back",),
        "A stall of a device would cost writers their connections.",
    ),
    Mutant(
        "a connection inherits the bytes of an earlier one",
        "bookie/daemon/unfinished.py",
        "            if known is None or known.connection != one:\n",
        "            if known is None:\n",
        (f"{_UNFINISHED}::test_a_port_that_is_used_again",),
        "A client that reuses a port would lose its connection.",
    ),
    Mutant(
        "a little too much ends small connections, too",
        "bookie/daemon/unfinished.py",
        " if size > LARGE_BYTES}\n",
        "}\n",
        (f"{_UNFINISHED}::test_who_must_end",),
        "Honest writers would pay for a peer that holds 20 MB.",
    ),
    Mutant(
        "the largest connection ends, of whatever address",
        "bookie/daemon/unfinished.py",
        "        address = max(addresses, key=addresses.__getitem__)\n",
        "        address = max(largest, key=lambda one: held[largest[one][-1]] if largest[one]"
        " else 0)\n",
        (f"{_UNFINISHED}::test_who_must_end",),
        "A host with many connections of middle size would outlive all others.",
    ),
    Mutant(
        "connections that are gone stay in the count",
        "bookie/daemon/unfinished.py",
        "        self._arrivals.keep(found.keys())\n",
        "",
        (f"{_UNFINISHED}::test_a_look_forgets_what_has_ended",),
        "Memory would grow with each connection that ever was.",
    ),
    Mutant(
        "no free descriptor ends the bound of unfinished messages",
        "bookie/daemon/unfinished.py",
        "            await asyncio.sleep(LOOK_SECONDS)\n            continue\n",
        "            return\n",
        (f"{_UNFINISHED}::test_a_failed_look_is_no_end",),
        "A flood of connections would switch the bound off.",
    ),
    Mutant(
        "what another socket has received counts",
        "bookie/daemon/connections.py",
        "        if socket_inode(connection.descriptor) != connection.inode:\n"
        "            return None\n",
        "",
        (f"{_CONNECTIONS}::test_what_another_socket_received_is_not_counted",),
        "A connection would end for bytes that its peer never sent.",
    ),
    Mutant(
        "the oldest connections end first",
        "bookie/daemon/connections.py",
        "        kept.sort(key=lambda each: each[:3], reverse=True)\n",
        "        kept.sort(key=lambda each: each[:3])\n",
        (f"{_CONNECTIONS}::test_who_works_stays_when_many_addresses_come_at_once",),
        "A flood would take the place of the clients that work.",
    ),
    Mutant(
        "the reserve is for everybody",
        "bookie/daemon/connections.py",
        "    excess = max(others - (bounds.in_all - bounds.reserved), len(kept) - bounds.in_all)\n",
        "    excess = len(kept) - bounds.in_all\n",
        (f"{_CONNECTIONS}::test_the_reserve_is_for_bookies_and_this_machine",),
        "No bookie could repair while clients fill the port.",
    ),
    Mutant(
        "an IPv4 address on a socket for IPv6 is another one",
        "bookie/daemon/connections.py",
        "            peer = plain_address(address)\n",
        "            peer = address\n",
        (f"{_CONNECTIONS}::test_addresses_of_ipv6_and_ipv4_on_one_socket",),
        "gRPC names it otherwise, so nothing that handlers take would be subtracted.",
    ),
    Mutant(
        "a connection that was ended is found again",
        "bookie/daemon/connections.py",
        "        self._known[connection.descriptor, connection.inode] = None\n",
        "",
        (f"{_CONNECTIONS}::test_a_connection_ends_once",),
        "It would be ended, and counted, until gRPC closes it.",
    ),
    Mutant(
        "each port may have all descriptors",
        "bookie/daemon/connections.py",
        "self._allowed // sockets))\n",
        "self._allowed))\n",
        (f"{_CONNECTIONS}::test_without_a_limit_the_setting_decides",),
        "Two ports together would leave none for files.",
    ),
    Mutant(
        "a refused stream without a request does not count",
        "bookie/wire/grpc/server/stream_handler.py",
        "            if self._untold is not None:\n",
        "            if self._untold is not None and self.is_brief:\n",
        ("tests/unit/wire/grpc/server/test_refused_calls.py"
         "::test_every_refused_call_counts_once",),
        "A flood of streams that are not permitted would not show in any metric.",
    ),
    Mutant(
        "a refused stream counts beside its requests",
        "bookie/wire/grpc/server/add_stream.py",
        "            self._untold = None\n",
        "",
        ("tests/unit/wire/grpc/server/test_refused_calls.py"
         "::test_each_request_of_a_refused_stream_counts",),
        "Counts of refusals would be too high by the streams.",
    ),
    Mutant(
        "a slow link counts as a client that is gone",
        "bookie/wire/grpc/server/visits.py",
        "        is_fast_enough = taken - visit.taken >= self._least\n",
        "        is_fast_enough = False\n",
        (f"{_SHARES}::test_a_client_on_a_slow_link_keeps_its_connection",),
        "At 64 KB/s, 4 MB of answers would cost a client its connection.",
    ),
    Mutant(
        "a trickle is enough for ever",
        "bookie/wire/grpc/server/visits.py",
        "        return is_fast_enough and (visit.looks - 1) * self._least < visit.held\n",
        "        return is_fast_enough\n",
        (f"{_SHARES}::test_patience_with_a_slow_client_ends",),
        "A peer could take one answer, and leave a share full of others for ever.",
    ),
    Mutant(
        "any byte is enough",
        "bookie/wire/grpc/server/visits.py",
        "        is_fast_enough = taken - visit.taken >= self._least\n",
        "        is_fast_enough = taken > visit.taken\n",
        (f"{_SHARES}::test_patience_with_a_slow_client_ends",),
        "Answers to pings would keep a connection whose client takes nothing.",
    ),
    Mutant(
        "megabytes wait in the kernel in front of a ping",
        "bookie/daemon/connections.py",
        "socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)\n",
        "socket.TCP_NOTSENT_LOWAT, 1 << 30)\n",
        (f"{_CONNECTIONS}::test_few_bytes_wait_in_the_kernel",),
        "A client that reads large answers on a slow link would lose its connection.",
    ),
)  # fmt: skip
