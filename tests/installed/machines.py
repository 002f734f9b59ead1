"""Machines for guides of operators, a bookie and a `systemctl` on each, and who types there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.installed.environments import variables
from tests.installed.terminal import PROMPT, Terminal, Typed, typed
from tests.servers.ports import claimed_ports

ASKED = "[y/N]: "

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

JOURNALCTL = """\
#!/bin/bash
# The journal of the bookie of the machine $MACHINE.
cat "$MACHINES/$MACHINE/log"
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
        for name, text in (("systemctl", SYSTEMCTL), ("journalctl", JOURNALCTL)):
            (home / "bin" / name).write_text(text, encoding="utf-8")
            (home / "bin" / name).chmod(0o755)
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

    def logged(self) -> str:
        """What bookies have logged of doubts, and the last that each said."""
        lines = []
        for name in self.names:
            own = (self.home / name / "log").read_text(encoding="utf-8").splitlines()
            lines += [line for line in own if "integrity" in line or "warning" in line] + own[-3:]
        return "\n".join(lines)

    def empty(self, name: str) -> None:
        """Put new disks into a machine."""
        for path in self.directories(name).values():
            shutil.rmtree(path)


class Operator:
    """Types commands of the page into a terminal, each on the machine where it belongs."""

    def __init__(self, machines: Machines, page: str, terminal: Terminal) -> None:
        self.machines, self.terminal = machines, terminal
        first, *others = re.split(r"^#{2,3} ", page, flags=re.MULTILINE)
        self.sections = {"": first} | {part.partition("\n")[0]: part for part in others}
        """By heading; what comes before the first one is ``""``."""
        self.machine = ""
        self.done: set[str] = set()
        self.places = {
            "etcd://etcd1:2379/bookies": machines.uri,
            "127.0.0.1:8000": "127.0.0.1:$HTTP_PORT",
            "/etc/bookie/bookie.toml": "$MACHINES/$MACHINE/bookie.toml",
        }
        """What stands in the page for a place of the reader's."""

    def go_to(self, name: str) -> None:
        """Type on another machine from now on."""
        self.machine = name
        self.terminal.type(self.machines.on(name))

    def follow(self, section: str, *, bookie: str = "b2") -> Iterator[tuple[Typed, str]]:
        """Type each command of a section; what it says. The caller may act in between."""
        self.done.add(section)
        for entry in typed(self.sections[section]):
            is_everywhere, shown = "on each machine" in entry.command, ""
            for name in self.machines.names if is_everywhere else [bookie]:
                self.go_to(name)
                command = entry.command
                for printed, own in self.places.items():
                    command = command.replace(printed, own)
                if is_everywhere:
                    command = command.replace("b2", name)
                shown = self.run(command)
            yield entry, shown

    def run(self, command: str) -> str:
        """Type a command, agree if it asks, press Ctrl-C if its comment says so.

        Its exit status is what its comment says.
        """
        if "# asks" in command:
            self.terminal.send(f"{command}\n")
            question = self.terminal.read_until(ASKED)
            shown = question + self.terminal.type("y")
        elif "press Ctrl-C" in command:
            self.terminal.send(f"{command}\n")
            self.wait_for_a_bookie()
            self.terminal.send("\x03")
            shown = self.terminal.read_until(PROMPT)
        else:
            shown = self.terminal.type(command)
        status = self.terminal.type("echo $?").strip()
        said = re.search(r"exit status (\d)( if)?", command.partition("# ")[2])
        allowed = {"0"} if said is None else {said[1]} | ({"0"} if said[2] else set())
        assert status in allowed, f"$ {command}\nended with {status}:\n{shown}"
        return shown

    def wait_for_a_bookie(self) -> None:
        """Until the bookie of the machine serves."""
        url = f"http://127.0.0.1:{self.machines.http_ports[self.machine]}/readyz"
        often = ["--retry", "300", "--retry-delay", "1", "--retry-all-errors"]
        subprocess.run(["curl", "-sf", *often, url], check=True, capture_output=True)

    def all_of(self, section: str, *, bookie: str = "b2") -> dict[str, str]:
        """Type a section; what each command said, by its words without a comment."""
        return {
            entry.command.partition("  #")[0].strip(): shown
            for entry, shown in self.follow(section, bookie=bookie)
        }
