"""``bookie security``: makes a CA, certificates, token keys and tokens, and manages roles."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from bookie.cli.options import OptionalMetadata, Output, OutputFormat
from bookie.cli.output import Record, format_moment, print_records
from bookie.cli.role import app as role_app

app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)
app.add_typer(role_app, name="role", help="Who may do what in a cluster.")

DirectoryArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="The directory of the CA and its certificates.")
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The certificate's name.")]
Hosts = Annotated[
    list[str] | None,
    typer.Option(
        "--host",
        metavar="HOST",
        help="A host name or address at which clients reach the bookie; may be repeated.",
    ),
]
Days = Annotated[
    int | None,
    typer.Option(
        "--days",
        min=1,
        max=7300,
        help="How long it is valid; by default a year, and a CA ten.",
        show_default=False,
    ),
]


class Algorithm(enum.StrEnum):
    """The algorithm of a token key: EdDSA has a pair of keys, HS256 has one shared secret."""

    EDDSA = "EdDSA"
    HS256 = "HS256"


TokenDirectory = Annotated[
    Path, typer.Argument(metavar="DIR", help="The directory of the keys for tokens.")
]


@app.command("init")
def init(directory: DirectoryArgument, host: Hosts = None, days: Days = None) -> None:
    """Make a CA in a new directory, and the certificates of a bookie and of a client.

    The CA and its certificates are for trials and small clusters. The bookie's certificate names
    this machine, its loopback addresses, and every --host. `issue` makes more certificates. Do not
    store ca-key.pem on the machines of bookies and clients: with this key, an attacker can pretend
    to be any bookie or client.
    """
    import json
    import shlex
    import socket
    from contextlib import suppress

    from bookie.errors import BadRequestError
    from bookie.security import authority

    here = ["localhost", "127.0.0.1", "::1"]
    with suppress(BadRequestError):  # the machine's name may be an invalid host name
        authority.require_hosts([socket.gethostname()])
        here.append(socket.gethostname())
    hosts = list(dict.fromkeys([*here, *(host or [])]))
    authority.require_hosts(hosts)
    authority.create_authority(directory)
    authority.issue(directory, "bookie", hosts, days=days or authority.DAYS)
    authority.issue(directory, "client", days=days or authority.DAYS)
    print(f"{directory} holds a CA, and certificates for {', '.join(hosts)} and a client")
    print("\n[security]")
    for key, path in authority.settings_for(directory.absolute(), "bookie").items():
        print(f"{key} = {json.dumps(path, ensure_ascii=False)}")
    print("\nA client sets:\n")
    for key, path in authority.variables_for(directory.absolute(), "client").items():
        print(f"export {key}={shlex.quote(path)}")


@app.command("issue")
def issue(
    directory: DirectoryArgument, name: NameArgument, host: Hosts = None, days: Days = None
) -> None:
    """Make a certificate: with --host for a bookie, without --host for a client.

    A bookie's certificate must name the host that the bookie registers. The registered host is
    listen.advertised_host or, if that is empty, listen.host. If listen.host is a wildcard, the
    registered host is the name of the machine.
    """
    from bookie.security import authority

    authority.issue(directory, name, host or [], days=days or authority.DAYS)
    print(f"{authority.certificate_path(directory, name)}")
    print(f"{authority.key_path(directory, name)}")


@app.command("renew")
def renew(directory: DirectoryArgument, name: NameArgument, days: Days = None) -> None:
    """Replace a certificate by a new certificate for the same names, valid from now on.

    Running bookies and clients load the new certificate within seconds. If NAME is ca, the command
    renews the CA's own certificate. The CA keeps its key, so all certificates that it signed stay
    valid.
    """
    from bookie.security import authority

    authority.renew(directory, name, days=days)
    print(f"{authority.certificate_path(directory, name)}")


@app.command("show")
def show(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A file of certificates, or a CA's directory.")
    ],
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show the subject, the hosts, the issuer and the expiry of certificates."""
    from bookie.security.certificates import read_certificate_file

    paths = [path]
    if path.is_dir():
        paths = [one for one in sorted(path.glob("*.pem")) if not one.stem.endswith("-key")]
    records: list[Record] = []
    for one in paths:
        for facts in read_certificate_file(one):
            expires_ms = int(facts.expires_seconds * 1000)
            is_table = output is OutputFormat.TABLE
            records.append(
                {
                    "file": str(one),
                    "subject": facts.subject,
                    "names": ", ".join(facts.names) if is_table else list(facts.names),
                    "issuer": facts.issuer,
                    "expires": format_moment(expires_ms) if is_table else expires_ms,
                }
            )
    print_records(records, output)


