"""Settings: sources and their order, refusals in one sentence, and the files that list them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from bookie.config import (
    BookieSettings,
    ClientSettings,
    NodeSettings,
    Settings,
    Sources,
    StorageSettings,
    check_cluster_settings,
    find_log_format,
    load_settings,
    read_failpoints,
    read_supervision,
    render_defaults,
    render_toml,
)
from bookie.config.quantities import format_size, parse_size
from bookie.errors import ConfigurationError
from bookie.ids import ENTRY_SIZE_BYTES_MAX

ROOT = Path(__file__).parents[2]


def load(
    text: str = "",
    tmp_path: Path | None = None,
    flags: dict[str, str] | None = None,
    **variables: str,
) -> Settings:
    """Settings from the text of a file, flags and variables, never from this process."""
    path = None
    if tmp_path is not None:
        path = tmp_path / "bookie.toml"
        path.write_text(text, encoding="utf-8")
    return load_settings(path, flags, environment=variables)


def refusal(
    text: str = "",
    tmp_path: Path | None = None,
    flags: dict[str, str] | None = None,
    **variables: str,
) -> str:
    """The sentence with which these sources are refused."""
    with pytest.raises(ConfigurationError) as caught:
        load(text, tmp_path, flags, **variables)
    return str(caught.value)


def test_nothing_given_means_defaults() -> None:
    """Without file, variables and flags."""
    assert load() == Settings()


def test_flags_win_over_variables_over_the_file(tmp_path: Path) -> None:
    """Each source overrides the one before, key by key."""
    text = '[listen]\nport = 1\nhost = "a"\nadvertised_host = "f"\n'
    settings = load(
        text,
        tmp_path,
        {"listen.port": "3"},
        BOOKIE_LISTEN__PORT="2",
        BOOKIE_LISTEN__HOST="b",
    )
    assert (settings.listen.port, settings.listen.host) == (3, "b")
    assert settings.listen.advertised_host == "f"


def test_text_becomes_the_type_of_the_key() -> None:
    """Variables and flags are text; numbers, truth values, sizes, paths and labels are read."""
    settings = load(
        BOOKIE_STORAGE__RESERVE_BYTES="1GiB",
        BOOKIE_STORAGE__JOURNAL_DIR="/j",
        BOOKIE_LIMITS__READ_ONLY="true",
        BOOKIE_LIMITS__DISK_USAGE_MAX="0.99",
        BOOKIE_BOOKIE__LABELS="zone=a, rack=r1",
    )
    assert settings.storage.reserve_bytes == 2**30
    assert settings.storage.journal_dir == Path("/j")
    assert settings.limits.read_only is True
    assert settings.limits.disk_usage_max == 0.99
    assert settings.bookie.labels == {"zone": "a", "rack": "r1"}


def test_the_short_name_of_the_metadata_variable() -> None:
    """BOOKIE_METADATA is the address of the store; the long name wins."""
    assert load(BOOKIE_METADATA="memory://x").metadata.uri == "memory://x"
    both = load(BOOKIE_METADATA="memory://x", BOOKIE_METADATA__URI="memory://y")
    assert both.metadata.uri == "memory://y"


def test_a_file_that_was_named_wins_over_the_short_name(tmp_path: Path) -> None:
    """A bookie must not join the cluster of a shell; flags and the long name win over both."""
    text = '[metadata]\nuri = "memory://file"\n'
    path = tmp_path / "bookie.toml"
    path.write_text(text, encoding="utf-8")

    def uri(flags: dict[str, str] | None = None, **variables: str) -> str:
        return load_settings(path, flags, environment=variables).metadata.uri

    assert uri(BOOKIE_METADATA="memory://x") == "memory://file"
    long = {"BOOKIE_METADATA__URI": "memory://y"}
    assert uri(None, BOOKIE_METADATA="memory://x", **long) == "memory://y"
    assert uri({"metadata.uri": "memory://z"}, BOOKIE_METADATA="memory://x") == "memory://z"


@pytest.mark.parametrize("by_variable", [False, True])
def test_two_stores_are_refused(by_variable: bool, tmp_path: Path) -> None:
    """The short name and the file differ, and nothing decides between them."""
    path = tmp_path / "bookie.toml"
    path.write_text('[metadata]\nuri = "memory://file"\n', encoding="utf-8")
    named = {"BOOKIE_CONFIG": str(path)} if by_variable else {}

    def read(flags: dict[str, str] | None = None, **variables: str) -> Sources:
        return Sources.read(None if by_variable else path, flags, environment=named | variables)

    other = "zk://admin:hunter2@x"
    with pytest.raises(ConfigurationError) as caught:
        read(BOOKIE_METADATA=other).require_one_store()
    sentence = str(caught.value)
    assert sentence.startswith(f"BOOKIE_METADATA and metadata.uri in {path} name different stores")
    assert "hunter2" not in sentence
    assert read(BOOKIE_METADATA=other).origins() == {"metadata.uri": str(path)}
    read(BOOKIE_METADATA="memory://file").require_one_store()
    read().require_one_store()
    read({"metadata.uri": "memory://z"}, BOOKIE_METADATA=other).require_one_store()
    read(BOOKIE_METADATA=other, BOOKIE_METADATA__URI="memory://y").require_one_store()


def test_a_file_without_a_store_leaves_it_to_the_short_name(tmp_path: Path) -> None:
    """There is one place only."""
    path = tmp_path / "bookie.toml"
    path.write_text("[listen]\nport = 1\n", encoding="utf-8")
    sources = Sources.read(path, environment={"BOOKIE_METADATA": "memory://x"})
    sources.require_one_store()
    assert sources.settings().metadata.uri == "memory://x"
    assert sources.origins()["metadata.uri"] == "BOOKIE_METADATA"


@pytest.mark.parametrize(
    ("text", "variable", "flag", "found"),
    [
        ("[log]\nformat = 'console'", None, None, "console"),
        ("[lgo]\nx = 1\n[log]\nformat = 'console'", None, None, "console"),
        ("[log]\nformat = 'console'", "json", None, "json"),
        ("[log]\nformat = 'console'", "loud", None, "console"),
        ("[log]\nformat = 'json'", None, "console", "console"),
        ("log = 1", None, None, "json"),
        ("[log", None, None, "json"),
        ("", None, None, "json"),
    ],
)
def test_the_format_of_log_lines_is_found_in_wrong_settings(
    text: str, variable: str | None, flag: str | None, found: str, tmp_path: Path
) -> None:
    """A refusal is written as the log would have been."""
    path = tmp_path / "bookie.toml"
    path.write_text(text, encoding="utf-8")
    variables = {} if variable is None else {"BOOKIE_LOG__FORMAT": variable}
    flags = {} if flag is None else {"log.format": flag}
    assert find_log_format(path, flags, environment=variables) == found
    named = variables | {"BOOKIE_CONFIG": str(path)}
    assert find_log_format(None, flags, environment=named) == found
    assert find_log_format(tmp_path / "none", flags, environment={}) == (flag or "json")


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, which is not that of the file."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    return elsewhere


PATHS = """
[storage]
journal_dir = "data/journal"
ledgers_dir = "../ledgers"
[metadata]
tls_ca_file = "ca.pem"
"""


def test_paths_in_a_file_begin_at_its_folder(tmp_path: Path, elsewhere: Path) -> None:
    """So the bookie is the same one wherever it is started."""
    settings = load(PATHS, tmp_path)
    assert settings.storage.journal_dir == tmp_path / "data" / "journal"
    assert settings.storage.ledgers_dir == tmp_path.parent / "ledgers"
    assert settings.metadata.tls_ca_file == f"{tmp_path}/ca.pem"
    assert settings.metadata.tls_key_file == ""
    named = {"BOOKIE_CONFIG": "../bookie.toml"}
    assert load_settings(environment=named).storage == settings.storage


def test_trust_does_not_come_from_the_working_directory(tmp_path: Path, elsewhere: Path) -> None:
    """Whoever may write there must not choose the CA."""
    (elsewhere / "ca.pem").touch()
    settings = load('[security]\nca_file = "ca.pem"\n', tmp_path)
    assert settings.security.ca_file == f"{tmp_path}/ca.pem"


def test_other_paths_begin_at_the_working_directory(tmp_path: Path, elsewhere: Path) -> None:
    """As those that a shell completes."""
    settings = load(
        PATHS,
        tmp_path,
        {"storage.journal_dir": "j"},
        BOOKIE_METADATA__TLS_CA_FILE="c",
    )
    assert settings.storage.journal_dir == elsewhere / "j"
    assert settings.metadata.tls_ca_file == f"{elsewhere}/c"
    cluster = {"storage.ledgers_dir": "l"}
    assert Sources.read(environment={}).settings(cluster).storage.ledgers_dir == elsewhere / "l"


def test_directories_of_earlier_starts_are_found(tmp_path: Path, elsewhere: Path) -> None:
    """They were sought in the working directory; a cookie tells a bookie's own. Each warns once."""
    old = elsewhere / "data" / "journal"
    old.mkdir(parents=True)
    beside = tmp_path / "data" / "journal"
    assert load(PATHS, tmp_path).storage.journal_dir == beside, "anybody's directory"
    (old / "COOKIE").touch()
    (elsewhere / "ca.pem").touch()
    with pytest.warns(DeprecationWarning, match=r"0\.3\.0 removes it") as told:
        settings = load(PATHS, tmp_path)
    assert "storage.journal_dir = 'data/journal'" in str(told[0].message)
    assert f"use '{old}'" in str(told[0].message)
    assert f"use '{elsewhere}/ca.pem'" in str(told[1].message)
    assert len(told) == 2
    assert load(PATHS, tmp_path) == settings
    assert settings.storage.journal_dir == old
    assert settings.metadata.tls_ca_file == f"{elsewhere}/ca.pem"
    beside.mkdir(parents=True)
    (beside / "COOKIE").touch()
    assert load(PATHS, tmp_path).storage.journal_dir == beside


