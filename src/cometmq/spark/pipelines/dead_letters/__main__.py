"""Runs ``dead-letters`` as a command: ``python -m cometmq.spark.pipelines.dead_letters``."""

import sys

from cometmq.spark.pipelines.running.command import main

if __name__ == "__main__":
    sys.exit(main("dead-letters"))