@app.command("token-key")
def token_key(
    directory: TokenDirectory,
    algorithm: Annotated[
        Algorithm | None,
        typer.Option(
            "--algorithm",
            help="EdDSA, or HS256 with a secret that bookies know. Default: as before, else EdDSA.",
            show_default=False,
        ),
    ] = None,
    forget: Annotated[
        str | None,
        typer.Option(
            "--forget", metavar="KID", help="Make no key; remove this former one from the key set."
        ),
    ] = None,
) -> None:
    """Make a new key, which signs all later tokens, and add it to the keys in token-keys.json.

    Copy token-keys.json to every bookie (security.token_keys_file) before you make a token with the
    new key; running bookies load the file within seconds. Tokens of earlier keys stay valid until
    you forget their key by --forget. Do not store token-key.json on the machines of bookies and
    clients: with this file, an attacker can pretend to be any client. With HS256, token-keys.json
    contains the secrets, too.
    """
    from bookie.security import token_keys

    if forget is not None and algorithm is not None:
        raise typer.BadParameter("--forget makes no key, so it has no --algorithm")
    if forget is not None:
        token_keys.forget_key(directory, forget)
        print(f"{token_keys.key_set_path(directory)} holds {forget} no longer")
        return
    key_id = token_keys.create_key(directory, algorithm and algorithm.value)
    print(f"key {key_id} signs tokens from now on")
    print(f"{token_keys.signing_key_path(directory)}")
    print(f"{token_keys.key_set_path(directory)}")


@app.command("token")
def token(
    directory: TokenDirectory,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who shows the token: its subject.")],
    metadata: OptionalMetadata = None,
    audience: Annotated[
        str | None,
        typer.Option(
            "--audience",
            metavar="CLUSTER-ID",
            help="The id of the cluster; without it, the id is read from --metadata.",
        ),
    ] = None,
    minutes: Annotated[
        int, typer.Option("--minutes", min=1, max=525600, help="How long the token is good.")
    ] = 15,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="FILE",
            help="Replace this file (security.token_file) by one for this user alone, and print "
            "nothing.",
        ),
    ] = None,
) -> None:
    """Make and print a token, by which a client proves its name to bookies.

    The token is valid for one cluster. The only way to revoke a token before its expiry is to
    forget its key. So let a timer make tokens that are valid for a short time: running clients load
    a changed token file within seconds.
    """
    from bookie.cli.stores import on_store
    from bookie.cluster.instance import read_instance_id
    from bookie.env import SystemClock
    from bookie.security import token_keys
    from bookie.security.private_files import NewFile, replace_files

    if audience is None and metadata is None:
        raise typer.BadParameter("a token needs its cluster: --audience CLUSTER-ID or --metadata")
    if audience is None and metadata is not None:
        audience = on_store(metadata, read_instance_id)
    made = token_keys.make_token(
        directory,
        name,
        audience or "",
        seconds=minutes * 60,
        now_seconds=SystemClock().now_ms() / 1000,
    )
    if to is None:
        print(made)
    else:
        replace_files([NewFile(to, f"{made}\n".encode(), 0o600)])
