"""Runs the command line: ``python -m cometmq``."""

from cometmq.cli import main

if __name__ == "__main__":
    main()
