"""Look up every pin in a service of advisories, and fail unless all were looked up and are clean.

    make audit
    make audit ADVISORIES=http://127.0.0.1:8080/v1/query    # a mirror of the OSV database

It runs pip-audit, which asks the package index for advisories and keeps no database. So it needs
the internet, or a mirror that answers queries as OSV does. It exits with 0 if every pin was looked
up and none has an advisory, with 1 if one has, and with 2 if one could not be looked up: pip-audit
by itself skips such a pin and reports success.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SETS = ("build", "core", "test", "dev", "docs", "spark")
SECONDS = 10
"""How long one answer of the service may take."""


def pinned() -> dict[str, str]:
    """Distribution → version, of all sets."""
    lines = [
        line
        for name in SETS
        for line in (HERE / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        if line[:1] != "#"
    ]
    plain = (line.partition(";")[0].partition("==") for line in lines)
    return {name: version.strip() for name, _, version in plain}


def asked(advisories: str) -> subprocess.CompletedProcess[str]:
    """Run pip-audit over the pins, against an OSV mirror if an address is given."""
    words = ["--strict", "--no-deps", "--disable-pip", "--progress-spinner=off", "--format=json"]
    words += [f"--timeout={SECONDS}", *(f"--requirement={HERE}/{name}.txt" for name in SETS)]
    if advisories:
        words += ["--vulnerability-service=osv", f"--osv-url={advisories}"]
    return subprocess.run(
        [sys.executable, "-m", "pip_audit", *words], check=False, capture_output=True, text=True
    )


def main(advisories: str) -> int:
    """Print what was found; the exit code."""
    done = asked(advisories)
    try:
        rows = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        rows = []
    looked_up = {row["name"]: row["version"] for row in rows if "vulns" in row}
    missed = sorted(set(pinned().items()) - set(looked_up.items()))
    found = [(row, advisory) for row in rows for advisory in row.get("vulns", ())]
    for row, advisory in found:
        fixed = ", ".join(advisory["fix_versions"]) or "no version"
        print(f"{row['name']} {row['version']}: {advisory['id']}, fixed in {fixed}")
    if missed:
        reason = (done.stderr.strip() or "it said nothing").splitlines()[-1]
        print(
            f"NOT AUDITED: {len(missed)} of {len(pinned())} pins were not looked up, "
            f"{missed[0][0]} first. The audit needs a service of advisories that answers: "
            f"the internet, or ADVISORIES=URL of a mirror. pip-audit: {reason}",
            file=sys.stderr,
        )
        return 2
    print(f"{len(looked_up)} pins were looked up, {len(found)} advisories were found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
