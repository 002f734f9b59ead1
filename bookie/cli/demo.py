"""``bookie demo``: kills bookies while a file is streamed into them, and loses no byte.

1. The command makes a file from the sources of the installed Python.
2. The command starts five bookies, and streams the file into a ledger with three copies and ack
   quorum two.
3. The command kills bookies of the ledger with SIGKILL, one after another, until two bookies are
   left. The writer continues to append.
4. The command starts the killed bookies again, and one of them joins the ledger.
5. Near the end of the file, the command kills all bookies while appends are in flight.
6. The command starts all bookies again, recovers the ledger, reads the ledger back, and compares
   SHA-256 digests.
"""

from __future__ import annotations

import asyncio
import hashlib
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated

import typer

from bookie.cli.options import Output, OutputFormat
from bookie.cli.output import Record, print_records
from bookie.cli.progress import Advance, progress_bar

if TYPE_CHECKING:
    from bookie.api import BookKeeper, WriterHandle
    from bookie.daemon.local.supervisor import LocalCluster

app = typer.Typer(add_completion=False, rich_markup_mode=None)

ENTRY_BYTES = 8 * 1024
GROUP_ENTRIES = 128
GROUPS_IN_FLIGHT_MAX = 8
KILLS_AT = (0.2, 0.4, 0.6)
START_AT = 0.75
KILL_ALL_AT = 0.95
JOIN_SECONDS_MAX = 30.0


@app.command("demo")
def demo(
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", "-d", metavar="DIR", help="Keep everything here; without it nothing is kept."
        ),
    ] = None,
    megabytes: Annotated[
        int, typer.Option("--megabytes", min=1, help="The amount of text to stream.")
    ] = 200,
    output: Output = OutputFormat.TABLE,
) -> int:
    """Stream text into five bookies, kill them with SIGKILL, and read every byte back."""
    with nullcontext(data) if data is not None else tempfile.TemporaryDirectory() as directory:
        story = asyncio.run(Demonstration(Path(directory).absolute(), megabytes * 1_000_000).run())
    print_records(story.steps, output)
    if not story.kept:
        print("what was read back is not what was acknowledged")
    return 0 if story.kept else 1


@dataclass(slots=True)
class Story:
    """The steps of a demonstration; each step is recorded when it has ended."""

    started: float = 0.0
    steps: list[Record] = field(default_factory=list)
    kept: bool = False
    """True if the demonstration read all acknowledged entries back unchanged."""

    def tell(self, step: str, **figures: object) -> None:
        """Record a step that has just ended, with the step's figures."""
        said = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in figures.items())
        at = round(asyncio.get_running_loop().time() - self.started, 1)
        self.steps.append({"at_seconds": at, "step": step, "figures": said})


def make_text(path: Path, size: int) -> int:
    """Write Python's installed sources to the file repeatedly, until it has `size` bytes or more.

    Returns:
        the size of the file in bytes.
    """
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    written = 0
    with path.open("wb") as file:
        while written < size:
            for source in sources:
                try:
                    written += file.write(source.read_bytes())
                except OSError:
                    continue  # the installation of Python has a broken link
                if written >= size:
                    break
    return written


def entries_of(path: Path) -> Iterator[list[bytes]]:
    """Yield the content of the file as groups of up to `GROUP_ENTRIES` entries."""
    with path.open("rb") as file:
        while data := file.read(ENTRY_BYTES * GROUP_ENTRIES):
            yield [data[at : at + ENTRY_BYTES] for at in range(0, len(data), ENTRY_BYTES)]


