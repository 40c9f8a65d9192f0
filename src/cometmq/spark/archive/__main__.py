"""Runs a command of archives; also as a script of ``spark-submit``."""

import sys
from pathlib import Path

if sys.path and Path(sys.path[0]).resolve() == Path(__file__).resolve().parent:
    del sys.path[0]  # run as a file, or our modules would hide others of the same name

from cometmq.spark.archive.command import main

if __name__ == "__main__":
    sys.exit(main())