KUBERNETES = {
    "BOOKIE_PORT": "tcp://10.0.0.1:3181",
    "BOOKIE_SERVICE_HOST": "10.0.0.1",
    "BOOKIE_SERVICE_PORT": "3181",
    "BOOKIE_SERVICE_PORT_GRPC": "3181",
    "BOOKIE_PORT_3181_TCP": "tcp://10.0.0.1:3181",
    "BOOKIE_PORT_3181_TCP_PROTO": "tcp",
    "BOOKIE_PORT_3181_TCP_PORT": "3181",
    "BOOKIE_PORT_3181_TCP_ADDR": "10.0.0.1",
    # The services bookie-http and bookie-listen: their names are those of two settings.
    "BOOKIE_HTTP_PORT": "tcp://10.0.0.2:8000",
    "BOOKIE_HTTP_SERVICE_HOST": "10.0.0.2",
    "BOOKIE_LISTEN_PORT": "tcp://10.0.0.3:3181",
    "BOOKIE_0_PORT_3181_UDP_ADDR": "10.0.0.4",
}


def test_variables_of_others_are_left_alone() -> None:
    """Kubernetes sets such names for services called bookie or bookie-something."""
    assert load_settings(environment=KUBERNETES) == Settings()
    ours = {
        "BOOKIE_CONFIG": "",
        "BOOKIE_DEBUG": "1",
        "BOOKIE_FAILPOINT": "x",
        "BOOKIE_TEST_CACHE": "/x",
        "_BOOKIE_COMPLETE": "bash_source",
    }
    assert Sources.read(environment=KUBERNETES | ours).unknown_variables == {}


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("BOOKIE_LISTEN_PORT", "BOOKIE_LISTEN__PORT"),
        ("BOOKIE_BOOKIE_ID", "BOOKIE_BOOKIE__ID"),
        ("BOOKIE_METADATA_URI", "BOOKIE_METADATA__URI"),
        ("BOOKIE_CLIENT_ADD_TIMEOUT_SECONDS", "BOOKIE_CLIENT__ADD_TIMEOUT_SECONDS"),
    ],
)
def test_a_variable_with_one_underscore_is_refused(name: str, right: str) -> None:
    """It was meant for a setting, and would be ignored."""
    with pytest.raises(ConfigurationError) as caught:
        load_settings(environment={name: "7"})
    assert str(caught.value) == f"{name}: unknown variable; did you mean {right}?"


