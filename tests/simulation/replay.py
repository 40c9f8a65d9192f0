"""Runs worlds of the simulation and prints their histories.

``replay.py [--digest | --counts] SEED ...``: whole histories, only their hashes, or a line of JSON
for each.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / part) for part in ("", "tests")]

from simulation.history import History  # noqa: E402
from simulation.world import simulate  # noqa: E402

CHILD_SEEDS = 10
"""Worlds of one process: worlds of killed compiled servers stay in memory, 8 MB each."""


def main() -> None:
    """Print what the arguments ask for."""
    seeds = [int(argument) for argument in sys.argv[1:] if not argument.startswith("--")]
    for start in range(0, len(seeds), CHILD_SEEDS):
        child = os.fork()
        if child == 0:
            _run(seeds[start : start + CHILD_SEEDS])
        _, status = os.waitpid(child, 0)
        if status:
            sys.exit(f"a child ended with the status {status}")


def _run(seeds: Sequence[int]) -> None:
    """Print worlds and end the process, without a look at the memory that is left."""
    gc.disable()
    try:
        for seed in seeds:
            _print(seed, simulate(seed))
        sys.stdout.flush()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _print(seed: int, history: History) -> None:
    if "--digest" in sys.argv:
        print(history.digest())
    elif "--counts" in sys.argv:
        print(json.dumps({"seed": seed, **history.counts()}))
    else:
        wrong = (f"WRONG {problem}" for problem in history.failures)
        print(*history.events, *wrong, sep="\n")


if __name__ == "__main__":
    main()
