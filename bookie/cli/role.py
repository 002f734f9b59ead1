"""``bookie security role``: grants, revokes and lists the roles of principals in a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bookie.cli.options import Metadata, Output, OutputFormat
from bookie.cli.output import Record, print_records
from bookie.cli.stores import on_store
from bookie.errors import BadRequestError
from bookie.ids import DIGITS_MAX
from bookie.security.rights import Role

if TYPE_CHECKING:
    from bookie.security.grants import Grants, GrantScope

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

PrincipalArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="The name in the certificate or token. NAME* means all that begin so; 'anonymous' is "
        "who shows neither.",
    ),
]
Ledgers = Annotated[
    str | None,
    typer.Option("--ledgers", metavar="FIRST-LAST", help="Only ledgers with these ids."),
]
Log = Annotated[
    str | None,
    typer.Option(
        "--log",
        metavar="NAMESPACE/LOG",
        help="Only this log; with * at its end, all such logs.",
    ),
]
NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", metavar="NAME", help="Only logs of this namespace.")
]


@app.command("grant")
def grant(
    name: PrincipalArgument,
    role: Annotated[Role, typer.Argument(help="What the name may do.")],
    metadata: Metadata,
    ledgers: Ledgers = None,
    log: Log = None,
    namespace: NamespaceOption = None,
) -> None:
    """Give a role to a name. Running bookies apply the change within a second.

    A reader may read. A writer may read and write. A recoverer may read, fence and recover. The
    owner of a log needs the roles writer and recoverer. A repairer may copy entries, so each bookie
    needs this role. An admin may do everything.
    """
    from bookie.cluster.role_grants import RoleGrants
    from bookie.security.grants import Grant

    wanted = Grant(name, role, _scope(ledgers, log, namespace))
    is_new = on_store(metadata, lambda store: RoleGrants(store).grant(wanted))
    print(f"{name} is {role.value} for {wanted.scope}" if is_new else f"{name} had this role")


@app.command("revoke")
def revoke(
    name: PrincipalArgument,
    metadata: Metadata,
    role: Annotated[
        Role | None, typer.Argument(help="Which role; all of them if left out.", show_default=False)
    ] = None,
    ledgers: Ledgers = None,
    log: Log = None,
    namespace: NamespaceOption = None,
) -> None:
    """Take roles from a name. Within a second, bookies apply this, also to open connections."""
    from bookie.cluster.role_grants import RoleGrants

    is_limited = any(one is not None for one in (ledgers, log, namespace))
    scope = _scope(ledgers, log, namespace) if is_limited else None
    taken = on_store(metadata, lambda store: RoleGrants(store).revoke(name, role, scope))
    if not taken:
        raise BadRequestError(f"{name} has no such role; see bookie security role list")
    print(f"{name} lost {taken} role{'s' if taken > 1 else ''}")


@app.command("list")
def list_(metadata: Metadata, output: Output = OutputFormat.TABLE) -> None:
    """List the roles of each name, and the ledgers or logs to which each role is limited."""
    from bookie.cluster.role_grants import RoleGrants

    grants = on_store(metadata, lambda store: RoleGrants(store).read())
    print_records(_records(grants), output)


def _records(grants: Grants) -> list[Record]:
    return [
        {"name": one.principal, "role": one.role.value, "for": str(one.scope)}
        for one in sorted(grants.all, key=lambda x: (x.principal, x.role.value, str(x.scope)))
    ]


def _scope(ledgers: str | None, log: str | None, namespace: str | None) -> GrantScope:
    """Return the scope to which the options limit a role; without options, the whole cluster.

    Raises:
        BadRequestError: several options are given, or an option is malformed.
    """
    from bookie.security.grants import EVERYTHING, GrantScope

    if sum(one is not None for one in (ledgers, log, namespace)) > 1:
        raise BadRequestError("give one of --ledgers, --log and --namespace")
    if ledgers is not None:
        first, dash, last = ledgers.partition("-")
        last = last if dash else first
        if not all(one.isdecimal() and len(one) <= DIGITS_MAX for one in (first, last)):
            raise BadRequestError(f"--ledgers {ledgers} is not FIRST-LAST, such as 0-999")
        return GrantScope(int(first), int(last))
    if namespace is not None:
        if not namespace or set(namespace) & set("/*"):
            raise BadRequestError(f"--namespace {namespace} is not the name of a namespace")
        return GrantScope(log=f"{namespace}/*")
    if log is None:
        return EVERYTHING
    if not log:
        raise BadRequestError("--log is empty; leave it out if all logs are meant")
    return GrantScope(log=log)