def test_other_unknown_variables_are_told_with_the_likely_name() -> None:
    """They may belong to another program, so they refuse nothing."""
    found = Sources.read(
        environment={
            "BOOKIE_STORAGE_READ_THREAD": "1",
            "BOOKIE_METADTA": "memory://x",
            "BOOKIE_OWNER": "me",
            "BOOKIE_": "x",
        }
    ).unknown_variables
    assert found == {
        "BOOKIE_": "",
        "BOOKIE_METADTA": "BOOKIE_METADATA",
        "BOOKIE_OWNER": "",
        "BOOKIE_STORAGE_READ_THREAD": "BOOKIE_STORAGE__READ_THREADS",
    }


@pytest.mark.parametrize(
    ("flags", "variables", "sentence"),
    [
        (
            {"storage.read_thread": "1"},
            {},
            "flag storage.read_thread: unknown setting storage.read_thread;"
            " did you mean read_threads?",
        ),
        ({"journal": "1"}, {}, "flag journal: unknown section [journal]"),
        (
            {},
            {"BOOKIE_STORAG__READ_THREADS": "1"},
            "BOOKIE_STORAG__READ_THREADS: unknown section [storag]; did you mean storage?",
        ),
        ({}, {"BOOKIE_LOG__X": "1"}, "BOOKIE_LOG__X: unknown setting log.x"),
        (
            {"listen.port": "70000"},
            {},
            "flag listen.port: listen.port: input should be less than or equal to 65535",
        ),
        *(
            (
                {key: host},
                {},
                f"flag {key}: {key}: must be a host name or an address, without brackets and port",
            )
            for key, host in (
                ("listen.host", "[::1]"),
                ("listen.advertised_host", "h1:3181"),
                ("http.host", "10.0.0.1:8000"),
            )
        ),
        (
            {},
            {"BOOKIE_STORAGE__RESERVE_BYTES": "3 apples"},
            "BOOKIE_STORAGE__RESERVE_BYTES: storage.reserve_bytes: must be a number of bytes,"
            " or one with a unit B, KiB, MiB, GiB or TiB",
        ),
        (
            {"bookie.id": "a/b"},
            {},
            "flag bookie.id: bookie.id: must be 1 to 128 letters, digits or ._:- and no reserved"
            " name",
        ),
        (
            {"bookie.id": "vacant.1"},
            {},
            "flag bookie.id: bookie.id: must be 1 to 128 letters, digits or ._:- and no reserved"
            " name",
        ),
        (
            {"storage.checkpoint_journal_bytes": "1MiB"},
            {},
            "storage: block_bytes_max must be at most checkpoint_journal_bytes",
        ),
        (
            {"limits.disk_usage_max": "0.5"},
            {},
            "limits: disk_usage_low_watermark must be at most disk_usage_max",
        ),
        (
            {"storage.journal_dir": "/d", "storage.ledgers_dir": "/d"},
            {},
            "storage: journal_dir and ledgers_dir must be two directories",
        ),
        (
            {"rpc.message_bytes_max": "4MiB"},
            {},
            "rpc.message_bytes_max must be at least 4198400 bytes, to hold the largest entry",
        ),
        (
            {"limits.read_bytes_max": "5MiB", "rpc.message_bytes_max": "5MiB"},
            {},
            "limits.read_bytes_max and limits.read_entries_max allow an answer larger than"
            " rpc.message_bytes_max",
        ),
    ],
)
def test_a_refusal_is_one_sentence_with_place_key_and_problem(
    flags: dict[str, str], variables: dict[str, str], sentence: str
) -> None:
    """Unknown keys and sections, wrong types and ranges, relations in and between sections."""
    assert refusal("", None, flags, **variables) == sentence


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[storage]\nread_threads = 'x'", "storage.read_threads: input should be a valid integer"),
        ("[listen]\nport = true", "listen.port must not be true or false"),
        ("[typo]\nx = 1", "unknown section [typo]"),
        ("port = 1", "port is outside of a section"),
        ("[listen\n", "is not valid TOML"),
        ("[bookie]\nlabels = { zone = 1 }", "bookie.labels: has the name or value 1"),
        ("[bookie]\nlabels = { zone = 'a b' }", "letters, digits and ._/- are allowed"),
        ("[storage]\nsync_fail_seconds = inf", "storage.sync_fail_seconds"),
    ],
)
def test_a_refusal_names_the_file(tmp_path: Path, text: str, part: str) -> None:
    """The operator sees which file to open."""
    sentence = refusal(text, tmp_path)
    assert sentence.startswith(str(tmp_path / "bookie.toml"))
    assert part in sentence
    assert "\n" not in sentence


