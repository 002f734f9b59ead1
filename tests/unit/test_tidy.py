"""The rules of the house that no linter knows, each failing with the exact place.

An exception to a rule stands in a table below with its reason, or does not exist.
"""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bookie.config import Settings
from bookie.config.load import section_type
from bookie.telemetry import Metrics

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "bookie"

FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 70

DOCUMENT_BYTES_MAX = {
    "README.md": 6144,
    "ARCHITECTURE.md": 12288,
    "CHANGELOG.md": 10240,
    "CONTRIBUTING.md": 6144,
}
"""What a stranger reads in one sitting; the rest belongs in `docs/`."""

BANNED_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "manager", "impl"}

HOMES: dict[str, tuple[str, ...]] = {
    "lmdb": ("env/", "node/engine/index/entry_index.py", "metadata/local/"),
    "kazoo": ("metadata/zookeeper/",),
    "grpc": ("wire/grpc/", "metadata/etcd/", "testing/simulation/simulated_calls.py"),
    "grpc_health": ("wire/grpc/",),
    "grpc_reflection": ("wire/grpc/",),
    "google": ("_pb/", "ledger/metadata.py", "wire/", "metadata/etcd/"),
    "pydantic": ("config/",),
    "prometheus_client": ("telemetry/fast_metrics.py", "telemetry/metrics.py"),
    "aiohttp": ("daemon/", "cli/node.py"),
    "cryptography": (
        "security/authority.py",
        "security/certificates.py",
        "security/token_keys.py",
        "security/tokens.py",
        "security/usable.py",
    ),
    "jwt": ("security/token_keys.py", "security/tokens.py"),
    "typer": ("cli/",),
    "rich": ("cli/",),
    "uvloop": ("daemon/", "cli/", "sync/"),
    "pyspark": ("spark/",),
    "pyarrow": ("spark/",),
    "pandas": ("spark/",),
    "pytest": ("testing/pytest_plugin.py",),
}
"""Third party → the only places under `bookie/` that import it."""

CLOCKS = {"time", "datetime"}
CLOCK_HOMES = {
    "env/": "the seam",
    "metadata/local/": "leases are compared between processes, by the clocks of their machine",
    "daemon/machine_check.py": "measures the clock and the disk of this machine themselves",
    "cli/output.py": "formats the moments that records tell of",
    "security/authority.py": "a certificate says from when until when it is valid",
    "telemetry/events.py": "formats the moment that a log record brings along",
}

ENVIRONMENT_HOMES = {
    "config/": "the only reader of settings",
    "daemon/local/process.py": "a child inherits the variables that concern it",
    "spark/class_archive.py": "XDG_CACHE_HOME says where every program keeps its caches",
    "spark/session.py": "Spark learns by a variable which Python to start",
    "testing/torture/run.py": "so does a writer that is tortured",
    "cli/options.py": "BOOKIE_CONFIG decides about reading a file, which most commands need not",
    "cli/serve.py": "SSL_CERT_FILE keeps aiohttp's client from reading certificates at its import",
    "cli/app.py": "BOOKIE_DEBUG decides about tracebacks, and NumPy's threads, before settings",
}


@dataclass(frozen=True)
class Source:
    """One Python file and its syntax tree."""

    path: Path

    @property
    def name(self) -> str:
        """The path from the root, as messages show it."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def inside(self) -> str:
        """The path below `bookie/`, empty for other files."""
        return self.name.removeprefix("bookie/") if self.name.startswith("bookie/") else ""

    @property
    def lines(self) -> list[str]:
        """The text, line by line."""
        return self.path.read_text(encoding="utf-8").splitlines()

    @property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return _parse(self.path)

    def at(self, place: ast.AST | int, text: str) -> str:
        """An offence as `path:line: text`."""
        line = place if isinstance(place, int) else getattr(place, "lineno", 1)
        return f"{self.name}:{line}: {text}"


@functools.cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module", autouse=True)
def _forget_the_trees() -> Iterator[None]:
    """The trees of all files would slow down every later garbage collection of this process."""
    yield
    _parse.cache_clear()


def sources(*folders: str) -> Iterator[Source]:
    """Every Python file below the folders that a person wrote."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "_pb" not in path.parts and "__pycache__" not in path.parts:
                yield Source(path)