@dataclass(slots=True)
class Demonstration:
    """One run of the demonstration, in one directory."""

    directory: Path
    size: int
    story: Story = field(default_factory=Story)
    acknowledged: int = 0
    """The number of entries from the first entry on that are all acknowledged."""
    ledger_id: int = -1

    async def run(self) -> Story:
        """Run the whole demonstration and return its recorded steps."""
        from bookie.daemon.local.supervisor import local_cluster, start_all

        self.story.started = asyncio.get_running_loop().time()
        self.directory.mkdir(parents=True, exist_ok=True)
        text = self.directory / "text"
        self.size = make_text(text, self.size)
        self.story.tell("made a file of Python sources", bytes=self.size)
        async with local_cluster(self.directory / "cluster", bookies=5) as cluster:
            self.story.tell("started five bookies", ports=_ports(cluster))
            with progress_bar("writing", total=self.size) as advance:
                await self._write(cluster, text, advance)
            await start_all(cluster.bookies)
            self.story.tell("started all bookies again", ports=_ports(cluster))
            with progress_bar("reading back", total=self.size) as advance:
                await self._read_back(cluster, text, advance)
        return self.story

    async def _write(self, cluster: LocalCluster, text: Path, advance: Advance) -> None:
        """Append the text to a ledger, and kill bookies meanwhile; at the end kill all bookies."""
        async with _connect(cluster) as client:
            writer = await client.create_ledger(
                ensemble_size=3, write_quorum_size=3, ack_quorum_size=2
            )
            self.ledger_id = writer.ledger_id
            kills, start_at = list(KILLS_AT), START_AT
            async with _Appends(self, writer, advance) as appends:
                for group in entries_of(text):
                    await appends.start(group)
                    share = self.acknowledged * ENTRY_BYTES / self.size
                    if kills and share >= kills[0]:
                        kills.pop(0)
                        await self._kill(cluster, _victim(cluster, writer))
                        appends.begin_watch()
                    elif share >= start_at:
                        start_at = 2.0
                        self._tell_pause(appends)
                        await self._bring_back(cluster, writer)
                    if share >= KILL_ALL_AT:
                        break
                    if len(kills) < len(KILLS_AT) and appends.has_gone_on:
                        self._tell_pause(appends)
                in_flight = writer.last_entry_id + 1 - self.acknowledged
                async with asyncio.TaskGroup() as killing:
                    for bookie in cluster.bookies:
                        if bookie.pid is not None:
                            killing.create_task(self._kill(cluster, bookie.id))
        self.story.tell(
            "the writer has lost its ledger",
            entries_acknowledged=self.acknowledged,
            in_flight_at_the_kill=in_flight,
            fragments=len(writer.metadata.fragments),
        )

    async def _kill(self, cluster: LocalCluster, bookie_id: str) -> None:
        await cluster.bookie(bookie_id).kill()
        self.story.tell(f"killed {bookie_id} with -9", entries_acknowledged=self.acknowledged)

    def _tell_pause(self, appends: _Appends) -> None:
        """Record the longest time without an acknowledgement since the last kill."""
        if appends.is_watching:
            self.story.tell("the writer goes on", longest_pause_ms=round(appends.end_watch() * 1e3))

    async def _bring_back(self, cluster: LocalCluster, writer: WriterHandle) -> None:
        """Start the killed bookies, and wait until new entries have three copies again.

        The wait lasts at most `JOIN_SECONDS_MAX`.
        """
        from bookie.daemon.local.supervisor import start_all

        await start_all([bookie for bookie in cluster.bookies if bookie.pid is None])
        with suppress(TimeoutError):
            async with asyncio.timeout(JOIN_SECONDS_MAX):
                while writer.is_under_replicated:  # noqa: ASYNC110  (the writer has no such event)
                    await asyncio.sleep(0.05)
        copies = 2 if writer.is_under_replicated else 3
        self.story.tell("started the dead bookies again", copies_of_new_entries=copies)

    async def _read_back(self, cluster: LocalCluster, text: Path, advance: Advance) -> None:
        """Recover the ledger, read all its entries, and compare them with the text."""
        async with _connect(cluster) as client:
            reader = await client.open_ledger(self.ledger_id, recover=True)
            entries = reader.last_entry_id + 1
            self.story.tell("recovered and closed the ledger", entries=entries)
            read, acknowledged = hashlib.sha256(), ""
            count = 0
            async for batch in reader.read_batches(0, reader.last_entry_id):
                for entry in batch:
                    read.update(entry.payload)
                    count += 1
                    if count == self.acknowledged:
                        acknowledged = read.hexdigest()
                advance(sum(len(entry.payload) for entry in batch))
        self.story.tell("read every entry back", entries=count)
        self._judge(text, count, acknowledged, read.hexdigest())

    def _judge(self, text: Path, entries: int, acknowledged: str, everything: str) -> None:
        """Compare the entries that were read with the file, and record the verdict.

        The verdict is good if all acknowledged entries were read, and if every entry equals its
        part of the file.
        """
        wanted = sha256_of(text, self.acknowledged * ENTRY_BYTES)
        self.story.kept = acknowledged == wanted and everything == sha256_of(
            text, entries * ENTRY_BYTES
        )
        self.story.tell("SHA-256 of what was acknowledged", in_the_file=wanted[:16])
        self.story.tell(
            "SHA-256 of what came back",
            read=acknowledged[:16],
            identical="yes" if self.story.kept else "NO",
        )