def cluster_refusal(cluster: dict[str, str], flags: dict[str, str] | None = None) -> str:
    """The sentence with which these cluster settings are refused, beside flags."""
    with pytest.raises(ConfigurationError) as caught:
        Sources.read(None, flags, environment={}).settings(cluster)
    return str(caught.value)


def test_everything_wins_over_the_cluster(tmp_path: Path) -> None:
    """The cluster's settings are defaults of its bookies, and whoever says something else is heard.

    Its origin is named for each value.
    """
    path = tmp_path / "bookie.toml"
    path.write_text("[listen]\nport = 2\n", encoding="utf-8")
    cluster = {"listen.port": "1", "http.port": "1", "log.level": "debug", "rpc.reflection": "1"}
    sources = Sources.read(path, {"http.port": "4"}, environment={"BOOKIE_LOG__LEVEL": "error"})
    settings = sources.settings(cluster)
    assert (settings.listen.port, settings.http.port, settings.log.level) == (2, 4, "error")
    assert settings.rpc.reflection is True
    assert sources.origins(cluster) == {
        "listen.port": str(path),
        "http.port": "flag http.port",
        "log.level": "BOOKIE_LOG__LEVEL",
        "rpc.reflection": "cluster setting rpc.reflection",
    }
    path.unlink()
    assert sources.settings().listen.port == 2, "the file was read once"
    assert sources.settings().rpc.reflection is False


