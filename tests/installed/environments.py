"""Fresh environments as users have them: a clone, a wheel, nothing of what the tests install."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
MINUTES_MAX = 20
"""Half a gigabyte comes through a slow network."""

KEPT = ("HOME", "LANG", "JAVA_HOME", "SSL_CERT_FILE", "TMPDIR", "CI_RUN_MARK")
"""Variables of a user's machine; those of this test run's environment stay behind."""


def variables(**more: str) -> dict[str, str]:
    """The environment of somebody who has just logged in."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in KEPT or name.startswith("PIP_") or name.lower().endswith("_proxy")
    }
    return kept | {"PATH": _system_path()} | more


def _system_path() -> str:
    """The path without any virtual environment, and with an interpreter that can make one."""
    own = Path(sys.prefix).resolve() / "bin"
    base = Path(sys.base_prefix).resolve() / "bin"
    given = [Path(part) for part in os.environ["PATH"].split(os.pathsep)]
    rest = [str(part) for part in given if part.resolve() != own]
    return os.pathsep.join([str(base), *rest])


def fresh_clone(directory: Path) -> Path:
    """The files that a clone has, as they are now."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    return directory


def built_wheel(directory: Path) -> Path:
    """The wheel, built from a fresh clone."""
    source = fresh_clone(directory / "source")
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run([*words, "--wheel-dir", str(directory), str(source)], directory)
    (wheel,) = directory.glob("bookie-*.whl")
    return wheel


def installed(wheel: Path, directory: Path, extra: str = "") -> Path:
    """A new virtual environment with the wheel and what it asks for; its folder of programs.

    The versions are those of `requirements/`, so that a release of somebody else's changes nothing.
    """
    base = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    run([str(base), "-m", "venv", "--without-pip", str(directory)], directory.parent)
    programs = directory / "bin"
    pins = [f"--constraint={ROOT}/requirements/core.txt"]
    if extra:
        pins.append(f"--constraint={ROOT}/requirements/{extra}.txt")
    wanted = f"{wheel}[{extra}]" if extra else str(wheel)
    # What is imported gets its bytecode then; most modules never are.
    run([*install_into(programs), "--no-compile", *pins, wanted], directory)
    return programs


def install_into(programs: Path) -> list[str]:
    """The command that installs into an environment without a pip of its own: ours does it."""
    return [sys.executable, "-m", "pip", "--python", str(programs / "python"), "install", "--quiet"]


@contextmanager
def running_cluster(programs: Path, directory: Path) -> Iterator[None]:
    """Three bookies with their data in `directory`, stopped by Ctrl-C at the end."""
    words = [str(programs / "bookie"), "local", "--bookies", "3", "--data", f"{directory}/data"]
    with subprocess.Popen(
        words, cwd=directory, env=variables(), stdout=subprocess.PIPE, text=True
    ) as supervisor:
        assert supervisor.stdout is not None
        try:
            for line in supervisor.stdout:
                if line.startswith("The cluster is up"):
                    break
            yield
        finally:
            supervisor.send_signal(signal.SIGINT)
            supervisor.stdout.read()
    assert supervisor.returncode == 0


def run(words: list[str], directory: Path, environment: Mapping[str, str] | None = None) -> str:
    """What a command prints on both of its outputs. It must succeed."""
    done = subprocess.run(
        words,
        cwd=directory,
        env=variables() if environment is None else dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60 * MINUTES_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout
