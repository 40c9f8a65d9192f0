"""Runs worlds of the simulation and prints their histories: ``replay.py [--digest] SEED ...``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / part) for part in ("", "tests")]

from simulation.world import simulate  # noqa: E402


def main() -> None:
    """Print histories, or only their hashes."""
    seeds = [int(argument) for argument in sys.argv[1:] if argument != "--digest"]
    for seed in seeds:
        history = simulate(seed)
        if "--digest" in sys.argv:
            print(history.digest())
        else:
            wrong = (f"WRONG {problem}" for problem in history.failures)
            print(*history.events, *wrong, sep="\n")


if __name__ == "__main__":
    main()
