"""What the commands print: tables or JSON, planned changes, and the question before them.

Each value has a key, which is its name in JSON. The end of a key says what the value is, and so how
a table shows it:

    _time_ms   a point in time, in ms since 1970; a local time in tables
    _ms        a duration in ms; with its unit in tables
    _bytes     a number of bytes; with its unit in tables
    _per_s     so many in a second
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from cometmq.model.errors import CometError, ConfigError
from cometmq.system.log_format import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Row = tuple[object, ...]
Rows = Iterable[Row]

WIDTH_MAX = 4096
"""Characters of a line if the output is no terminal."""
UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))
BYTES = ("B", "KiB", "MiB", "GiB", "TiB")
CHANGE_KEYS = ("change", "target", "detail", "state", "error")
"""The keys of a change in JSON; ``state`` is ``planned``, ``done`` or ``failed``."""


@dataclass(frozen=True, slots=True)
class Change:
    """One step of a command that changes something."""

    change: str
    """What it does, such as ``delete topic orders``."""
    target: str
    """The server, queue or file that it changes."""
    run: Callable[[], Awaitable[object]] | None
    """Makes the change; None if the step before it makes this one too."""
    detail: str = ""
    """What a person wants to know before, such as the number of messages that are lost."""
    destroys: bool = False
    """Whether it loses something, or stops clients: the command then asks before."""


def local_time(time_ms: int) -> str:
    """Return a point in time as a local time."""
    moment = datetime.fromtimestamp(time_ms // 1000)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{time_ms % 1000:03}"


def duration(value_ms: int) -> str:
    """Return a duration with its two largest units, such as ``2 h 5 min``."""
    parts: list[str] = []
    rest = max(value_ms, 0)
    for unit, size in UNITS:
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count} {unit}")
        if len(parts) == 2:
            return " ".join(parts)
    return " ".join(parts) if parts else f"{rest} ms"


def size(value: int) -> str:
    """Return a number of bytes with its unit."""
    amount, unit = float(value), BYTES[0]
    for unit in BYTES:
        if abs(amount) < 1024 or unit == BYTES[-1]:
            break
        amount /= 1024
    return f"{value} B" if unit == "B" else f"{amount:.1f} {unit}"


def shown(key: str, value: object) -> str:
    """Return a value as a table shows it."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        if key.endswith("_per_s"):
            return f"{shown(key.removesuffix('_per_s'), value)}/s"
        if key.endswith("_time_ms"):
            return local_time(value) if value > 0 else "-"
        if key.endswith("_ms"):
            return duration(value)
        return size(value) if key.endswith("_bytes") else str(value)
    if isinstance(value, float):
        return f"{value:.2f} ms" if key.endswith("_ms") else f"{value:.2f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={shown('', each)}" for name, each in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ", ".join(shown("", each) for each in value) or "-"
    return printable(str(value))


def heading(key: str) -> str:
    """Return the head of a column: the words of its key without the unit."""
    key = key.removesuffix("_per_s")
    for end in ("_time_ms", "_ms", "_bytes"):
        if key.endswith(end) and key != end[1:]:
            key = key.removesuffix(end)
            break
    return key.replace("_", " ").capitalize()


def table_of(keys: Sequence[str], rows: Sequence[Row], *, boxed: bool) -> Table:
    """Return a table with a column for each key."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD if boxed else None, pad_edge=False, header_style="bold")
    for number, key in enumerate(keys):
        cells = [row[number] for row in rows]
        right = any(isinstance(cell, int | float) for cell in cells) and all(
            cell is None or (isinstance(cell, int | float) and not isinstance(cell, bool))
            for cell in cells
        )
        table.add_column(
            heading(key),
            justify="right" if right and not key.endswith("_time_ms") else "left",
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(shown(key, cell)) for key, cell in zip(keys, row, strict=True)))
    return table


def record_of(keys: Sequence[str], row: Row) -> Table:
    """Return one row as a table with a line for each key."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for key, cell in zip(keys, row, strict=True):
        table.add_row(heading(key), Text(shown(key, cell)))
    return table


def _console(*, errors: bool = False) -> Console:
    from rich.console import Console

    console = Console(stderr=errors, highlight=False, markup=False, emoji=False, soft_wrap=False)
    if not console.is_terminal:
        console.width = WIDTH_MAX
    return console


@dataclass(frozen=True, slots=True)
class Output:
    """Prints for people or for scripts."""

    as_json: bool = False

    def rows(
        self, keys: Sequence[str], rows: Rows, *, line: bool = False, empty: str = "nothing found"
    ) -> None:
        """Print rows: a table, or a JSON array of objects, in one line if ``line``.

        Args:
            keys: those of the values of a row.
            rows: the rows.
            line: whether JSON is one line.
            empty: what to say to a person if there are no rows.
        """
        found = list(rows)
        if self.as_json:
            self._json([dict(zip(keys, row, strict=True)) for row in found], line=line)
            return
        console = _console()
        if found:
            console.print(table_of(keys, found, boxed=console.is_terminal))
        else:
            print(empty, file=sys.stderr)

    def record(self, keys: Sequence[str], row: Row, *, line: bool = False) -> None:
        """Print one row: a line for each key, or a JSON object."""
        if self.as_json:
            self._json(dict(zip(keys, row, strict=True)), line=line)
            return
        _console().print(record_of(keys, row))

    def _json(self, value: Any, *, line: bool) -> None:
        text = json.dumps(value, ensure_ascii=False, indent=None if line else 2, default=str)
        print(text, flush=True)

    def round(self, time_text: str) -> None:
        """Begin to print again what was printed before: on an empty screen if it is a terminal."""
        if self.as_json:
            return
        console = _console()
        if console.is_terminal:
            console.clear()
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
    console = _console(errors=True)
    rows = [(each.change, each.target, each.detail) for each in changes]
    console.print(table_of(CHANGE_KEYS[:3], rows, boxed=True))
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
