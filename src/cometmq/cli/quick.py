"""Starts servers without the command-line library, which loads slower than a server starts.

This module reads the plain options of the server commands. It leaves other arguments (help,
mistakes) to the full command line, which has the same options; a test compares the two.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

PROCESSES_MAX = 64


class Call(NamedTuple):
    """A command and the values of its options, by the name of their parameter."""

    command: str
    options: dict[str, Any]


class _Option(NamedTuple):
    parameter: str
    read: Callable[[str], Any]


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= 65_535):
        raise ValueError(text)
    return int(text)


def _processes(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= PROCESSES_MAX):
        raise ValueError(text)
    return int(text)


_COMMON = {
    "--host": _Option("host", str),
    "-c": _Option("config", Path),
    "--config": _Option("config", Path),
    "--log-level": _Option("log_level", str),
    "--log-format": _Option("log_format", str),
}
_STORE = {"--store": _Option("store", Path)}

SERVERS: Mapping[str, Mapping[str, _Option]] = {
    "standalone": _COMMON
    | _STORE
    | {
        "--namesrv-port": _Option("namesrv_port", _port),
        "--broker-port": _Option("broker_port", _port),
    },
    "namesrv": _COMMON | {"--port": _Option("port", _port)},
    "broker": _COMMON
    | _STORE
    | {
        "--port": _Option("port", _port),
        "-n": _Option("namesrv", str),
        "--namesrv": _Option("namesrv", str),
        "--processes": _Option("processes", _processes),
    },
    "filtersrv": _COMMON | {"--port": _Option("port", _port), "--broker": _Option("broker", str)},
    "controller": _COMMON | {"--port": _Option("port", _port)},
}
"""The server commands and their options."""


def parse(arguments: list[str]) -> Call | None:
    """Read the arguments of a server command; None if they take more than this to read."""
    if not arguments or arguments[0] not in SERVERS:
        return None
    known = SERVERS[arguments[0]]
    options: dict[str, Any] = {}
    words = iter(arguments[1:])
    for word in words:
        name, equals, text = word.partition("=")
        option = known.get(name)
        value = text if equals else next(words, None)
        if option is None or value is None or (equals and not name.startswith("--")):
            return None
        try:
            options[option.parameter] = option.read(value)
        except ValueError:
            return None
    return Call(arguments[0], options)


def run(call: Call) -> int:
    """Run the server and give its exit code."""
    gc.disable()  # modules leave next to no garbage; `event_loop.run` enables it
    from cometmq.cli import servers

    return servers.COMMANDS[call.command](**call.options)
