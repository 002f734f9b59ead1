"""Makes ``python -m bookie`` run the command ``bookie``."""

from __future__ import annotations

from bookie.cli.app import main

if __name__ == "__main__":
    main()
