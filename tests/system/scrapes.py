"""Bookies as Prometheus sees them: what they expose, minute by minute, and which alerts then fire.

Prometheus itself evaluates the rules that ship. `promtool test rules` gets the scraped series.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from bookie.telemetry import Metrics

RULES = Path(__file__).parents[2] / "conf" / "prometheus" / "alerts.yml"
NO_SAMPLE, GONE = "_", "stale"
"""In promtool's notation: nothing scraped; the series has just ended."""


def alerts() -> dict[str, str]:
    """Each alert of the rules, with the text of its rule."""
    first, *rules = RULES.read_text(encoding="utf-8").split("      - alert: ")
    assert "expr:" not in first
    return {rule.partition("\n")[0]: rule for rule in rules}


def promtool(*words: str | Path) -> None:
    """Run promtool, which must be content."""
    program = shutil.which("promtool")
    assert program, "promtool is missing: apt-get install --no-install-recommends prometheus"
    done = subprocess.run(
        [program, *words], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def exposed(metrics: Metrics, prefix: str = "") -> str:
    """What a bookie without a daemon around it exposes, or the metrics of a prefix alone.

    Nobody says how such a bookie is registered. How full its disks are is said for a prefix alone.
    """
    lines = metrics.exposition()[0].decode().splitlines()
    body = "".join(f"{line}\n" for line in lines if line.startswith((prefix, "#")))
    return without_status(body if prefix else on_an_empty_disk(body))


def on_an_empty_disk(body: str) -> str:
    """An exposition of the same bookie, whose disks hold nothing.

    How full the disks of this machine are is no matter of a test.
    """
    sizes = re.findall(r"(?m)^bookie_disk_total_bytes({.*}) (.*)$", body)
    for labels, size in sizes:
        free = rf"(?m)^bookie_disk_free_bytes{re.escape(labels)} .*$"
        body, found = re.subn(free, f"bookie_disk_free_bytes{labels} {size}", body)
        assert found == 1, labels
    return body


def without_status(body: str) -> str:
    """An exposition that does not say how the bookie is registered."""
    return re.sub(r"(?m)^bookie_server_status .*\n", "", body)


@dataclass
class Scrapes:
    """The series of all bookies, a scrape each minute, and the alerts that must fire."""

    directory: Path
    minutes: int = 0
    expected: list[tuple[int, frozenset[str]]] = field(default_factory=list)
    _series: dict[str, list[str]] = field(default_factory=dict)
    _last: dict[str, str] = field(default_factory=dict)

    def hold(self, minutes: int, **bodies: str | None) -> None:
        """Scrape each bookie so many times; None if it does not answer. By default as before."""
        if bodies:
            self._last = {}
            for bookie, body in bodies.items():
                self._last |= _samples(bookie, body)
        values = self._last
        for _ in range(minutes):
            for name in values.keys() | self._series.keys():
                seen = self._series.setdefault(name, [NO_SAMPLE] * self.minutes)
                was_there = bool(seen) and seen[-1] not in (NO_SAMPLE, GONE)
                seen.append(values.get(name, GONE if was_there else NO_SAMPLE))
            self.minutes += 1

    def fire(self, *names: str) -> None:
        """Expect that exactly these alerts fire as of the last scrape."""
        self.expected.append((self.minutes - 1, frozenset(names)))

    def evaluate(self) -> None:
        """Have Prometheus evaluate the rules, each minute, and compare."""
        test = {
            "interval": "1m",
            "input_series": [
                {"series": name, "values": " ".join(values)}
                for name, values in self._series.items()
            ],
            "promql_expr_test": [
                {
                    "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
                    "eval_time": f"{minute}m",
                    "exp_samples": [
                        {"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(names)
                    ],
                }
                for minute, names in self.expected
            ],
        }
        path = self.directory / "scrapes.yml"
        document = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}
        path.write_text(json.dumps(document), encoding="utf-8")  # JSON is YAML
        promtool("test", "rules", path)


def _samples(bookie: str, body: str | None) -> dict[str, str]:
    """Each series of an exposition, named as after a scrape, and its value."""
    target = {"job": "bookie", "instance": bookie}
    found = {_name("up", target): "0" if body is None else "1"}
    for family in text_string_to_metric_families(body or ""):
        for sample in family.samples:
            found[_name(sample.name, sample.labels | target)] = _number(sample.value)
    return found


def _name(metric: str, labels: dict[str, str]) -> str:
    return f"{metric}{{{','.join(f'{key}={json.dumps(labels[key])}' for key in sorted(labels))}}}"


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)
