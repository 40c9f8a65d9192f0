"""Runs one name server: ``python -m cometmq.namesrv -c namesrv.conf``.

It prints one line that begins with ``ready`` once it serves, and ends on SIGTERM or Ctrl-C.

Source: ours; the options are those of RocketMQ's start script.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from cometmq.model.errors import CometError
from cometmq.namesrv.app import SETTINGS, NameServer
from cometmq.namesrv.config import files_below
from cometmq.system.configuration import Configuration, load
from cometmq.system.rocketmq_keys import NAMESRV_KEYS

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a name server; return the exit code."""
    options = _options().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        configuration = _configuration(options)
        if options.print_config:
            sys.stdout.write(configuration.render_with_origins())
            return 0
        asyncio.run(_serve(NameServer(configuration)))
    except CometError as problem:
        print(problem, file=sys.stderr)
        return 2
    return 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cometmq.namesrv", description=__doc__)
    parser.add_argument("-c", "--config", type=Path, metavar="FILE", help="properties file")
    parser.add_argument("--port", help="TCP port; 0 for a free port")
    parser.add_argument("--host", help="local address to listen on")
    parser.add_argument("--store", type=Path, metavar="DIR", help="directory of its files")
    parser.add_argument("-p", "--print-config", action="store_true", help="print the settings")
    return parser


def _configuration(options: argparse.Namespace) -> Configuration:
    said = {"listenPort": options.port, "bindAddress": options.host}
    command_line = {key: text for key, text in said.items() if text is not None}
    if options.store is not None:
        command_line |= files_below(options.store)
    elif options.config is not None:
        command_line["configStorePath"] = str(options.config)
    configuration = load(
        SETTINGS,
        known_keys=NAMESRV_KEYS,
        file=options.config,
        command_line=command_line,
        environment=os.environ,
    )
    if warning := configuration.warning():
        log.warning(warning)
    return configuration


async def _serve(server: NameServer) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    await server.start()
    try:
        print(f"ready namesrv={server.address}", flush=True)
        await stopping.wait()
    finally:
        await server.stop()


if __name__ == "__main__":
    sys.exit(main())
