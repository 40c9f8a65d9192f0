"""Reads command lines as RocketMQ's tool does, and prints the usage of commands.

Source: ServerUtil and the parser and formatter of commons-cli, which RocketMQ 5.3 uses.
"""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cometmq.cli.mqadmin.commands import ALIASES, MEANINGS, TABLE

WIDTH = 110
"""Characters of a line of the usage."""
LINES = {"4.9": 4, "5.3": 5}
"""Whose commands, flags and printouts there are, by release line."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag of a command."""

    short: str
    long: str
    meaning: str
    takes_value: bool = True
    required: bool = False

    @property
    def name(self) -> str:
        """The short name, or the long one if there is no short one."""
        return self.short or self.long.strip()

    @property
    def usage(self) -> str:
        """The flag as the usage shows it."""
        shown = f"-{self.short}" if self.short else f"--{self.long}"
        return f"{shown} <arg>" if self.takes_value else shown


COMMON = (
    Flag("h", "help", "print the flags and end", takes_value=False),
    Flag("n", "namesrvAddr", "addresses of the name servers: host:port;host:port"),
)
"""The flags of every command."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its flags, and the module that runs it."""

    name: str
    module: str
    does: str
    flags: tuple[Flag, ...]
    groups: tuple[tuple[str, ...], ...] = ()
    """Flags of which exactly one is given."""
    targets: tuple[str, ...] = ()
    """Flags of which one is given, or the command prints its usage."""

    @property
    def function(self) -> str:
        """The name of the function in the module: such as ``topic_list`` for ``topicList``."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.name).lower()

    def group_of(self, flag: Flag) -> tuple[str, ...]:
        """Return the flags of which one excludes the others, if the flag is one of them."""
        return next((group for group in self.groups if flag.short and flag.short in group), ())

    def usage(self) -> list[str]:
        """Return the lines that explain the command."""
        flags = sorted((*self.flags, *COMMON), key=lambda flag: flag.name.lower())
        left = [_left(flag) for flag in flags]
        column = max(map(len, left)) + 3
        lines = textwrap.wrap(
            f"usage: mqadmin {self.name} {' '.join(self._synopsis(flags))}",
            WIDTH,
            subsequent_indent=" " * len("usage: "),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for shown, flag in zip(left, flags, strict=True):
            lines += textwrap.wrap(
                flag.meaning,
                WIDTH,
                initial_indent=shown.ljust(column),
                subsequent_indent=" " * column,
                drop_whitespace=True,
            )
        return lines

    def _synopsis(self, flags: Sequence[Flag]) -> list[str]:
        parts: list[str] = []
        shown: set[tuple[str, ...]] = set()
        for flag in flags:
            if group := self.group_of(flag):
                members = [each.usage for each in flags if each.short in group]
                parts.append("" if group in shown else " | ".join(members))
                shown.add(group)
            else:
                parts.append(flag.usage if flag.required else f"[{flag.usage}]")
        return parts


def _left(flag: Flag) -> str:
    value = " <arg>" if flag.takes_value else ""
    names = f" -{flag.short}" if flag.short else "   "
    comma = "," if flag.short and flag.long else " " if flag.long else ""
    return f"{names}{comma}{f'--{flag.long}' if flag.long else ''}{value}"


class UsageError(Exception):
    """A command line is wrong."""


@functools.cache
def commands(line: int) -> dict[str, Command]:
    """Return the commands of a release line, by their name in lower case."""
    found: dict[str, Command] = {}
    meanings = dict(row.split(": ", 1) for row in MEANINGS.strip().splitlines())
    head, words = "", list[str]()
    for row in [*TABLE.strip().splitlines(), "end end: end"]:
        if row.startswith(" "):
            words += row.split()
            continue
        if head:
            command = _command(head, words, line, meanings)
            if command is not None:
                found[command.name.lower()] = command
        head, words = row, []
    for alias, name in ALIASES.items():
        if name.lower() in found:
            found[alias.lower()] = found[name.lower()]
    return found


def _command(head: str, words: list[str], line: int, meanings: dict[str, str]) -> Command | None:
    title, does = head.split(": ", 1)
    name, module = title.split()
    name, _, only = name.partition("@")
    if only and int(only) != line:
        return None
    flags: list[Flag] = []
    groups: list[tuple[str, ...]] = []
    targets: tuple[str, ...] = ()
    for word in words:
        text, _, only = word.partition("@")
        if only and int(only) != line:
            continue
        short, equals, long = text.partition("=")
        if not equals:
            if "/" in text:
                targets = tuple(text.split("/"))
            else:
                groups.append(tuple(text.split("|")))
            continue
        meaning = meanings.get(f"{name}.{long}") or meanings[long]
        flags.append(
            Flag(
                short.rstrip("!-"),
                long.replace("~", " "),
                meaning,
                takes_value="-" not in short,
                required="!" in short,
            )
        )
    return Command(name, module, does, tuple(flags), tuple(groups), targets)


def parse(command: Command, words: Sequence[str]) -> dict[str, str]:
    """Read the flags of a command line.

    Returns:
        The values by the flags' names, without blanks around them; a flag without a value has
        ``true``.

    Raises:
        UsageError: a flag is unknown, has no value, or is missing.
    """
    flags = (*command.flags, *COMMON)
    values: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            continue  # RocketMQ's tool ignores other words
        flag, value = _find(flags, word)
        if flag is None:
            raise UsageError(f"Unrecognized option: {word}")
        if flag.takes_value and value is None:
            if not rest or _find(flags, rest[0])[0] is not None:
                raise UsageError(f"Missing argument for option: {flag.name}")
            value = rest.pop(0)
        taken = next((each for each in command.group_of(flag) if each in values), flag.name)
        if taken != flag.name:
            raise UsageError(
                f"The option '{flag.name}' was specified but an option from this group has"
                f" already been selected: '{taken}'"
            )
        values.setdefault(flag.name, (value or "true").strip())
    if "h" not in values:
        _check(command, values)
    return values


def _check(command: Command, values: dict[str, str]) -> None:
    missing = [flag.name for flag in command.flags if flag.required and flag.name not in values]
    by_name = {flag.name: flag for flag in command.flags}
    for group in command.groups:
        if not any(name in values for name in group):
            shown = ", ".join(f"-{name} {by_name[name].meaning}" for name in group)
            missing.append(f"[{shown}]")
    if missing:
        plural = "s" if len(missing) > 1 else ""
        raise UsageError(f"Missing required option{plural}: {', '.join(missing)}")


def _find(flags: Iterable[Flag], word: str) -> tuple[Flag | None, str | None]:
    """Return the flag that a word names, and the value if it is in the same word."""
    if not word.startswith("-"):
        return None, None
    name, equals, value = word.lstrip("-").partition("=")
    joined = value if equals else None
    if not word.startswith("--"):
        for flag in flags:
            if flag.short == name:
                return flag, joined
    spelled = name.strip().replace("-", " ")
    longs = [flag for flag in flags if flag.long and flag.long.strip() == spelled]
    if not longs and len(name) > 1:
        longs = [flag for flag in flags if flag.long and flag.long.startswith(spelled)]
    if len(longs) == 1:
        return longs[0], joined
    if not word.startswith("--"):
        for flag in flags:
            if flag.short and flag.takes_value and word[1:].startswith(flag.short):
                return flag, word[1 + len(flag.short) :]
    return None, None