def sha256_of(path: Path, size: int) -> str:
    """Return the SHA-256 of the first `size` bytes of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while size > 0 and (data := file.read(min(size, 1 << 20))):
            digest.update(data)
            size -= len(data)
    return digest.hexdigest()


def _ports(cluster: LocalCluster) -> str:
    return " ".join(str(bookie.member.port) for bookie in cluster.bookies)


def _connect(cluster: LocalCluster) -> BookKeeper:
    """Return a client that uses no TLS, even if environment variables name certificates."""
    from bookie.api import connect

    return connect(
        cluster.metadata_uri, ca_file="", certificate_file="", key_file="", token_file=""
    )


def _victim(cluster: LocalCluster, writer: WriterHandle) -> str:
    """Return a running bookie that receives the ledger's new entries."""
    bookies = writer.metadata.last_fragment.bookies
    return next(one for one in bookies if cluster.bookie(one).pid is not None)


class _Appends:
    """Runs appends concurrently, and cancels unacknowledged appends when the context ends."""

    def __init__(self, run: Demonstration, writer: WriterHandle, advance: Advance) -> None:
        self._run = run
        self._writer = writer
        self._advance = advance
        self._window = asyncio.Semaphore(GROUPS_IN_FLIGHT_MAX)
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()
        self._done: dict[int, int] = {}
        self._watched_since = self._answered_at = self._longest = 0.0
        self._answers = 0

    def begin_watch(self) -> None:
        """Begin to measure the longest time between two acknowledgements."""
        self._watched_since = self._answered_at = asyncio.get_running_loop().time()
        self._longest, self._answers = 0.0, 0

    @property
    def is_watching(self) -> bool:
        """True while a measurement runs, from `begin_watch` to `end_watch`."""
        return self._watched_since > 0

    @property
    def has_gone_on(self) -> bool:
        """True if enough acknowledgements came after `begin_watch` to end the measurement."""
        return self.is_watching and self._answers > 2 * GROUPS_IN_FLIGHT_MAX

    def end_watch(self) -> float:
        """End the measurement; return the longest time between two acknowledgements in seconds."""
        self._watched_since = 0.0
        return self._longest

    async def start(self, entries: list[bytes]) -> None:
        """Wait while too many appends are in flight, then start a task that appends `entries`."""
        await self._window.acquire()
        task = self._group.create_task(self._append(entries))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _append(self, entries: list[bytes]) -> None:
        ids = await self._writer.append_many(entries)
        self._done[ids.start] = ids.stop
        # Acknowledgements come in order, but the waiting tasks may wake in another order.
        while self._run.acknowledged in self._done:
            self._run.acknowledged = self._done.pop(self._run.acknowledged)
        self._advance(sum(map(len, entries)))
        now = asyncio.get_running_loop().time()
        self._longest = max(self._longest, now - self._answered_at)
        self._answered_at = now
        self._answers += 1
        self._window.release()

    async def __aenter__(self) -> _Appends:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in list(self._tasks):
            task.cancel()
        await self._group.__aexit__(kind, error, traceback)
