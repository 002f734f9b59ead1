"""Take ZooKeeper's jars out of PyPI's pyspark, once a machine, for the tests on real servers.

    python -m tests.servers.fetch_zookeeper [--sdist FILE]

Where pyspark is installed, its jars are taken. Otherwise its sdist (456 MB) is downloaded by pip,
compared with its checksum, and deleted again. The jars that a server needs stay in a cache
directory, `BOOKIE_TEST_CACHE` or ``~/.cache/bookie-tests``. Nothing is done when they are there and
right.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from importlib.util import find_spec
from pathlib import Path

PYSPARK = "pyspark==4.3.0"
SDIST_SHA256 = "e8c517948eff7088a7aa07449aa8eafa4a15a8d50319de2525a6fd26622476c6"
JARS_INSIDE = "pyspark-4.3.0/deps/jars/"

JARS = {
    "zookeeper-3.9.5.jar": "936d025db1a85f085edea25048c3f5b3de5fc29329c371a10925e3b78b0b38a0",
    "zookeeper-jute-3.9.5.jar": "abcbc7f9d6c493daa118da6fa3061a201e2c521217526e8535adfb56b629e52a",
    "slf4j-api-2.0.17.jar": "7b751d952061954d5abfed7181c1f645d336091b679891591d63329c622eb832",
    "metrics-core-4.2.37.jar": "3c70d19049d10f474ab803706b9c0677bcf5fd9e1afeb4f6c496f62e38b27678",
    "snappy-java-1.1.10.8.jar": "50485d06037fea3d6e40c968386feeca6338cc9872e25549593ff3eb352cefcc",
    "netty-buffer-4.2.13.Final.jar": (
        "39e9ab9ecaff178898a5eb37568096f1efd4f768a7bd162e0cde3eefa19137d5"
    ),
    "netty-codec-base-4.2.13.Final.jar": (
        "a0407d1e9b77e9807aabf367e06602475faab567bfcb8e07ff5bd22c24cd923e"
    ),
    "netty-common-4.2.13.Final.jar": (
        "cccffbdd68586b5473c67d6ac37145625e7abbfae304e7a512616576b0187697"
    ),
    "netty-handler-4.2.13.Final.jar": (
        "50efc30aeca2ef21311f2502389e500bfc168c311edb1ae04a2db4d6bb5d7f7f"
    ),
    "netty-resolver-4.2.13.Final.jar": (
        "2cd68d6a746aeb2ec92923fa168d250526d7ad3dbe1877e7bcbe6e8acdb2c193"
    ),
    "netty-transport-4.2.13.Final.jar": (
        "d9b2200bfe6e47c2dfa2f0952df6fbdfd42bf58bdd9007e9ac17c789274388c5"
    ),
    "netty-transport-classes-epoll-4.2.13.Final.jar": (
        "2ed9cf6ca8bee3ae80501938e5fa0b7c20947d704222a774a60ae65d38e0285e"
    ),
    "netty-transport-native-unix-common-4.2.13.Final.jar": (
        "052b8429276ac96bd1f1067ce963b4e57c627ca331071f4df2e63f759234f6b1"
    ),
}
"""Jar → its SHA-256. Those for metrics and snappy are loaded whether they are used or not; netty is
needed for TLS, and its handler for SASL as well."""

COMMAND = "make zookeeper"


def jars_directory() -> Path:
    """The directory of the jars."""
    root = os.environ.get("BOOKIE_TEST_CACHE") or Path.home() / ".cache" / "bookie-tests"
    return Path(root) / "zookeeper-3.9.5"


def missing_jars() -> list[str]:
    """Jars that the cache lacks, or holds with wrong content."""
    return [
        name
        for name, expected in JARS.items()
        if not (path := jars_directory() / name).is_file()
        or hashlib.sha256(path.read_bytes()).hexdigest() != expected
    ]


def download(directory: Path) -> Path:
    """The sdist, fetched by pip, which compares the checksum."""
    wanted = directory / "requirements.txt"
    wanted.write_text(f"{PYSPARK} --hash=sha256:{SDIST_SHA256}\n", encoding="utf-8")
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download"),
            *("--no-deps", "--no-binary", "pyspark", "--no-build-isolation", "--require-hashes"),
            *("--dest", str(directory), "--requirement", str(wanted)),
        ],
        check=True,
    )
    (sdist,) = directory.glob("pyspark-*.tar.gz")
    return sdist


def copy_installed() -> None:
    """Take the jars of the pyspark beside this interpreter, if there is one."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        return
    for name in missing_jars():
        jar = Path(found.origin).parent / "jars" / name
        if jar.is_file():
            _write(name, jar.read_bytes())


def _write(name: str, content: bytes) -> None:
    """Put a jar into the cache; it appears whole or not at all."""
    directory = jars_directory()
    directory.mkdir(parents=True, exist_ok=True)
    partial = directory / f".{name}.{os.getpid()}"
    partial.write_bytes(content)
    partial.rename(directory / name)


def extract(sdist: Path) -> None:
    """Write the jars of an sdist into the cache."""
    with sdist.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SDIST_SHA256:
        raise SystemExit(f"{sdist} has the SHA-256 {found}, not {SDIST_SHA256}")
    left = set(JARS)
    with tarfile.open(sdist, "r|gz") as archive:
        for member in archive:
            name = member.name.removeprefix(JARS_INSIDE)
            if name not in left:
                continue
            content = archive.extractfile(member)
            assert content is not None
            _write(name, content.read())
            left.remove(name)
            if not left:
                break
    if missing := missing_jars():
        raise SystemExit(f"{sdist} does not hold the expected {', '.join(missing)}")


def main() -> None:
    """Fetch what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sdist", type=Path, help="take the jars from this file, download nothing")
    options = parser.parse_args()
    if not missing_jars():
        return
    if options.sdist is not None:
        extract(options.sdist)
        return
    copy_installed()
    if not missing_jars():
        return
    print("downloading ZooKeeper's jars inside of pyspark (456 MB)", flush=True)
    with tempfile.TemporaryDirectory(prefix="bookie-zookeeper-") as directory:
        extract(download(Path(directory)))


if __name__ == "__main__":
    main()
