"""The root of the command line: the table of command groups, and every command's exit status.

The table `GROUPS` has the name, the module and one line of help for each command group. A module is
imported only when the user names its group. So ``bookie --help`` and the completion of a group's
name import no module, and take under 0.3 s.

===========  =====================================================================================
exit status  meaning
===========  =====================================================================================
0            the command succeeded
1            the command failed; one sentence on standard error says why
2            the command line or a setting is wrong
130          the user interrupted the command with Ctrl-C
141          the reader of the output ended before the command, like ``head``, or the terminal
             was closed; the command prints no message
===========  =====================================================================================

``bookie serve`` also exits with 3 if the metadata store was unreachable for too long. As in
``sysexits.h``, ``bookie serve`` exits with 74 if a disk failed, and with 78 if the configuration is
wrong. With ``BOOKIE_DEBUG=1`` every command also prints the traceback of an error.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_command

from bookie import __version__
from bookie.errors import BookieError, ConfigurationError

if TYPE_CHECKING:
    # typer contains its own copy of click, and passes click's types to subclasses of TyperGroup.
    from typer import _click

DEBUG_VARIABLE = "BOOKIE_DEBUG"

EXIT_FAILED = 1
EXIT_MISUSED = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
"""The status that a shell shows for a program killed by SIGPIPE: 128 + 13."""

GROUPS: dict[str, tuple[str, str]] = {
    "serve": ("bookie.cli.serve", "Run one bookie, the storage daemon."),
    "local": ("bookie.cli.local", "Run a whole cluster of bookie processes on this machine."),
    "cluster": (
        "bookie.cli.cluster",
        "Initialise a cluster, see its bookies, set what they share, remove it.",
    ),
    "namespace": ("bookie.cli.namespace", "Namespaces of logs, and what they decide for them."),
    "metadata": (
        "bookie.cli.metadata",
        "Look into a metadata store, change it, copy it, measure it.",
    ),
    "cookie": ("bookie.cli.cookie", "Cookies of a cluster's bookies: list, delete, move, restore."),
    "ledger": (
        "bookie.cli.ledger",
        "Create, append to, read, tail, recover, repair, explain and delete ledgers.",
    ),
    "log": (
        "bookie.cli.log",
        "Create, append to, read, tail, roll, truncate and delete logs; their cursors.",
    ),
    "group": ("bookie.cli.group", "Groups of consumers that share logs."),
    "repair": (
        "bookie.cli.repair",
        "Copies that come back: see how far they are, pause, audit, repair without a bookie.",
    ),
    "node": (
        "bookie.cli.node",
        "Ask one running bookie, switch it to read-only, let it check its data or free space.",
    ),
    "security": (
        "bookie.cli.security",
        "Certificates of bookies and clients, and what each may do.",
    ),
    "inspect": ("bookie.cli.inspect", "Look into a stopped bookie's directories."),
    "rebuild": ("bookie.cli.rebuild", "Rebuild the index of a stopped bookie from its files."),
    "bench": ("bookie.cli.bench", "Load a cluster and print latencies."),
    "config": ("bookie.cli.config", "Show, check and explain the settings of a bookie."),
    "spark": ("bookie.cli.spark", "Jobs on Spark: audit and repair all copies, statistics."),
    "demo": ("bookie.cli.demo", "Kill bookies under a writer, and get every byte back."),
    "torture": ("bookie.cli.torture", "Break a local cluster under a log, and check its promises."),
    "doctor": ("bookie.cli.doctor", "Is this machine fit to run a bookie?"),
}


class LazyGroup(TyperGroup):
    """The root command group, which imports a group's module only when the user names the group."""

    def list_commands(self, ctx: _click.Context) -> list[str]:
        """Return the names of the command groups in the order of the help."""
        return list(GROUPS)

    def get_command(self, ctx: _click.Context, cmd_name: str) -> _click.Command | None:
        """Import one command group and return it; return None for an unknown name."""
        found = GROUPS.get(cmd_name)
        if found is None:
            return None
        command = get_command(import_module(found[0]).app)
        command.name = cmd_name
        if isinstance(command, TyperGroup):
            command.help = found[1]
        return command

    def resolve_command(
        self, ctx: _click.Context, args: list[str]
    ) -> tuple[str | None, _click.Command | None, list[str]]:
        """Resolve a command; for an unknown name, let the base class suggest similar names."""
        if args[0] not in GROUPS:
            self.commands.update(dict.fromkeys(GROUPS, self))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: _click.Context, formatter: _click.HelpFormatter) -> None:
        """Write the help's table of command groups without importing any group."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in GROUPS.items()])


app = typer.Typer(
    name="bookie",
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"bookie {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False,
) -> None:
    """A storage node for replicated logs, and the tools around it."""


def run(args: list[str] | None = None) -> int:
    """Run one command line and return its exit status; print an error as one sentence.

    Args:
        args: the words after ``bookie``; None means the arguments of this process.
    """
    try:
        outcome: Any = get_command(app)(args=args, prog_name="bookie", standalone_mode=False)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except SystemExit as ended:
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        return _end(ended.__context__)  # after a broken pipe, typer itself would exit with 1
    except BaseExceptionGroup as group:
        return _end(_first_of(group))
    except Exception as error:  # noqa: BLE001  (the command line's top level: never a traceback)
        return _end(error)
    return outcome if isinstance(outcome, int) else 0


def _end(error: BaseException) -> int:
    """Print the error as one sentence; return the exit status."""
    match error:
        case KeyboardInterrupt():
            return EXIT_INTERRUPTED
        case typer.Abort():
            return _fail("nothing was done", EXIT_FAILED)
        case typer.TyperException():
            return _fail_usage(error)
        case ConfigurationError():
            return _fail(str(error), EXIT_MISUSED)
        case BookieError():
            return _fail(str(error) or type(error).__name__, EXIT_FAILED)
        case BrokenPipeError():
            _abandon_stdout()
            return EXIT_BROKEN_PIPE
        case OSError():
            return _fail(_describe_os_error(error), EXIT_FAILED)
        case _:
            hint = f"set {DEBUG_VARIABLE}=1 to see where"
            sentence = f"internal error, {type(error).__name__}: {error} ({hint})"
            return _fail(sentence, EXIT_FAILED)


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error in nested groups; the first error usually caused the other errors."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def main() -> NoReturn:
    """Run the command line of this process, then exit with its status."""
    # NumPy's linear algebra, which bookie does not use, would start a thread per core.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if DEBUG_VARIABLE not in os.environ:
        # Otherwise gRPC would also write its own lines about each failed handshake.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # under nohup, SIGHUP stays ignored
        signal.signal(signal.SIGHUP, _interrupt)
    _stand_in_for_closed()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name may contain bytes that are not text, or characters that a terminal cannot show.
        sys.stdout.reconfigure(errors="backslashreplace")
    status = run()
    try:
        sys.stdout.flush()
    except OSError as error:
        _abandon_stdout()
        is_gone = isinstance(error, BrokenPipeError) or error.errno == errno.EIO
        status = status or (EXIT_BROKEN_PIPE if is_gone else _end(error))
    sys.exit(status)


def _stand_in_for_closed() -> None:
    """Replace each closed standard stream with a stream whose reads or writes fail.

    Without the replacement, the next file that the process opens would get the descriptor of the
    closed stream. For example, a print could then write into a file of the metadata store.
    """
    names = ("stdin", "r", os.O_WRONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY)
    for descriptor, (name, mode, flags) in enumerate(names):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, flags)  # a read of stdin and a write to stdout fail
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            stand_in = open(descriptor, mode, closefd=False)  # noqa: SIM115  (as long as we live)
            setattr(sys, name, stand_in)


def _interrupt(*_signal: object) -> None:
    """Handle SIGHUP of a closed terminal like Ctrl-C, and ignore the kernel's second SIGHUP."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.raise_signal(signal.SIGINT)


