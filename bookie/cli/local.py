"""``bookie local``: runs a whole cluster of bookie processes on this machine."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bookie.cli.output import table_lines

if TYPE_CHECKING:
    import asyncio

    from bookie.daemon.local.supervisor import LocalCluster

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("local")
def local(
    data: Annotated[
        Path,
        typer.Option(
            "--data",
            "-d",
            metavar="DIR",
            help="The directory of everything that the cluster keeps.",
        ),
    ],
    bookies: Annotated[
        int | None,
        typer.Option(
            "--bookies",
            "-n",
            min=1,
            max=64,
            help="The number of bookies; by default those that DIR holds, or 3.",
            show_default=False,
        ),
    ] = None,
    metadata: Annotated[
        str | None,
        typer.Option(
            "--metadata",
            "-m",
            metavar="URI",
            help="A metadata store other than the embedded one, local://DIR/metadata.",
        ),
    ] = None,
    base_port: Annotated[
        int | None,
        typer.Option(
            "--base-port",
            min=1,
            max=65000,
            help="The first port, two for each bookie; by default free ones from 10000 to 19999.",
            show_default=False,
        ),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start a bookie again when it dies.")
    ] = False,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure", help="Speak TLS, with a CA and certificates in DIR/security; for good."
        ),
    ] = False,
) -> None:
    """Run a whole cluster of bookie processes on this machine until Ctrl-C.

    The cluster also stops if its terminal is closed. If you start the command again on the same
    directory, the cluster has the same data and ports.
    """
    import asyncio

    asyncio.run(_run(data.absolute(), bookies, metadata, base_port, restart, secure=secure))


async def _run(
    data: Path,
    bookies: int | None,
    metadata: str | None,
    base_port: int | None,
    restart: bool,
    *,
    secure: bool,
) -> None:
    from bookie.daemon.local.supervisor import local_cluster
    from bookie.daemon.signals import USER_SIGNALS, ignore, noting, until_signal

    ignore(*USER_SIGNALS)
    print(f"starting the cluster in {data} …", flush=True)
    async with (
        until_signal(hangup=True) as stop_requested,
        local_cluster(
            data, bookies=bookies, metadata_uri=metadata, base_port=base_port, secure=secure
        ) as cluster,
    ):
        _print_cluster(cluster)
        with noting(*USER_SIGNALS, note=_note_signal):
            await _until_stopped(cluster, stop_requested, restart=restart)
        _report("stopping …")
    _report(f"stopped; the same command starts it again with its data in {cluster.directory}")


async def _until_stopped(
    cluster: LocalCluster, stop_requested: asyncio.Event, *, restart: bool
) -> None:
    """Watch the bookie processes until a stop is requested, or until all processes have ended."""
    import asyncio

    from bookie.daemon.local.supervisor import watch_processes

    async with asyncio.TaskGroup() as group:
        watching = group.create_task(watch_processes(cluster, _report, restart=restart))
        stopping = group.create_task(stop_requested.wait())
        await asyncio.wait((watching, stopping), return_when=asyncio.FIRST_COMPLETED)
        watching.cancel()
        stopping.cancel()


def _note_signal(name: str) -> None:
    _report(f"{name} does nothing here; Ctrl-C stops the cluster")


def _report(sentence: str) -> None:
    """Print a line; ignore errors, because the cluster must outlive its terminal or pipe."""
    import contextlib

    with contextlib.suppress(OSError):
        print(sentence, flush=True)


def _print_cluster(cluster: LocalCluster) -> None:
    scheme = "https" if cluster.client_variables else "http"
    lines = table_lines(
        [
            {
                "bookie": bookie.id,
                "address": bookie.address,
                "pid": bookie.pid,
                "metrics": f"{scheme}://127.0.0.1:{bookie.member.http_port}/metrics",
                "log": str(bookie.log_path),
            }
            for bookie in cluster.bookies
        ]
    )
    print(*lines, sep="\n")
    for name in cluster.departed:
        home = shlex.quote(str(cluster.directory / name))
        print(f"{name} has left the cluster and is not started; `rm -r {home}` frees its space")
    command = _own_command()
    size = min(3, len(cluster.bookies))
    sizes = ("ensemble_size", "write_quorum_size", "ack_quorum_size")
    exports = "".join(
        f"  export {name}={shlex.quote(value)}\n"
        for name, value in cluster.client_variables.items()
    )
    quorums = "" if size == 3 else "".join(f" --set {name}={size}" for name in sizes)
    print(
        f"""
The cluster is up. In another terminal:

  export BOOKIE_METADATA={shlex.quote(cluster.metadata_uri)}
{exports}  {command} log create first{quorums}
  seq 1000 | {command} log append first   # one record a line
  {command} log read first | tail -3
  {command} cluster bookies

Ctrl-C here stops it.""",
        flush=True,
    )


def _own_command() -> str:
    """Return a shell command that starts this program, in the form that the user typed."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m bookie"
    import shutil

    found = shutil.which(program.name)
    if found is not None and Path(found).resolve() == program.resolve():
        return program.name
    return shlex.quote(str(program.absolute()))
