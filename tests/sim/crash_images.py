"""Every moment of a workload as a set of crash images, each booted and compared with the promises.

`Recorder` notes the file system and the promises before each call that changes something, and in
the middle of each change. From a moment come many images. One is of a kill, which leaves the page
cache, also in the middle of a write. The others are of power cuts, which keep any legal part of the
unsynced bytes: all, none or some. The real engine is started on each. Equal images with equal
promises count once.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from bookie.node.engine.engine import Engine
from bookie.testing.simulation.machine import Left, SimulatedMachine
from bookie.testing.simulation.platter import Cut, FileWrite, Image, cached
from tests.sim.observed import adopt, check
from tests.sim.promises import Client, Frozen, Promises

DEEP_SHARE = 0.15
"""Images whose engine takes more entries and is killed and started once more."""

DOUBLE_SHARE = 0.02
"""Images whose start is itself recorded, and crashed at one of its moments."""

NEW_LEDGER = 900
"""A ledger that no workload uses."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The world between two calls of the disk, or inside of one."""

    left: Left
    promises: Frozen
    version: int
    label: str
    inside: int | None = None
    """The inode that a call is changing right now."""


@dataclass(slots=True)
class Recorder:
    """Notes moments of the machine that it watches."""

    promises: Promises
    moments: list[Moment] = field(default_factory=list)

    def watch(self, machine: SimulatedMachine) -> None:
        """Note what happens on `machine` from now on."""

        def before(name: str, path: str) -> None:
            self._note(machine, f"before {name} {path}", None)

        def inside(name: str, path: str, inode: int) -> None:
            self._note(machine, f"inside {name} {path}", inode)

        machine.disk.moments = before
        machine.disk.inside = inside

    def _note(self, machine: SimulatedMachine, label: str, inode: int | None) -> None:
        if machine.disk.dead:
            return
        frozen = self.promises.frozen()
        label = f"{machine.left.lives}.{machine.disk.calls} {label}"
        self.moments.append(Moment(machine.leaves(), frozen, self.promises.version, label, inode))


@dataclass(slots=True)
class Tally:
    """What was tried."""

    images: int = 0
    moments: int = 0
    deep: int = 0
    double: int = 0
    seen: set[bytes] = field(default_factory=set)

    def add(self, other: Tally) -> None:
        """Count what another one counted."""
        self.images += other.images
        self.moments += other.moments
        self.deep += other.deep
        self.double += other.double


class BrokenPromiseError(AssertionError):
    """An image on which the engine does not keep its promises, and how to make it again."""


@dataclass(frozen=True, slots=True)
class CrashImage:
    """One image of a moment."""

    moment: Moment
    left: Left
    how: str
    power: bool


def tear_last_write(image: Image, inode: int, share: float) -> Image:
    """Return the image after a kill during a file's last write; the end of the write is missing."""
    content = image.contents[inode]
    if not content.pending:
        return image
    last = content.pending[-1]
    if not isinstance(last, FileWrite):
        return replace(
            image,
            contents={**image.contents, inode: replace(content, pending=content.pending[:-1])},
        )
    part = FileWrite(last.offset, last.data[: int(len(last.data) * share)])
    torn = replace(content, pending=(*content.pending[:-1], part))
    return replace(image, contents={**image.contents, inode: torn})


def images_of(moment: Moment, choose: random.Random, count: int) -> Iterator[CrashImage]:
    """About `count` images of a moment; fewer where there is little to decide."""
    left = moment.left
    if moment.inside is not None:
        # Inside of a call nobody was told anything of it, which matters to a kill only: it may
        # leave a part. What the power leaves of it is among the images of the next moment.
        share = choose.random()
        torn = replace(left, image=tear_last_write(left.image, moment.inside, share))
        yield CrashImage(moment, left.after_kill(choose), "killed inside", power=False)
        yield CrashImage(moment, torn.after_kill(choose), "killed inside, torn", power=False)
        return
    yield CrashImage(moment, left.after_kill(choose), "killed", power=False)
    if left.image.is_settled:
        yield _cut(moment, "nothing", choose.getrandbits(32))
        return
    for kept in ("nothing", "everything"):
        yield _cut(moment, kept, choose.getrandbits(32))
    # What one write may leave is more than what a name may leave.
    sizes = [
        len(operation.data)
        for content in left.image.contents.values()
        for operation in content.pending
        if isinstance(operation, FileWrite)
    ]
    for _ in range(count - 3 if sizes else min(6, count)):
        yield _cut(moment, "any", choose.getrandbits(32))


