"""Runs one command line of ``cometmq mqadmin``."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib import import_module
from typing import TextIO

from cometmq.cli.exit_codes import FAILED, print_error
from cometmq.cli.mqadmin.command_line import LINES, Command, UsageError, commands, parse
from cometmq.cli.mqadmin.commands import ABSENT

LIKE = "COMETMQ_MQADMIN_LIKE"
"""The environment variable for ``--like``."""
NEWEST = max(LINES.values())
"""The line that also takes commands that only an older one has, such as those about accounts."""
HELP = ("help", "-h", "--help")
_KEPT = ("\n", "\t")
_BREAKS = re.compile(r"([\n\t])")


def main(words: Sequence[str]) -> int:
    """Run a command line and return the exit code."""
    from cometmq.cli.event_loop import run as run_loop

    if not sys.stdout.isatty():  # programs get what messages have, byte for byte
        return run_loop(run(words))
    with redirect_stdout(_Terminal(sys.stdout)):
        return run_loop(run(words))


class _Terminal(io.TextIOBase):
    """A terminal, which bodies and names of messages do not control.

    Args:
        terminal: gets the text, with escapes.
    """

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal

    def write(self, text: str) -> int:
        """Write a text."""
        from cometmq.system.log_format import printable

        parts = _BREAKS.split(text)
        self._terminal.write("".join(each if each in _KEPT else printable(each) for each in parts))
        return len(text)

    def flush(self) -> None:
        """Show what was written."""
        self._terminal.flush()


async def run(words: Sequence[str]) -> int:
    """Run a command line, without the word ``mqadmin``, and return the exit code."""
    try:
        line, rest = _like(list(words))
    except UsageError as error:
        return _refuse(str(error))
    if not rest or (len(rest) == 1 and rest[0] in HELP):
        _print_commands(commands(line))
        return 0
    known = commands(min(LINES.values())) | commands(line) if line == NEWEST else commands(line)
    name, *arguments = rest
    if name == "help" and arguments:
        command = known.get(arguments[0].lower())
        return _absent(arguments[0]) if command is None else _print_usage(command)
    command = known.get(name.lower())
    if command is None:
        return _absent(name)
    try:
        values = parse(command, arguments)
    except UsageError as error:
        _print_usage(command)
        return _refuse(str(error))
    if "h" in values or (command.targets and not values.keys() & command.targets):
        return _print_usage(command)
    return await _run(command, values, line)


async def _run(command: Command, values: dict[str, str], line: int) -> int:
    from cometmq.cli.account import client_settings
    from cometmq.cli.mqadmin.call import Call, described
    from cometmq.client import AdminClient, ClientInstance
    from cometmq.model.errors import CometError

    module = import_module(f"cometmq.cli.mqadmin.{command.module}")
    handler = getattr(module, command.function)
    try:
        async with (
            ClientInstance(values.get("n", ""), settings=client_settings()) as instance,
            AdminClient(instance=instance) as admin,
        ):
            call = Call(command, values, line, admin, instance)
            await handler(call)
            return FAILED if call.failed else 0
    except CometError as error:
        return _refuse(f"cometmq mqadmin {command.name}: {described(error)}")


def _like(words: list[str]) -> tuple[int, list[str]]:
    wanted = os.environ.get(LIKE, "5.3")
    if words and words[0].partition("=")[0] == "--like":
        _, equals, wanted = words.pop(0).partition("=")
        if not equals:
            wanted = words.pop(0) if words else ""
    line = LINES.get(".".join(wanted.split(".")[:2]))
    if line is None:
        raise UsageError(f"--like {wanted or '(nothing)'}: expected {' or '.join(LINES)}")
    return line, words


def _print_commands(known: dict[str, Command]) -> None:
    print("The most commonly used mqadmin commands are:")
    for command in dict.fromkeys(known.values()):
        print(f"   {command.name:<35} {command.does}")
    print("\nSee 'mqadmin help <command>' for more information on a specific command.")


def _print_usage(command: Command) -> int:
    print("\n".join(command.usage()))
    return 0


def _absent(name: str) -> int:
    reason = next((why for each, why in ABSENT.items() if each.lower() == name.lower()), None)
    print(f"The sub command {name} not exist.")
    return _refuse(f"cometmq mqadmin {name}: {reason}") if reason else FAILED


def _refuse(reason: str) -> int:
    print_error(reason)
    return FAILED
