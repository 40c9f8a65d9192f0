"""Makes the modules of ``benchmarks`` importable, after everything else."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))
