"""The output of the commands: tables or JSON, planned changes, and the question before them."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cometmq.model.errors import CometError, ConfigError
from cometmq.system.log_format import printable

Row = tuple[object, ...]
Rows = Iterable[Row]

CHANGE_KEYS = ("change", "target", "detail", "state", "error")
"""The keys of a change in JSON; ``state`` is ``planned``, ``done`` or ``failed``."""


@dataclass(frozen=True, slots=True)
class Change:
    """One step of a command that changes something."""

    change: str
    """The change, such as ``delete topic orders``."""
    target: str
    """The server, queue or file that it changes."""
    run: Callable[[], Awaitable[object]] | None
    """Makes the change; None if the step before it makes this one too."""
    detail: str = ""
    """The facts that matter before the change, such as the number of messages that are lost."""
    destroys: bool = False
    """Whether it loses something, or stops clients: the command then asks before."""


@dataclass(frozen=True, slots=True)
class Output:
    """Prints for people or for scripts."""

    as_json: bool = False

    def rows(
        self, keys: Sequence[str], rows: Rows, *, line: bool = False, empty: str = "nothing found"
    ) -> None:
        """Print rows: a table, or a JSON array of objects, in one line if ``line``.

        Args:
            keys: the keys of the values of a row.
            rows: the rows.
            line: whether JSON is one line.
            empty: what to say to a person if there are no rows.
        """
        found = list(rows)
        if self.as_json:
            self._json([dict(zip(keys, row, strict=True)) for row in found], line=line)
            return
        if not found:
            print(empty, file=sys.stderr)
            return
        from cometmq.cli.admin.tables import print_table

        print_table(keys, found)

    def record(self, keys: Sequence[str], row: Row, *, line: bool = False) -> None:
        """Print one row: a line for each key, or a JSON object."""
        if self.as_json:
            self._json(dict(zip(keys, row, strict=True)), line=line)
            return
        from cometmq.cli.admin.tables import print_record

        print_record(keys, row)

    def _json(self, value: Any, *, line: bool) -> None:
        text = json.dumps(value, ensure_ascii=False, indent=None if line else 2, default=str)
        if sys.stdout.isatty():
            text = "\n".join(map(printable, text.split("\n")))
        print(text, flush=True)

    def round(self, time_text: str) -> None:
        """Begin to print again what was printed before: on an empty screen if it is a terminal."""
        if self.as_json:
            return
        from cometmq.cli.admin.tables import clear_terminal

        clear_terminal()
        print(time_text, flush=True)

    def changes(self, changes: Sequence[Change], states: Sequence[tuple[str, str]]) -> None:
        """Print changes with their states and errors."""
        rows = [
            (each.change, each.target, each.detail, *state)
            for each, state in zip(changes, states, strict=True)
        ]
        if self.as_json:
            self.rows(CHANGE_KEYS, rows)
            return
        used = [
            number
            for number, key in enumerate(CHANGE_KEYS)
            if key not in ("detail", "error") or any(row[number] for row in rows)
        ]
        self.rows([CHANGE_KEYS[n] for n in used], [tuple(row[n] for n in used) for row in rows])


PLANNED = ("planned", "")


def confirmed(changes: Sequence[Change]) -> bool:
    """Show changes, and ask whether to make them.

    Raises:
        ConfigError: there is no terminal to ask on.
    """
    if not sys.stdin.isatty():
        first = next(each for each in changes if each.destroys)
        raise ConfigError(
            f"{first.change} ({first.target}) needs a confirmation, and standard input is no"
            " terminal: check the change with --dry-run, then add --yes"
        )
    from cometmq.cli.admin.tables import print_table

    rows = [(each.change, each.target, each.detail) for each in changes]
    print_table(CHANGE_KEYS[:3], rows, errors=True)
    print("Make these changes? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


async def make(changes: Sequence[Change]) -> list[tuple[str, str]]:
    """Make changes in their order, also after one has failed; return states and errors."""
    states: list[tuple[str, str]] = []
    for each in changes:
        if each.run is None:
            states.append(states[-1])
            continue
        try:
            await each.run()
            states.append(("done", ""))
        except CometError as error:
            states.append(("failed", str(error)))
    return states
