"""``bookie serve``: runs one bookie, the storage daemon."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bookie.cli.config import MetadataUri, Set, parse_overrides
from bookie.cli.options import ConfigFile
from bookie.errors import BookieError, ConfigurationError, SessionGivenUpError

if TYPE_CHECKING:
    from bookie.config import Sources

app = typer.Typer(add_completion=False, rich_markup_mode=None)

EXIT_FAILED = 1
"""The bookie cannot start now, but may start later; systemd restarts the bookie."""
EXIT_SESSION_GIVEN_UP = 3
"""The metadata store was away for longer than `[session]` allows; a restart may help."""
EXIT_MISCONFIGURED = 78
"""The status EX_CONFIG of sysexits.h: a restart helps only after a setting was corrected."""

_CERTIFICATES = "SSL_CERT_FILE"
"""The environment variable with which OpenSSL finds the file of CA certificates."""


@app.command("serve")
def serve(
    config: ConfigFile = None,
    overrides: Set = None,
    metadata: MetadataUri = None,
    stop_with_parent: Annotated[
        int | None,
        typer.Option("--stop-with-parent", hidden=True, help="Stop when this parent ends."),
    ] = None,
) -> int:
    """Run one bookie until SIGTERM, which makes the bookie stop in order.

    The bookie's settings come from the defaults, the cluster (`bookie cluster settings`), the file,
    the environment and the flags. Each source in this list overrides the sources before it. A file
    is optional: if the default directories fit, --metadata and --set bookie.id are enough.

    Exit status 0 means an orderly stop. Status 1 means that the bookie cannot start now: for
    example, another process has its port, or the metadata store is unreachable. Status 3 means that
    the metadata store was unreachable for longer than [session] allows. Status 74 means a failed
    disk. Status 78 means a wrong setting.
    """
    return run_service(
        config, overrides, metadata, _start_bookie, stop_with_parent=stop_with_parent
    )


def _start_bookie(sources: Sources) -> Coroutine[object, object, None]:
    from bookie.config import read_failpoints, read_supervision

    with _without_system_certificates():
        from bookie.daemon.daemon import run_daemon

    return run_daemon(sources, read_supervision(), read_failpoints())


@contextmanager
def _without_system_certificates() -> Iterator[None]:
    """Hide the system's CA certificates from Python's ssl module during the block.

    When aiohttp is imported, its client reads all CA certificates, which takes a twentieth of a
    bookie's start time. A bookie uses only aiohttp's server, which reads no CA certificates.
    """
    given = os.environ.get(_CERTIFICATES)
    os.environ[_CERTIFICATES] = os.devnull
    try:
        yield
    finally:
        if given is None:
            del os.environ[_CERTIFICATES]
        else:
            os.environ[_CERTIFICATES] = given


def run_service(
    config: Path | None,
    overrides: list[str] | None,
    metadata: str | None,
    start: Callable[[Sources], Coroutine[object, object, None]],
    *,
    stop_with_parent: int | None = None,
) -> int:
    """Run a service until it ends; return its exit status.

    Args:
        config: the settings file; None means the file that BOOKIE_CONFIG names, if any.
        overrides: the values of ``--set``, which override the file.
        metadata: the value of ``--metadata``, which overrides the file.
        start: imports the service, and returns the coroutine that runs the service.
        stop_with_parent: the id of the parent process, at whose end the service stops; or None.
    """
    from bookie.config import find_log_format, silence_grpc
    from bookie.daemon import signals
    from bookie.telemetry import configure_logging, log_uncaught, writes_json

    signals.ignore(*signals.NOTED_SIGNALS)
    given = parse_overrides(overrides, metadata)
    configure_logging("info", find_log_format(config, given))
    log_uncaught()
    silence_grpc()
    if not __debug__:
        sentence = "python -O removes the checks that protect data; start without it"
        return _refuse(sentence, EXIT_MISCONFIGURED)
    if stop_with_parent is not None:
        signals.stop_with_parent(stop_with_parent)
    # Switch garbage collection off during the imports: it would free almost nothing, and would take
    # a seventh of the start time. `run` switches garbage collection on again.
    gc.disable()
    try:
        from bookie.config import Sources
        from bookie.daemon.loop import run
        from bookie.env.process_tuning import ask_for_short_slices

        ask_for_short_slices()
        sources = Sources.read(config, given)
        run(start(sources))
    except ConfigurationError as error:
        return _refuse(str(error), EXIT_MISCONFIGURED)
    except SessionGivenUpError as error:
        return _refuse(str(error), EXIT_SESSION_GIVEN_UP)
    except BookieError as error:
        return _refuse(str(error), EXIT_FAILED)
    except Exception as error:
        if not writes_json():
            raise
        return _refuse(f"internal error, {type(error).__name__}: {error}", EXIT_FAILED, error)
    finally:
        gc.enable()
    return 0


def _refuse(sentence: str, status: int, bug: Exception | None = None) -> int:
    """Print why the process ends, as a JSON log line or as a sentence; return `status`."""
    from bookie.cli.app import report
    from bookie.telemetry import event_log, writes_json

    if writes_json():
        event_log(__name__).error("ended", bug, reason=sentence, exit_status=status)
    else:
        report(sentence)
    sys.stderr.flush()
    return status