def _cut(moment: Moment, kept: str, seed: int) -> CrashImage:
    cut = Cut(random.Random(seed), kept)
    left = moment.left.after_power_cut(cut)
    return CrashImage(moment, left, f"power cut {kept} {seed}", power=True)


def signature(image: Image, version: int) -> bytes:
    """Equal for images that a boot cannot tell apart, with equal promises."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr((sorted(image.directories), sorted(image.names.items()))).encode())
    digest.update(repr(image.changes).encode())
    for number, content in sorted(image.contents.items()):
        digest.update(b"%d %d" % (number, id(content.tables)))
        digest.update(hashlib.blake2b(content.durable, digest_size=16).digest())
        if content.pending or content.base is not content.durable:
            digest.update(cached(content))
    digest.update(b"%d" % version)
    return digest.digest()


def try_image(
    crash: CrashImage, choose: random.Random, tally: Tally, changes: dict[str, object]
) -> None:
    """Start the engine on an image and compare; sometimes go on, sometimes crash again.

    Raises:
        BrokenPromiseError: the engine lied or did not start.
    """
    moment = crash.moment
    key = signature(crash.left.image, moment.version)
    if key in tally.seen:
        return
    tally.seen.add(key)
    tally.images += 1
    seed = choose.getrandbits(32)
    draw = choose.random()
    double = draw < DOUBLE_SHARE
    deep = DOUBLE_SHARE <= draw < DOUBLE_SHARE + DEEP_SHARE
    machine = SimulatedMachine(crash.left, seed, changes=changes)
    promises = Promises()
    promises.ledgers = dict(moment.promises)
    recorder = Recorder(promises)
    if double:
        recorder.watch(machine)
    try:
        machine.die_after(lambda engine: _look(engine, crash, promises, go_on=deep))
        if deep:
            tally.deep += 1
            again = SimulatedMachine(machine.leaves().after_kill(choose), seed, changes=changes)
            frozen = promises.frozen()
            again.die_after(lambda engine: check(engine, frozen, power=False))
        if double:
            tally.double += 1
            # Promises of the moment: until the start has ended, nobody was told anything.
            for later in recorder.moments:
                second = replace(later, promises=moment.promises, version=moment.version)
                for image in images_of(second, choose, 5):
                    stricter = replace(image, power=image.power or crash.power)
                    _try_again(stricter, seed, tally, changes)
    except BrokenPromiseError:
        raise
    except BaseException as error:
        raise BrokenPromiseError(
            f"{crash.moment.label}, {crash.how}: {innermost(error)!r}"
        ) from error


def _try_again(crash: CrashImage, seed: int, tally: Tally, changes: dict[str, object]) -> None:
    key = signature(crash.left.image, crash.moment.version)
    if key in tally.seen:
        return
    tally.seen.add(key)
    tally.images += 1
    machine = SimulatedMachine(crash.left, seed, changes=changes)
    try:
        machine.die_after(lambda engine: check(engine, crash.moment.promises, power=crash.power))
    except BaseException as error:
        raise BrokenPromiseError(
            f"boot {crash.moment.label}, {crash.how}: {innermost(error)!r}"
        ) from error


async def _look(engine: Engine, crash: CrashImage, promises: Promises, *, go_on: bool) -> None:
    await check(engine, crash.moment.promises, power=crash.power)
    if not go_on:
        return
    promises.ledgers = await adopt(engine, promises.ledgers)
    for ledger_id in promises.ledgers:
        promises.of(ledger_id)
    client = Client(engine, promises)
    await client.add(NEW_LEDGER, range(3))
    await client.checkpoint()
    await client.add(NEW_LEDGER, range(3, 5))
    for ledger_id, promise in sorted(promises.ledgers.items()):
        if promise.stored and ledger_id != NEW_LEDGER:
            await client.add(ledger_id, [max(promise.stored) + 1], recovery=True)


def innermost(error: BaseException) -> BaseException:
    """The first error of a group of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


DRAWS_MAX = 10
"""How often images are drawn for the same moments."""


def try_moments(
    moments: list[Moment],
    seed: int,
    count: int,
    changes: dict[str, object],
    images_min: int = 0,
) -> Tally:
    """Every image of every moment; `count` for a moment at which something is not synced.

    Many images turn out to be the same: others are drawn until there are `images_min`.
    """
    tally = Tally()
    for draw in range(DRAWS_MAX):
        for number, moment in enumerate(moments):
            choose = random.Random(f"images/{seed}/{number}" + draw * "/again")
            for crash in images_of(moment, choose, count):
                try_image(crash, choose, tally, changes)
            if draw and tally.images >= images_min:
                break
        if tally.images >= images_min:
            break
    tally.moments = len(moments)
    return tally