@pytest.mark.parametrize(
    ("cluster", "sentence"),
    [
        (
            {"storage.read_thread": "1"},
            "cluster setting storage.read_thread: unknown setting storage.read_thread;"
            " did you mean read_threads?",
        ),
        ({"junk": "1"}, "cluster setting junk: unknown section [junk]"),
        (
            {"listen.port": "x"},
            "cluster setting listen.port: listen.port: input should be a valid integer, unable to"
            " parse string as an integer",
        ),
        (
            {"bookie.id": "b1"},
            "cluster setting bookie.id: each process has its own bookie.id; it cannot be set for a"
            " cluster",
        ),
        (
            {"limits.disk_usage_max": "0.5", "limits.read_entries_max": "1"},
            "limits: disk_usage_low_watermark must be at most disk_usage_max (with cluster setting"
            " limits.disk_usage_max)",
        ),
        (
            {"rpc.message_bytes_max": "1MiB"},
            "rpc.message_bytes_max must be at least 4198400 bytes, to hold the largest entry"
            " (with cluster setting rpc.message_bytes_max)",
        ),
    ],
)
def test_a_wrong_cluster_setting_is_named(cluster: dict[str, str], sentence: str) -> None:
    """Nobody finds it in the bookie's own file, so the sentence says where it is."""
    assert cluster_refusal(cluster) == sentence
    with pytest.raises(ConfigurationError) as caught:
        check_cluster_settings(cluster)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    "name",
    ["metadata.uri", "metadata.password", "client.add_timeout_seconds", "listen.advertised_host"],
)
def test_what_each_process_has_for_itself_is_no_cluster_setting(name: str) -> None:
    """The address of the cluster, the credentials, and sections that only clients read."""
    assert f"each process has its own {name}" in cluster_refusal({name: "x"})


def test_what_the_cluster_may_still_mend_does_not_keep_it_from_being_asked() -> None:
    """A relation that holds only with its settings; what is wrong in itself is refused before."""
    flags = {
        "limits.disk_usage_low_watermark": "0.97",
        "bookie.id": "b",
        "metadata.uri": "zk://h/x",
    }
    sources = Sources.read(None, flags, environment={})
    first = sources.first_settings()
    assert (first.bookie.id, first.metadata.uri) == ("b", "zk://h/x")
    assert sources.settings({"limits.disk_usage_max": "0.98"}).limits.disk_usage_max == 0.98
    assert "low_watermark must be at most" in cluster_refusal({}, flags)
    wrong = Sources.read(None, {**flags, "listen.port": "x"}, environment={})
    with pytest.raises(ConfigurationError, match=r"^flag listen\.port"):
        wrong.first_settings()


def test_one_port_for_tls_and_plaintext_is_refused() -> None:
    """The second one could not be opened, and the sentence would blame another process."""
    with pytest.raises(ValueError, match="plaintext_port must differ from port"):
        Settings.model_validate({"listen": {"port": 3181, "plaintext_port": 3181}})
    both = {"listen": {"port": 0, "plaintext_port": 0}}
    assert Settings.model_validate(both).listen.plaintext_port == 0


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """A path that was given must be readable."""
    with pytest.raises(ConfigurationError, match=r"cannot read .*: No such file or directory"):
        load_settings(tmp_path / "none.toml", environment={})


