"""The carrier by frames: its ends, its flow control, and whom it lets in."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_SERVER = "tests/unit/wire/frames/test_frames_server.py::test_"
_ABUSE = "tests/unit/wire/frames/test_frames_abuse.py::test_"
_CLIENT = "tests/unit/wire/frames/test_frames_client.py::test_"
_FORMAT = "tests/unit/wire/frames/test_frames_format.py::test_"
_TLS = "tests/unit/security/test_frames_tls.py::test_"
_TRANSPORTS = "tests/unit/ledger/connection/test_transports.py::test_"

FRAMES_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "a connection that closes counts as an end",
        "bookie/wire/frames/client.py",
        'self._finish(self._broken("the bookie closed the connection"))\n',
        "self._finish(None)\n",
        (f"{_CLIENT}a_listing_that_breaks_is_never_taken_for_whole",),
        "An auditor would believe that a bookie holds nothing more.",
    ),
    Mutant(
        "an end with a code counts as an end in order",
        "bookie/wire/frames/client.py",
        "self._finish(None if code is CallCode.OK else CallError(code, details))\n",
        "self._finish(None)\n",
        (f"{_CLIENT}a_listing_that_breaks_is_never_taken_for_whole",),
        "A listing that the bookie gave up would pass for a whole one.",
    ),
    Mutant(
        "reading goes on while nobody takes messages",
        "bookie/wire/frames/connection.py",
        "        if self._inbox_bytes > INBOX_BYTES_MAX:\n            self._pause()\n",
        "",
        (f"{_SERVER}while_the_node_takes_nothing_the_bookie_reads_nothing",),
        "A writer would fill the memory of a bookie whose disk is slow.",
    ),
    Mutant(
        "reading does not go on",
        "bookie/wire/frames/connection.py",
        "            self._transport.resume_reading()\n",
        "            pass\n",
        (f"{_SERVER}while_the_node_takes_nothing_the_bookie_reads_nothing",),
        "A stream that was held back once would stand still for ever.",
    ),
    Mutant(
        "a write does not wait for the peer",
        "bookie/wire/frames/connection.py",
        "        if not self._is_writable:\n            await self.until_writable()\n",
        "",
        (f"{_SERVER}answers_that_nobody_takes_wait_where_they_are_charged",),
        "A client that reads nothing would fill the memory with its answers.",
    ),
    Mutant(
        "an answer does not wait for earlier ones",
        "bookie/wire/frames/server.py",
        "        if not (self._is_writable or self._has_room_for(data)):\n"
        "            await self.until_writable()\n",
        "",
        (f"{_ABUSE}answers_to_cancelled_calls_do_not_gather",),
        "A client that reads nothing and cancels its calls would fill the memory.",
    ),
    Mutant(
        "a frame may have any size",
        "bookie/wire/frames/format.py",
        "            if size > (HELLO_BYTES_MAX + 1 if is_end else self.frame_bytes_max):\n",
        "            if size > END_BIT:\n",
        (f"{_FORMAT}a_frame_that_is_too_large_is_refused_by_its_size",),
        "Whoever announces 2 GiB and sends them gets them.",
    ),
    Mutant(
        "all units of a piece are handled in one turn",
        "bookie/wire/frames/format.py",
        "            if len(units) == UNITS_MAX:\n",
        "            if not UNITS_MAX:\n",
        (f"{_ABUSE}a_connection_handles_few_units_in_one_turn",),
        "A client of tiny frames would hold up all others, and their leases.",
    ),
    Mutant(
        "bytes behind an end are thrown away",
        "bookie/wire/frames/connection.py",
        "        if self._has_ended and nbytes:\n"
        '            raise BadRequestError("bytes follow the end")\n',
        "        if self._has_ended and nbytes:\n            return\n",
        (f"{_ABUSE}bytes_behind_an_end_end_the_connection",),
        "A client could keep the event loop busy for ever.",
    ),
    Mutant(
        "an announced size takes memory",
        "bookie/wire/frames/format.py",
        "min(_GROWTH * left, max(needed, SCRATCH_BYTES))",
        "needed",
        (f"{_FORMAT}an_announced_size_takes_no_memory",),
        "A few bytes on each of a thousand connections would take 8 GB.",
    ),
    Mutant(
        "a lost connection goes on",
        "bookie/wire/frames/served_calls.py",
        "        self._is_over = True\n",
        "",
        (f"{_ABUSE}a_lost_connection_with_calls_leaves_nothing",),
        "A client that comes and goes would fill the memory for ten minutes.",
    ),
    Mutant(
        "a cancelled call that waits is begun",
        "bookie/wire/frames/served_calls.py",
        "            if (data := queue.pop(request_id, None)) is not None:\n",
        "            if (data := queue.get(request_id * 0 - 1)) is not None:\n",
        (f"{_ABUSE}a_fence_does_not_wait_behind_calls_that_were_given_up",),
        "A recovery would wait for reads that nobody wants any more.",
    ),
    Mutant(
        "calls by frames take no turns",
        "bookie/wire/frames/served_calls.py",
        "        if self._turns.try_take(1):\n",
        "        if self._turns:\n",
        (f"{_ABUSE}one_address_begins_few_calls_in_one_turn",),
        "A client of a hundred connections would hold up all others for seconds.",
    ),
    Mutant(
        "no call by frames overtakes others",
        "bookie/wire/frames/served_calls.py",
        "self._urgent if self._is_urgent(rpc, request) else self._others",
        "self._others",
        (f"{_ABUSE}what_recovery_waits_for_overtakes",),
        "A log could not be opened while others read.",
    ),
    Mutant(
        "an end is not noticed while nothing is read",
        "bookie/wire/frames/server.py",
        "            idle[descriptor].abort()\n",
        "            pass\n",
        (f"{_ABUSE}an_end_is_noticed_while_nothing_is_read",),
        "What bounds connections and memory would end them in name only.",
    ),
    Mutant(
        "a stop does not wait for calls whose clients are gone",
        "bookie/wire/frames/server.py",
        "        if self._works:\n            # They use",
        "        if self._works and not self._tasks:\n            # They use",
        (f"{_ABUSE}a_stop_waits_for_calls_whose_clients_are_gone",),
        "They would use an engine that is closed.",
    ),
    Mutant(
        "the handshakes of all addresses share one bound",
        "bookie/wire/frames/server.py",
        "self._handshakes.setdefault(address, asyncio",
        'self._handshakes.setdefault("", asyncio',
        (f"{_TLS}silent_clients_delay_their_own_address_alone",),
        "A few silent connections would lock out everybody.",
    ),
    Mutant(
        "an unknown error of a call stops the bookie",
        "bookie/wire/frames/served_calls.py",
        "        except Exception as error:  # noqa: BLE001  (it would stop the bookie, whose",
        "        except OSError as error:  # noqa: BLE001  (it would stop the bookie, whose",
        (f"{_ABUSE}a_call_that_fails_beyond_its_answer_ends_only_its_connection",),
        "One client's call would end the calls of all.",
    ),
    Mutant(
        "a hello may take any time",
        "bookie/wire/frames/server.py",
        "self._timer = self._loop.call_later(port.settings.handshake_timeout_seconds, self.abort)",
        "self._timer = None",
        (f"{_SERVER}a_hello_has_a_time_limit",),
        "Silent connections would take the place of all others.",
    ),
    Mutant(
        "a client's certificate is not required",
        "bookie/wire/frames/server.py",
        "        if port.requires_certificate and not self._properties:\n",
        "        if port.requires_certificate and self._properties is None:\n",
        (f"{_TLS}strangers",),
        "Everybody who trusts the CA may write.",
    ),
    Mutant(
        "the names in a certificate are not passed on",
        "bookie/wire/frames/server.py",
        "(identity.common_name.encode(),) if identity.common_name else ()",
        "()",
        (f"{_TLS}roles_go_by_the_certificate",),
        "Nobody would have a role.",
    ),
    Mutant(
        "a stop ends connections at once",
        "bookie/wire/frames/server.py",
        "            async with asyncio.timeout(grace_seconds):\n",
        "            async with asyncio.timeout(0):\n",
        (f"{_SERVER}a_stop_answers_what_was_accepted_and_refuses_the_rest",),
        "Each restart would leave writers without the answers to their last adds.",
    ),
    Mutant(
        "a client takes frames without TLS instead of gRPC with TLS",
        "bookie/cluster/endpoints.py",
        "            if one.name == FRAMES and speaks_tls(one) == speaks_tls(by_grpc):\n",
        "            if one.name == FRAMES:\n",
        ("tests/unit/cluster/test_endpoints.py::test_frames_are_taken_where_they_are_as_safe",),
        "Whoever writes the metadata store could turn encryption off.",
    ),
    Mutant(
        "frames that have worked are never given up",
        "bookie/ledger/connection/chosen_channel.py",
        "(channel.is_failing and now >= self._doubt_at)",
        "False",
        (
            f"{_TRANSPORTS}a_client_goes_back_to_grpc_when_frames_fail",
            f"{_TRANSPORTS}frames_that_lead_to_another_bookie_are_not_taken",
        ),
        "A firewall that blocks the port of frames later would cut the client off.",
    ),
    Mutant(
        "a bookie that does not answer a stream counts for nothing",
        "bookie/wire/client/channel.py",
        "            None if self.is_framed else self._connect_timeout_seconds,\n",
        "            self._connect_timeout_seconds,\n",
        (f"{_TRANSPORTS}a_client_goes_back_to_grpc_when_frames_fail",),
        "A client that only appends would never go by gRPC behind a firewall that drops.",
    ),
    Mutant(
        "frames are taken before they are proven",
        "bookie/ledger/connection/chosen_channel.py",
        "self._pool.open_channel(offered[0], self._bookie_id)",
        "self._pool.open_channel(offered[-1], self._bookie_id)",
        (
            f"{_TRANSPORTS}frames_that_lead_nowhere_are_never_taken",
            f"{_TRANSPORTS}frames_that_lead_to_another_bookie_are_not_taken",
        ),
        "Each arrival of a bookie would interrupt the writers that frames do not reach.",
    ),
    Mutant(
        "a lane goes down when its carrier changes",
        "bookie/ledger/connection/pool.py",
        "        if not self._is_needed or self._stream is None or not self._stream.is_open:\n",
        "        if True:\n",
        (f"{_TRANSPORTS}frames_that_lead_nowhere_are_never_taken",),
        "Over a slow network each new client would replace healthy bookies.",
    ),
    Mutant(
        "a channel is known by its address alone",
        "bookie/ledger/connection/chosen_channel.py",
        "        (channel.address, channel.is_framed, channel.credentials is not None)\n"
        "        == (one.address, one.name == FRAMES, speaks_tls(one))\n",
        "        (channel.address, channel.credentials is not None)\n"
        "        == (one.address, speaks_tls(one))\n",
        (f"{_TRANSPORTS}a_bookie_may_come_back_with_the_ports_swapped",),
        "gRPC would talk to the port of frames for ever.",
    ),
)
