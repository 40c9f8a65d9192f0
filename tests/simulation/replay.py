"""Runs worlds of the simulation and prints their histories.

``replay.py [--digest | --counts] SEED ...``: whole histories, only their hashes, or a line of JSON
for each.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / part) for part in ("", "tests")]

from simulation.world import simulate  # noqa: E402


def main() -> None:
    """Print what the arguments ask for."""
    seeds = [int(argument) for argument in sys.argv[1:] if not argument.startswith("--")]
    for seed in seeds:
        history = simulate(seed)
        if "--digest" in sys.argv:
            print(history.digest())
        elif "--counts" in sys.argv:
            counts = {
                "seed": seed,
                "failures": history.failures[:5],
                "acknowledged": sum(send.is_acknowledged for send in history.sends.values()),
                "elections": sum(" SYNC_MASTER " in event for event in history.events),
            }
            print(json.dumps(counts), flush=True)
        else:
            wrong = (f"WRONG {problem}" for problem in history.failures)
            print(*history.events, *wrong, sep="\n")


if __name__ == "__main__":
    main()
