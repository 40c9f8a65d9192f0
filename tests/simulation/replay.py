"""Runs one world of the simulation and prints its history: ``replay.py SEED [--digest]``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / part) for part in ("", "tests")]

from simulation.world import simulate  # noqa: E402


def main() -> None:
    """Print the history, or only its hash."""
    history = simulate(int(sys.argv[1]))
    if "--digest" in sys.argv:
        print(history.digest())
        return
    print(*history.events, *(f"WRONG {problem}" for problem in history.failures), sep="\n")


if __name__ == "__main__":
    main()
