"""Bugs in rates: who is held back for whom, and what a client makes of it."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_RATES = "tests/unit/security/test_rates.py::test_"
_METER = "tests/unit/wire/server/test_rate_meter.py::test_"
_WRITER = "tests/unit/ledger/write/test_writer_rates.py::test_"
_READER = "tests/unit/ledger/read/test_reader.py::test_"
_SIM = "tests/cluster_sim/test_rates_sim.py::test_"

RATE_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "all names share one rate",
        "bookie/security/rates.py",
        '        return f"principal {principal}"\n',
        '        return "principal"\n',
        (
            f"{_RATES}a_caller_is_his_name_or_his_host",
            f"{_METER}each_name_has_a_rate_of_its_own_whatever_its_address",
        ),
        "A greedy client takes the rates of all others.",
    ),
    Mutant(
        "a refused request is charged",
        "bookie/security/rates.py",
        "        if spent:\n            self._limited(spent)\n",
        "        if spent:\n            self.charge(identity, ledger_id, traffic, size)\n"
        "            self._limited(spent)\n",
        (f"{_RATES}what_is_refused_is_not_charged",),
        "A client that asks often is never admitted again.",
    ),
    Mutant(
        "full buckets are kept",
        "bookie/security/rates.py",
        "        if not is_full and len(self._accounts) < self._accounts_max:\n",
        "        if len(self._accounts) < self._accounts_max:\n",
        (f"{_RATES}a_million_callers_are_forgotten_once_their_buckets_are_full",),
        "Callers that have gone fill the memory up to its bound.",
    ),
    Mutant(
        "buckets are never given up",
        "bookie/security/rates.py",
        "        if not is_full and len(self._accounts) < self._accounts_max:\n",
        "        if not is_full:\n",
        (f"{_RATES}memory_is_bounded_though_nobody_pays",),
        "Whoever has many addresses fills the memory.",
    ),
    Mutant(
        "adds of a recovery are limited",
        "bookie/wire/server/rate_meter.py",
        "not (command.recovery or self._is_exempt(command.ledger_id))",
        "not self._is_exempt(command.ledger_id)",
        (f"{_METER}an_add_beyond_the_rate_is_told_when_to_come_back",),
        "A ledger that nobody writes cannot be closed while its bookies are busy.",
    ),
    Mutant(
        "everybody is exempt where no roles are asked for",
        "bookie/wire/server/rate_meter.py",
        "            self._judged = caller if gatekeeper.is_required else None\n",
        "            self._judged = caller\n",
        (f"{_METER}without_roles_nobody_is_exempt_but_recovery",),
        "Rates would do nothing without roles.",
    ),
    Mutant(
        "an add that waits for room is charged twice",
        "bookie/wire/server/add_stream.py",
        "            if self._meter is not None and not admitted:\n",
        "            if self._meter is not None:\n",
        (f"{_METER}an_add_that_waits_for_room_is_charged_once",),
        "A busy bookie halves the rates of its clients, and refuses what it had admitted.",
    ),
    Mutant(
        "the time of an answer is ignored",
        "bookie/ledger/write/pacing.py",
        "        paced.retry_after_seconds = max(seconds, self._limits.resend_seconds)\n",
        "        paced.retry_after_seconds = self._limits.resend_seconds\n",
        (f"{_WRITER}the_writer_comes_back_when_it_was_told",),
        "Clients ask ten times a second for what they cannot have.",
    ),
    Mutant(
        "appends put off the deadline of a paced bookie",
        "bookie/ledger/write/pacing.py",
        "            for effect in self._send(slot, paced)\n",
        "            for effect in self._send(slot, paced) + self._deadline(slot)\n",
        (f"{_WRITER}appends_put_no_deadline_off",),
        "A bookie that hangs after a rate is never replaced while something is appended.",
    ),
    Mutant(
        "a close waits for a bookie that takes nothing",
        "bookie/ledger/write/writer.py",
        "        if waiting is None and is_held_up:\n            return self.delivery.skip(bit)\n",
        "",
        (
            f"{_WRITER}a_close_waits_no_longer_than_the_patience",
            f"{_WRITER}appends_wait_for_room_no_longer_than_the_patience",
        ),
        "Closes, and appends without room, hang for ever beside a bookie with a small rate.",
    ),
    Mutant(
        "a bookie that limits a writer is buried",
        "bookie/ledger/write/writer.py",
        "            return self.delivery.pacing.hold_back(slot, answer.retry_after_seconds)\n",
        "            return self._bury(bit)\n",
        (
            f"{_WRITER}a_bookie_that_names_a_time_is_not_replaced",
            f"{_SIM}nobody_is_replaced_for_a_rate",
        ),
        "A greedy client moves its ledgers from bookie to bookie.",
    ),
    Mutant(
        "deadlines excuse nobody",
        "bookie/ledger/write/writer.py",
        "        paced = self.delivery.pacing.mask & batch.slots\n",
        "        paced = 0\n",
        (
            f"{_WRITER}a_bookie_that_names_a_time_is_not_replaced",
            f"{_SIM}nobody_is_replaced_for_a_rate",
        ),
        "A bookie that wants a long pause is replaced for it.",
    ),
    Mutant(
        "a reader counts a pause as an attempt",
        "bookie/ledger/read/reader.py",
        "if soonest and part.waited_seconds + soonest <= self.limits.rate_patience_seconds:",
        "if False:",
        (f"{_READER}the_read_waits_for_the_shortest_time_that_was_named",),
        "Reads fail that would have gone on a second later.",
    ),
)
