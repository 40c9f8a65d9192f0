"""A result: as text, as a file, and beside other results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from cometmq.cli.bench.meter import Load
from cometmq.model.errors import ConfigError

FORMAT = 1


class Result(msgspec.Struct, kw_only=True):
    """What was measured."""

    format: int = FORMAT
    system: str
    version: str
    """Of the servers, as far as they tell it."""
    client: str
    """The version and the build of CometMQ."""
    began: str
    """ISO 8601, in UTC."""
    load: Load
    seconds: float
    messages: int
    is_drained: bool
    """Whether there was nothing left to consume before the time was over, which is shorter then."""
    errors: int
    last_error: str
    rate: float
    """Messages a second."""
    rates: list[float]
    """Of each second."""
    milliseconds: dict[str, float]
    """Percentiles of the durations, and the largest."""
    client_cpu_us: float | None
    """Processor time of this process for a message, in µs."""
    server_cpu_us: float | None
    """The same of the servers, if their processes were named."""
    buckets: dict[int, int]
    """The durations: bucket b has those up to 2 ** (b / 64) µs."""


def text_of(result: Result) -> str:
    """Return a result for people."""
    ended = ", then nothing was left" if result.is_drained else ""
    lines = [
        f"messages    {result.messages:,} in {result.seconds:.1f} s{ended}",
        f"rate        {result.rate:,.0f}/s"
        f" (lowest second {min(result.rates):,.0f}, highest {max(result.rates):,.0f})",
    ]
    if result.milliseconds:
        shown = "  ".join(f"{name} {value:g} ms" for name, value in result.milliseconds.items())
        lines.append(f"durations   {shown}")
    for name, value in (("client", result.client_cpu_us), ("servers", result.server_cpu_us)):
        if value is not None:
            lines.append(f"{name:<11} {value:g} µs of processor time a message")
    if result.errors:
        lines.append(f"errors      {result.errors:,}, the last: {result.last_error}")
    return "\n".join(lines) + "\n"


def write(result: Result, path: Path) -> None:
    """Write a result into a file.

    Raises:
        ConfigError: the file cannot be written.
    """
    content = msgspec.json.format(msgspec.json.encode(result), indent=1)
    try:
        path.write_bytes(content + b"\n")
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}; expected a file that can be written"
        ) from None


def read(path: Path) -> Result:
    """Read a result from a file.

    Raises:
        ConfigError: the file cannot be read, or is no result.
    """
    try:
        result = msgspec.json.decode(path.read_bytes(), type=Result)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; expected a file of a result") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: {error}; expected a file of a result") from None
    if result.format != FORMAT:
        raise ConfigError(f"{path}: format {result.format}; expected {FORMAT}")
    return result


def compared(results: Sequence[Result]) -> str:
    """Return results side by side, each figure with how many times the first one's it is.

    Raises:
        ConfigError: the loads differ.
    """
    first = results[0]
    for each in results[1:]:
        if different := [
            name
            for name in Load.__struct_fields__
            if getattr(each.load, name) != getattr(first.load, name)
        ]:
            name = different[0]
            raise ConfigError(
                f"loads differ: {name} is {getattr(first.load, name)} and"
                f" {getattr(each.load, name)}; expected results of one load"
            )
    rows: list[tuple[str, list[float | None]]] = [
        ("messages/s", [each.rate for each in results]),
        *(
            (f"{name}, ms", [each.milliseconds.get(name) for each in results])
            for name in first.milliseconds
        ),
        ("client, µs a message", [each.client_cpu_us for each in results]),
        ("servers, µs a message", [each.server_cpu_us for each in results]),
        ("errors", [float(each.errors) for each in results]),
    ]
    table = [["", *(f"{each.system} {each.version}" for each in results)]]
    for name, values in rows:
        if any(value is not None for value in values):
            table.append([name, *(_cell(value, values[0]) for value in values)])
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return "".join(
        "  ".join(
            cell.ljust(width) if not column else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        + "\n"
        for row in table
    )


def _cell(value: float | None, first: float | None) -> str:
    if value is None:
        return "-"
    ratio = f" x{value / first:.2f}" if first else ""
    return f"{value:,.4g}{ratio}" if value < 1000 else f"{value:,.0f}{ratio}"