def check(offenders: list[str]) -> None:
    """Fail with one offence a line."""
    assert not offenders, "\n" + "\n".join(offenders)


def is_at_home(source: Source, homes: tuple[str, ...]) -> bool:
    """Whether the file lies in one of `homes`, which are prefixes below `bookie/`."""
    return source.inside.startswith(homes)


def imports(source: Source) -> Iterator[tuple[ast.AST, str]]:
    """Each imported module with its place, imports inside of functions included."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node, node.module


def test_files_are_short() -> None:
    """A file that outgrows 700 lines is two ideas."""
    check(
        [
            source.at(len(source.lines), f"{len(source.lines)} lines, at most {FILE_LINES_MAX}")
            for source in sources("bookie", "tests", "proto", "requirements", "examples")
            if len(source.lines) > FILE_LINES_MAX
        ]
    )


def test_functions_are_short() -> None:
    """At most 70 lines from `def` to the end, the docstring not counted."""
    offenders = []
    for source in sources("bookie", "tests", "proto", "requirements", "examples"):
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            first = node.body[0]
            if ast.get_docstring(node, clean=False) is not None:
                size -= (first.end_lineno or first.lineno) - first.lineno + 1
            if size > FUNCTION_LINES_MAX:
                offenders.append(
                    source.at(node, f"{node.name} has {size} lines, at most {FUNCTION_LINES_MAX}")
                )
    check(offenders)


def test_each_class_has_a_name_of_its_own() -> None:
    """Readers search by name: no two classes of the package share one."""
    homes: dict[str, str] = {}
    offenders = []
    for source in sources("bookie"):
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef):
                home = homes.setdefault(node.name, source.name)
                if home != source.name:
                    offenders.append(source.at(node, f"{home} has a class {node.name}, too"))
    check(offenders)


def test_modules_are_named_for_what_they_are() -> None:
    """No drawer for things that belong nowhere."""
    check(
        [
            source.at(1, f"the name {part} says nothing; name what is inside")
            for source in sources("bookie", "tests")
            for part in (*source.path.relative_to(ROOT).parts[:-1], source.path.stem)
            if part in BANNED_NAMES or part.removeprefix("test_") in BANNED_NAMES
        ]
    )


def test_modules_say_what_they_are_for() -> None:
    """Line 1 of the docstring is a whole sentence."""
    offenders = []
    for source in sources(
        "bookie", "tests", "proto", "requirements", "examples", "pyspark_bookkeeper"
    ):
        text = ast.get_docstring(source.tree) or ""
        first = text.partition("\n")[0].rstrip()
        if not first:
            offenders.append(source.at(1, "no module docstring"))
        elif not first.endswith((".", "?", "!", ":")):
            offenders.append(source.at(1, "line 1 of the module docstring is not a whole sentence"))
    check(offenders)


def test_third_parties_stay_in_their_homes() -> None:
    """Replacing a library must touch one place."""
    check(
        [
            source.at(node, f"{module} is imported outside of {', '.join(HOMES[root])}")
            for source in sources("bookie")
            for node, module in imports(source)
            if (root := module.partition(".")[0]) in HOMES and not is_at_home(source, HOMES[root])
        ]
    )


def test_addresses_are_built_and_split_in_one_place() -> None:
    """`f"{host}:{port}"` forgets the brackets of IPv6, `urlsplit` knows no lists of servers."""
    offenders = []
    for source in sources("bookie"):
        if source.inside == "addresses.py":
            continue
        for node in ast.walk(source.tree):
            if isinstance(node, ast.JoinedStr) and _ends_with_a_port(node):
                offenders.append(source.at(node, f"{ast.unparse(node)}; take join_address"))
            if isinstance(node, ast.alias) and node.name in ("urlsplit", "urlparse"):
                offenders.append(source.at(node, f"{node.name}; take split_address"))
    check(offenders)


def _ends_with_a_port(text: ast.JoinedStr) -> bool:
    """Whether a value, a colon and a port stand side by side in an f-string."""
    return any(
        isinstance(before, ast.FormattedValue)
        and isinstance(colon, ast.Constant)
        and colon.value == ":"
        and re.search(r"\b(\w+_)?port\b", ast.unparse(port))
        for before, colon, port in zip(text.values, text.values[1:], text.values[2:], strict=False)
    )


def test_clocks_are_read_behind_the_seam() -> None:
    """Simulated time works only where nobody looks at a watch of his own."""
    check(
        [
            source.at(node, f"{module} is imported; take the clock of bookie.env")
            for source in sources("bookie")
            for node, module in imports(source)
            if module in CLOCKS and not is_at_home(source, tuple(CLOCK_HOMES))
        ]
    )


def test_the_environment_is_read_in_config() -> None:
    """A setting that a variable can change is a setting like every other."""
    offenders = []
    for source in sources("bookie"):
        for node in ast.walk(source.tree):
            name = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            reads = name in ("os.environ", "os.getenv", "os.environb", "os.putenv")
            if reads and not is_at_home(source, tuple(ENVIRONMENT_HOMES)):
                offenders.append(source.at(node, f"{name} outside of bookie/config"))
    check(offenders)


def test_every_setting_and_every_metric_is_used() -> None:
    """An unused key or an unwritten metric is a broken promise."""
    used = {
        node.attr
        for source in sources("bookie")
        if not source.inside.startswith(("config/", "telemetry/"))
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Attribute)
    }
    keys = {
        f"setting {section}.{key}": key
        for section in Settings.model_fields
        for key in section_type(section).model_fields
    }
    public = {name for name in vars(Metrics()) if not name.startswith("_")} - {"registry"}
    metrics = {f"metric {name}": name for name in public}
    check(
        [f"nothing uses the {what}" for what, name in (keys | metrics).items() if name not in used]
    )


def test_nothing_is_left_to_do_without_a_link() -> None:
    """A reminder names the place where it is followed up."""
    mark = re.compile(r"#.*\b(TODO|FIXME|XXX|HACK)\b")
    check(
        [
            source.at(number, line.strip())
            for source in sources("bookie", "tests", "proto", "requirements", "examples")
            if source.path != Path(__file__)
            for number, line in enumerate(source.lines, 1)
            if mark.search(line) and "https://" not in line
        ]
    )


def test_every_exception_from_a_rule_has_its_reason() -> None:
    """`# noqa: CODE  (why)`: a code and, in brackets or after a dash, a reason."""
    bare = re.compile(r"# noqa(?!: [A-Z]+[0-9]+(, ?[A-Z]+[0-9]+)*  ?[(#-])")
    check(
        [
            source.at(number, line.strip())
            for source in sources("bookie", "tests", "proto", "requirements", "examples")
            if source.path != Path(__file__)
            for number, line in enumerate(source.lines, 1)
            if bare.search(line)
        ]
    )


def test_tests_neither_sleep_nor_skip_nor_patch_us() -> None:
    """A test waits for what it expects, runs everywhere, and replaces parts by injection."""
    banned = {
        "time.sleep": "wait for what you expect",
        "pytest.skip": "what cannot run fails with the command that installs it",
        "pytest.mark.skip": "what cannot run fails with the command that installs it",
        "pytest.mark.skipif": "what cannot run fails with the command that installs it",
        "pytest.mark.xfail": "a known fault is mended or written down, not expected",
        "pytest.importorskip": "what cannot run fails with the command that installs it",
        "mock.patch": "inject a double",
        "unittest.mock.patch": "inject a double",
    }
    check(
        [
            source.at(node, f"{name}: {banned[name]}")
            for source in sources("tests")
            for node in ast.walk(source.tree)
            if isinstance(node, ast.Attribute) and (name := ast.unparse(node)) in banned
        ]
    )


def test_the_list_of_floors_is_complete() -> None:
    """Each module of `bookie` has its floor, and a built one is no longer marked as planned."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    contracts = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    (layers,) = (c["layers"] for c in contracts if c.get("containers") == ["bookie"])
    listed = {name.strip() for layer in layers for name in layer.split("|")}
    present = {
        path.stem
        for path in PACKAGE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").is_file()
    } - {"__init__"}
    planned = {name.strip("()") for name in listed if name.startswith("(")}
    check(
        [f"pyproject.toml: {name} exists; take its parentheses away" for name in planned & present]
        + [f"pyproject.toml: {name} has no floor" for name in present - planned - listed]
        + [f"pyproject.toml: {name} does not exist" for name in listed - present if "(" not in name]
    )


