"""The command line: starts servers, sends and reads messages, inspects stores. `main` runs it."""

from cometmq.cli.main import main

__all__ = ["main"]
