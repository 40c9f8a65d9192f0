"""The command line: starts servers, sends, reads, and looks into stores. `main` runs it."""

from cometmq.cli.main import main

__all__ = ["main"]