def test_test_files_have_names_of_their_own() -> None:
    """Two files of one name would read alike in every report."""
    seen: dict[str, str] = {}
    offenders = []
    for source in sources("tests"):
        if source.path.name.startswith("test_"):
            other = seen.setdefault(source.path.name, source.name)
            if other != source.name:
                offenders.append(source.at(1, f"has the name of {other}"))
    check(offenders)


def documents() -> list[Path]:
    """Every page that a person reads, the root's first."""
    return [
        *sorted(ROOT.glob("*.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "changes").glob("*.md")),
        *sorted((ROOT / "tests").rglob("README.md")),
    ]


def test_the_first_documents_are_short() -> None:
    """Who opens the repository reads a page, and follows a link for more."""
    check(
        [
            f"{name}: {size} bytes, at most {most}"
            for name, most in DOCUMENT_BYTES_MAX.items()
            if (size := (ROOT / name).stat().st_size) > most
        ]
    )


def test_documents_name_files_that_exist() -> None:
    """`xxx/yyy.py` lies below the root, `bookie/`, or the document; `yyy.py` lies anywhere.

    A document may also introduce a program of its own, and print it below its name.
    """
    names = {source.path.name for source in sources("bookie", "tests", "proto", "requirements")}
    offenders = []
    for document in documents():
        text = document.read_text(encoding="utf-8")
        printed = set(re.findall(r"`([\w-]+\.py)`:\n\n```python", text))
        for number, line in enumerate(text.splitlines(), 1):
            for path in re.findall(r"(?<![\w/.-])(?:[\w-]+/)*[\w-]+\.py\b", line):
                places = (ROOT, PACKAGE, document.parent)
                is_there = any((place / path).is_file() for place in places)
                if not (is_there or path in names | printed):
                    place = document.relative_to(ROOT).as_posix()
                    offenders.append(f"{place}:{number}: {path} does not exist")
    check(offenders)


def test_documents_link_to_what_exists() -> None:
    """A link names a file of the repository, and an anchor names a heading of it."""
    offenders = []
    for document in documents():
        text = document.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if "://" in target:
                continue
            path, _, anchor = target.partition("#")
            aim = (document.parent / path).resolve() if path else document
            if not aim.exists():
                offenders.append(f"{document.relative_to(ROOT)}: {target} does not exist")
            elif anchor and anchor not in _anchors(aim):
                offenders.append(f"{document.relative_to(ROOT)}: {target} names no heading")
    check(offenders)


def _anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_essays_name_modules_that_exist() -> None:
    """The table ``| module | … |`` that opens a package lists modules of that package."""
    offenders = []
    for source in sources("bookie"):
        essay = ast.get_docstring(source.tree) or ""
        if source.path.name == "__init__.py" and "| module |" in essay:
            first_cells = " ".join(re.findall(r"^\|([^|]*)\|", essay, re.MULTILINE))
            offenders += [
                source.at(1, f"there is no module {name}")
                for name in re.findall(r"`(\w+)`", first_cells)
                if not (source.path.parent / f"{name}.py").is_file()
                and not (source.path.parent / name / "__init__.py").is_file()
            ]
    check(offenders)
