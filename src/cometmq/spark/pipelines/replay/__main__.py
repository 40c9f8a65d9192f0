"""Runs ``replay`` as a command: ``python -m cometmq.spark.pipelines.replay``."""

import sys

from cometmq.spark.pipelines.running.command import main

if __name__ == "__main__":
    sys.exit(main("replay"))