def _fail(sentence: str, status: int) -> int:
    report(sentence)
    return status


def report(sentence: str) -> None:
    """Print one line on standard error; if BOOKIE_DEBUG is set, print the traceback first."""
    if os.environ.get(DEBUG_VARIABLE, "") not in ("", "0"):
        import traceback

        traceback.print_exc()
    print("bookie: " + " ".join(sentence.split()), file=sys.stderr)


def _fail_usage(error: typer.TyperException) -> int:
    """Print the mistake in the command line, and the help command; return the exit status.

    If the user named a group without a command, print the help of the group.
    """
    sentence = error.format_message()
    if sentence.startswith("Usage:"):
        print(sentence, file=sys.stderr)
        return error.exit_code
    context: _click.Context | None = getattr(error, "ctx", None)
    if context is not None:
        sentence = f"{sentence.rstrip('.')} (see '{context.command_path} --help')"
    return _fail(sentence, error.exit_code)


def _describe_os_error(error: OSError) -> str:
    reason = error.strerror or str(error)
    if error.errno == errno.EBADF and not error.filename:
        return "standard input or output is closed; open it, or send it to /dev/null"
    return f"{error.filename}: {reason}" if error.filename else reason


def _abandon_stdout() -> None:
    """Redirect standard output to /dev/null, so that the interpreter's last flush cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
