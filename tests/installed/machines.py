"""Machines for guides of operators: a bookie on each, and a `systemctl` that rules it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.installed.environments import variables
from tests.servers.ports import claimed_ports

SYSTEMCTL = """\
#!/bin/bash
# The systemd of the machine $MACHINE, as far as a guide needs it.
home=$MACHINES/$MACHINE
stop() {
  [[ -s $home/pid ]] || return 0
  kill "$(<"$home/pid")" 2>/dev/null
  tail -s 0.05 --pid="$(<"$home/pid")" -f /dev/null
  rm "$home/pid"
}
start() {
  bookie serve --config "$home/bookie.toml" >>"$home/log" 2>&1 </dev/null &
  echo $! >"$home/pid"
  until curl -sf "http://127.0.0.1:$HTTP_PORT/readyz" >/dev/null; do
    kill -0 $! 2>/dev/null || { rm "$home/pid"; tail -1 "$home/log"; exit 1; }
    sleep 0.1
  done
}
case $1 in
  stop) stop ;;
  start) start ;;
  restart) stop && start ;;
  show) echo LimitNOFILE=262144 ;;
  *) exit 2 ;;
esac
"""


class Machines:
    """Where each bookie is, and what a guide calls it."""

    def __init__(self, home: Path, programs: Path, names: tuple[str, ...]) -> None:
        """Write the settings of each; nothing runs yet."""
        self.home = home
        self.names = names
        self.uri = f"local://{home}/metadata"
        self.http_ports: dict[str, int] = {}
        (home / "bin").mkdir()
        (home / "bin" / "systemctl").write_text(SYSTEMCTL, encoding="utf-8")
        (home / "bin" / "systemctl").chmod(0o755)
        self.variables = variables(MACHINES=str(home))
        path = self.variables["PATH"]
        self.variables["PATH"] = f"{home}/bin:{programs}:{path}"
        for name in names:
            (home / name).mkdir()
            (home / name / "bookie.toml").write_text(self._settings(name), encoding="utf-8")

    def _settings(self, name: str) -> str:
        port, self.http_ports[name] = claimed_ports(2)
        sections: dict[str, dict[str, object]] = {
            "bookie": {"id": name},
            "metadata": {"uri": self.uri},
            "listen": {"port": port},
            "http": {"port": self.http_ports[name]},
            "storage": {
                **{key: str(path) for key, path in self.directories(name).items()},
                "reserve_bytes": "1MiB",
            },
            "garbage": {"interval_seconds": 1.0},
        }
        return "".join(
            f"[{section}]\n" + "".join(f"{key} = {json.dumps(values[key])}\n" for key in values)
            for section, values in sections.items()
        )

    def directories(self, name: str) -> dict[str, Path]:
        """The directories of a bookie, by setting."""
        return {
            "journal_dir": self.home / name / "journal",
            "ledgers_dir": self.home / name / "ledgers",
        }

    def on(self, name: str) -> str:
        """The command that goes to a machine."""
        return f"export MACHINE={name} HTTP_PORT={self.http_ports[name]}"

    def empty(self, name: str) -> None:
        """Put new disks into a machine."""
        for path in self.directories(name).values():
            shutil.rmtree(path)
