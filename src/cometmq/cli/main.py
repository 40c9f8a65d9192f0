"""The entry point of the command line."""

from __future__ import annotations

import gc
import sys
from typing import NoReturn

from cometmq.cli import server_options
from cometmq.cli.exit_codes import exit_with


def main() -> NoReturn:
    """Run the command that the arguments name, and exit with its code."""
    exit_with(lambda: _run(sys.argv[1:]), "cometmq")


def _run(arguments: list[str]) -> int:
    options = server_options.parse(arguments)
    if options is not None:
        gc.disable()  # modules leave next to no garbage; `event_loop.run` enables it
        from cometmq.cli import servers

        return servers.COMMANDS[arguments[0]](options)
    if arguments[:1] == ["mqadmin"]:  # it reads flags as RocketMQ's tool does
        from cometmq.cli.mqadmin.app import main as mqadmin

        return mqadmin(arguments[1:])
    from cometmq.cli.commands import app

    app(prog_name="cometmq")
    return 0