def test_a_variable_names_the_file_when_no_other_is_given(tmp_path: Path) -> None:
    """That is how clients, which have no flag for it, find their section."""
    path = tmp_path / "bookie.toml"
    path.write_text("[client]\nadd_timeout_seconds = 7\n", encoding="utf-8")
    variables = {"BOOKIE_CONFIG": str(path)}
    assert load_settings(None, environment=variables).client.add_timeout_seconds == 7
    assert load_settings(ROOT / "conf" / "bookie.toml", environment=variables) == Settings()
    with pytest.raises(ConfigurationError, match="cannot read"):
        load_settings(None, environment={"BOOKIE_CONFIG": "/nonexistent"})


def test_an_address_with_a_password_is_refused_without_repeating_it() -> None:
    """An address must be free of credentials. The message about it leaves them out."""
    sentence = refusal(BOOKIE_METADATA__URI="zk://admin:hunter2@h:2181/x")
    assert "must not hold credentials" in sentence
    assert "hunter2" not in sentence


def test_sections_are_frozen() -> None:
    """A component cannot change what it was given."""
    with pytest.raises(ValidationError, match="frozen"):
        Settings().listen.port = 1


def test_a_section_alone_is_not_held_to_what_a_server_needs() -> None:
    """Tests of the engine use tiny files; a server could not store the largest entry in them."""
    tiny = StorageSettings(block_bytes_max=4096, journal_file_bytes_max=64 * 1024)
    with pytest.raises(ValidationError, match=r"storage\.block_bytes_max must be at least"):
        Settings(storage=tiny)
    assert Settings().storage.block_bytes_max > ENTRY_SIZE_BYTES_MAX
    assert NodeSettings().read_bytes_max < Settings().rpc.message_bytes_max
    assert ClientSettings().batch_entries_max <= NodeSettings().read_entries_max


def test_rendered_settings_load_to_the_same_settings(tmp_path: Path) -> None:
    """`config show` can be saved and used."""
    settings = Settings(
        bookie=BookieSettings(id="b-1", labels={"zone": "a", "topology.kubernetes.io/zone": "x"}),
        storage=StorageSettings(journal_dir=Path('/data/"quoted" ü')),
    )
    assert load(render_toml(settings), tmp_path) == settings


def test_every_key_has_a_description_that_is_a_sentence() -> None:
    """The file explains itself."""
    for section in Settings.model_fields:
        for key, field in type(getattr(Settings(), section)).model_fields.items():
            assert field.description, f"{section}.{key}"
            assert field.description.endswith("."), f"{section}.{key}"


def test_the_shipped_file_lists_every_key_with_its_default() -> None:
    """`conf/bookie.toml` is the rendering of the defaults, all commented out, and loads."""
    path = ROOT / "conf" / "bookie.toml"
    text = path.read_text(encoding="utf-8")
    assert not any(tomllib.loads(text).values()), "a key of the file wins over the cluster's"
    tables = tomllib.loads(re.sub(r"^#(?=\w+ = )", "", text, flags=re.MULTILINE))
    assert {name: set(table) for name, table in tables.items()} == {
        name: set(type(getattr(Settings(), name)).model_fields) for name in Settings.model_fields
    }
    assert load_settings(path, environment={}) == Settings()
    assert text == render_defaults(), "run: bookie config default > conf/bookie.toml"


@given(st.integers(min_value=0, max_value=2**60))
def test_sizes_survive_their_spelling(size: int) -> None:
    """The shortest spelling is exact."""
    assert parse_size(format_size(size)) == size


def test_what_the_service_manager_says() -> None:
    """sd_notify's variables; a watchdog for another process is not ours."""
    told = read_supervision(
        7, {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}
    )
    assert (told.notify_socket, told.watchdog_seconds) == ("@x", 30.0)
    other = read_supervision(7, {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"})
    assert (other.notify_socket, other.watchdog_seconds) == ("", None)
    assert read_supervision(7, {"WATCHDOG_USEC": "soon"}).watchdog_seconds is None
    assert read_supervision(7, {"WATCHDOG_USEC": "1000000"}).watchdog_seconds == 1.0


def test_failpoints_are_armed_by_one_variable() -> None:
    """A crash test names failpoints in the environment; otherwise there are none."""
    assert read_failpoints({}) == ""
    assert read_failpoints({"BOOKIE_FAILPOINT": "journal.after_sync:3"}) == "journal.after_sync:3"


def test_a_slow_sync_is_reported_before_a_client_gives_up() -> None:
    """Or nothing on the bookie would say what failed its writers."""
    assert StorageSettings().sync_warn_seconds < ClientSettings().add_timeout_seconds
