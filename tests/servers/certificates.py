"""Certificates for servers and clients in tests: good, expired, of a stranger's authority."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.servers.processes import require_program


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates for ``127.0.0.1``; its files lie in `directory`, which is made."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir()
        self._openssl = require_program("openssl", "openssl")
        self._key, self.certificate = directory / "ca.key", directory / "ca.pem"
        self._run("req", "-x509", *self._new_key(self._key), "-out", self.certificate)

    def issue(self, name: str, *, days: int = 2) -> Certificate:
        """A certificate for a server or a client; negative `days` have ended already."""
        made = Certificate(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        request, extensions = self._directory / f"{name}.csr", self._directory / "extensions"
        extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n", encoding="ascii")
        self._run("req", *self._new_key(made.key), "-out", request)
        self._run(
            *("x509", "-req", "-in", request, "-out", made.certificate, "-days", str(days)),
            *("-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial"),
            *("-extfile", extensions),
        )
        return made

    def _new_key(self, path: Path) -> list[str]:
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        return [*curve, "-keyout", str(path), "-subj", f"/CN={path.stem}"]

    def _run(self, *arguments: str | Path) -> None:
        command = [self._openssl, *map(str, arguments)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
