"""Values, tables and records as text.

Each value has a key, which is its name in JSON. The end of a key says what the value is, and so how
a table shows it:

    _time_ms   a point in time, in ms since 1970; a local time in tables
    _ms        a duration in ms; with its unit in tables
    _bytes     a number of bytes; with its unit in tables
    _ratio     a part of 1; in percent in tables
    _per_s     rate per second

A pipe gets each row of a table as one whole line. A terminal gets the first of these that fits:

    1. the table;
    2. without the columns in which no row has a value;
    3. with heads that are broken at blanks;
    4. with one column that is broken at blanks, if it keeps `BROKEN_MIN` characters and its words
       fit; one cell in ten may have a longer word, which is cut;
    5. a record for each row: a line for each key. No word is cut, so that ids can be copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import zip_longest

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from cometmq.model.quantities import duration, size
from cometmq.system.log_format import printable

GAP = "  "
"""Between two columns."""
BROKEN_MIN = 20
"""The least width of a column that is broken."""
CUT_MAX = 0.1
"""The part of its cells that may have a word which is cut."""
PADDED_MAX = 200
"""In a pipe, a value that is longer does not make its column wider."""
LINES_KEYS = ("stack",)
"""The keys of texts of which a record shows each line, as it is."""
NOTHING = "-"
"""The text for a missing value."""
ENDS = (
    ("_per_s", "rate"),
    ("_time_ms", "time"),
    ("_ms", "time"),
    ("_bytes", "size"),
    ("_ratio", "ratio"),
)
"""The ends of keys, and the words for them."""
ABBREVIATIONS = frozenset(("dlq", "tps"))
"""The words of keys that heads have in capital letters."""


def local_time(time_ms: int) -> str:
    """Return a point in time as a local time."""
    moment = datetime.fromtimestamp(time_ms // 1000)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{time_ms % 1000:03}"


def shown(key: str, value: object) -> str:
    """Return a value as a table shows it."""
    if value is None or value == "":
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        if key.endswith("_per_s"):
            return f"{shown(key.removesuffix('_per_s'), value)}/s"
        if key.endswith("_time_ms"):
            return local_time(value) if value > 0 else NOTHING
        if key.endswith("_ms"):
            return duration(value)
        return size(value) if key.endswith("_bytes") else str(value)
    if isinstance(value, float):
        if key.endswith("_ratio"):
            return f"{value:.1%}".replace("%", " %")
        return f"{value:.2f} ms" if key.endswith("_ms") else f"{value:.2f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={shown('', each)}" for name, each in value.items()) or NOTHING
    if isinstance(value, list | tuple):
        return ", ".join(shown("", each) for each in value) or NOTHING
    return printable(str(value))


def heading(key: str) -> str:
    """Return the head of a column: the words of its key without the unit."""
    key = key.removesuffix("_per_s")
    for end, _ in ENDS:
        if key.endswith(end):
            key = key.removesuffix(end)
            break
    words = key.replace("_", " ").capitalize().split(" ")
    return " ".join(each.upper() if each.lower() in ABBREVIATIONS else each for each in words)


def headings(keys: Sequence[str]) -> list[str]:
    """Return the heads of columns; where two would be equal, a word says what the unit is of."""
    heads = [heading(key) for key in keys]
    words = [next((word for end, word in ENDS if key.endswith(end)), "") for key in keys]
    return [
        f"{head} {word}" if word and heads.count(head) > 1 else head
        for head, word in zip(heads, words, strict=True)
    ]


def broken(text: str, width: int) -> list[str]:
    """Return the lines of a text that is broken at blanks; a longer word is a line of its own."""
    lines: list[str] = []
    words = text.split(" ")
    line, filled = words[0], cell_len(words[0])
    for word in words[1:]:
        added = cell_len(word) + 1
        if filled + added > width:
            lines.append(line)
            line, filled = word, added - 1
        else:
            line, filled = f"{line} {word}", filled + added
    return [*lines, line]


class Column:
    """A column of a table.

    Args:
        key: its key.
        head: its head.
        values: its values.
    """

    def __init__(self, key: str, head: str, values: Sequence[object]) -> None:
        self.head = head
        self.cells = [shown(key, value) for value in values]
        self._cells_width = max(map(cell_len, self.cells))
        self.width = max(cell_len(head), self._cells_width)
        self.has_values = any(cell != NOTHING for cell in self.cells)
        numbers = [isinstance(each, int | float) and not isinstance(each, bool) for each in values]
        self._is_right = (
            any(numbers)
            and not key.endswith("_time_ms")
            and all(
                is_number or value is None for is_number, value in zip(numbers, values, strict=True)
            )
        )

    @property
    def width_of_cells(self) -> int:
        """The width if the head is broken."""
        return max(self._cells_width, *map(cell_len, self.head.split(" ")))

    def may_be_broken(self, width: int) -> bool:
        """Whether the cells can have this width."""
        cut = sum(any(cell_len(word) > width for word in cell.split(" ")) for cell in self.cells)
        return width >= BROKEN_MIN and cut <= CUT_MAX * len(self.cells)

    def padded(self, text: str, width: int) -> str:
        """Return a text with the blanks that the column has beside it."""
        blanks = " " * (width - cell_len(text))
        return blanks + text if self._is_right else text + blanks


def table_lines(
    keys: Sequence[str], rows: Sequence[Sequence[object]], width: int | None
) -> list[Text]:
    """Return rows as a table or, if it is too wide, as records.

    Args:
        keys: the keys of the values of a row.
        rows: the rows, at least one.
        width: of the terminal; None for a pipe.
    """
    columns = [
        Column(key, head, values)
        for key, head, values in zip(keys, headings(keys), zip(*rows, strict=True), strict=True)
    ]
    if width is None:
        return _table(columns, [min(each.width, PADDED_MAX) for each in columns])
    if (widths := _widths_that_fit(columns, width)) is None:
        columns = [each for each in columns if each.has_values] or columns
        widths = _widths_that_fit(columns, width) or _broken_widths(columns, width)
    if widths is not None:
        return _table(columns, widths, is_terminal=True)
    heads = [each.head for each in columns]
    lines: list[Text] = []
    for cells in zip(*(each.cells for each in columns), strict=True):
        lines += [*([Text()] if lines else []), *_record(heads, cells, width)]
    return lines


def _excess(widths: Sequence[int], width: int) -> int:
    """Return by how much a table is wider than a terminal."""
    return sum(widths) + len(GAP) * (len(widths) - 1) - width


def _widths_that_fit(columns: Sequence[Column], width: int) -> list[int] | None:
    """Return the widths of whole columns; None if the terminal is too narrow for them."""
    widths = [each.width for each in columns]
    return None if _excess(widths, width) > 0 else widths


def _broken_widths(columns: Sequence[Column], width: int) -> list[int] | None:
    """Return the widths with broken heads, and one broken column if that is needed."""
    widths = [each.width_of_cells for each in columns]
    excess = _excess(widths, width)
    if excess <= 0:
        return widths
    for number in sorted(range(len(columns)), key=widths.__getitem__, reverse=True):
        left = widths[number] - excess
        if columns[number].may_be_broken(left):
            return [*widths[:number], left, *widths[number + 1 :]]
    return None


def _table(
    columns: Sequence[Column], widths: Sequence[int], *, is_terminal: bool = False
) -> list[Text]:
    """Return a table. In a terminal a rule stands below its head, and cells are broken."""

    def lines(cells: Iterable[str]) -> list[str]:
        parts = [
            _cut(cell, width) if is_terminal else [cell]
            for cell, width in zip(cells, widths, strict=True)
        ]
        return [
            GAP.join(
                column.padded(part, width)
                for column, part, width in zip(columns, line, widths, strict=True)
            ).rstrip()
            for line in zip_longest(*parts, fillvalue="")
        ]

    found = [Text(line, "bold") for line in lines(each.head for each in columns)]
    if is_terminal:
        found.append(Text("─" * (sum(widths) + len(GAP) * (len(widths) - 1))))
    for cells in zip(*(each.cells for each in columns), strict=True):
        found += map(Text, lines(cells))
    return found


def _cut(text: str, width: int) -> list[str]:
    """Return the lines of a text that is broken at blanks, and inside of longer words."""
    return [part for line in broken(text, width) for part in chop_cells(line, width) or [line]]


def _record(heads: Sequence[str], cells: Iterable[str], width: int | None) -> list[Text]:
    """Return one row with a line for each key; further lines of a value stand below the first."""
    begin = max(map(cell_len, heads)) + len(GAP)
    left = None if width is None else max(width - begin, BROKEN_MIN)
    lines: list[Text] = []
    for head, cell in zip(heads, cells, strict=True):
        parts = cell.split("\n")
        if left is not None and len(parts) == 1:
            parts = broken(cell, left)
        first = head + " " * (begin - cell_len(head))
        lines.append(Text.assemble((first, "bold"), parts[0]))
        lines += [Text(" " * begin + part) for part in parts[1:]]
    return lines


def record_lines(keys: Sequence[str], row: Sequence[object], width: int | None) -> list[Text]:
    """Return one row as a record; see `table_lines`."""
    cells = [
        "\n".join(map(printable, cell.splitlines()))
        if key in LINES_KEYS and isinstance(cell, str) and cell
        else shown(key, cell)
        for key, cell in zip(keys, row, strict=True)
    ]
    return _record(headings(keys), cells, width)


def _console(*, errors: bool = False) -> Console:
    return Console(stderr=errors, highlight=False, markup=False, emoji=False)


def _print(lines: Iterable[Text], console: Console) -> None:
    for line in lines:
        console.print(line, soft_wrap=True)


def _width(console: Console) -> int | None:
    return console.width if console.is_terminal else None


def print_table(
    keys: Sequence[str], rows: Sequence[Sequence[object]], *, errors: bool = False
) -> None:
    """Print rows, at least one, to standard output, or to standard error if ``errors``."""
    console = _console(errors=errors)
    _print(table_lines(keys, rows, _width(console)), console)


def print_record(keys: Sequence[str], row: Sequence[object]) -> None:
    """Print one row as a record."""
    console = _console()
    _print(record_lines(keys, row, _width(console)), console)


def clear_terminal() -> None:
    """Clear standard output if it is a terminal."""
    console = _console()
    if console.is_terminal:
        console.clear()
