"""A page: from the query of a request to a struct, and from a struct to HTML or JSON."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar
from urllib.parse import urlencode

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from cometmq.client.errors import TopicNotFoundError
from cometmq.console.reads import Reads
from cometmq.model.errors import (
    CometError,
    ConfigError,
    InvalidMessageError,
    InvalidNameError,
)
from cometmq.model.nouns import counted
from cometmq.model.quantities import duration, size
from cometmq.protocol.bodies.route import RegisteredBroker
from cometmq.system.log_format import printable, printable_lines

T = TypeVar("T")
ROWS = 50
"""Rows of a page of a list."""
NAME_MAX = 255
PageNumber = Annotated[int, msgspec.Meta(ge=1, le=1_000_000, description="Page, from 1.")]
Name = Annotated[str, msgspec.Meta(max_length=NAME_MAX)]
Search = Annotated[
    str, msgspec.Meta(max_length=NAME_MAX, description="A part of the name, in any case.")
]


class Role(IntEnum):
    """The rights of a user; each role includes the roles before it."""

    READER = 1
    OPERATOR = 2
    ADMINISTRATOR = 3


class Query(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The parameters of a page; a field without a default is required."""


class Page(NamedTuple):
    """A page, and the JSON with the same content."""

    path: str
    title: str
    template: str
    """Below ``console``."""
    query: type[Query]
    result: type[msgspec.Struct]
    load: Callable[[Reads, Any], Awaitable[msgspec.Struct]]
    role: Role = Role.READER
    is_tab: bool = False
    """Whether the navigation has it."""

    @property
    def api(self) -> str:
        """The path of the same as JSON."""
        return "/api/overview" if self.path == "/" else f"/api{self.path}"


class NotFoundError(ConfigError):
    """There is nothing of the name or id that a query has."""


class TooSlowError(CometError):
    """The cluster took longer than a page or a change may."""


@contextlib.asynccontextmanager
async def within(seconds: float, text: str) -> AsyncIterator[None]:
    """Give what is inside of ``with`` some seconds.

    Raises:
        TooSlowError: they are over. The error of a server that did not respond stays as it is,
            though it is a `TimeoutError` too: it names the server.
    """
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if isinstance(error, CometError) and not limit.expired():
            raise
        raise TooSlowError(text) from None


def status_of(error: CometError) -> tuple[int, str]:
    """Return the HTTP status and the text for an error of a page or a change."""
    if isinstance(error, NotFoundError | TopicNotFoundError):
        return 404, str(error)
    if isinstance(error, ConfigError | InvalidNameError | InvalidMessageError):
        return 400, str(error)
    return 504 if isinstance(error, TooSlowError) else 502, str(error)


async def registered(reads: Reads, address: str) -> RegisteredBroker:
    """Return the broker with an address; the console connects to no other one.

    Raises:
        NotFoundError: no broker is registered with it.
    """
    for each in await reads.brokers():
        if each.address == address:
            return each
    raise NotFoundError(f"no broker {address} is registered")


class Paging(msgspec.Struct):
    """Which part of a list a page has."""

    total: int
    page: int
    pages: int


def paged(items: Sequence[T], page: int, rows: int = ROWS) -> tuple[Sequence[T], Paging]:
    """Return the items of a page; the last page if there are fewer."""
    pages = max(-(-len(items) // rows), 1)
    page = min(page, pages)
    return items[(page - 1) * rows : page * rows], Paging(len(items), page, pages)


def matching(names: Iterable[str], search: str) -> list[str]:
    """Return the names that contain a text, in any case."""
    wanted = search.strip().lower()
    return [name for name in names if wanted in name.lower()]


def query_of(kind: type[Query], pairs: Sequence[tuple[str, str]]) -> Query:
    """Return the parameters of a request; an empty one counts as not given.

    Raises:
        ConfigError: one is unknown, missing or wrong.
    """
    given = {name: value.strip() for name, value in pairs if value.strip()}
    known = kind.__struct_fields__
    if unknown := [name for name in given if name not in known]:
        raise ConfigError(
            f"unknown parameter {printable(unknown[0])[:NAME_MAX]}: expected"
            f" {', '.join(known) or 'none'}"
        )
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{error}: correct this parameter of the address") from None


def address(path: str, **parameters: object) -> str:
    """Return the address of a page with parameters; one without a value is left out."""
    given = {name: value for name, value in parameters.items() if value not in (None, "")}
    return f"{path}?{urlencode(given, errors='replace')}" if given else path


def _time(time_ms: int | None) -> Markup | str:
    """Return a time in UTC; the script shows it in the zone of the browser."""
    if not time_ms or not 0 < time_ms < 32_503_680_000_000:  # the year 3000
        return "-"
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    text = f"{moment:%Y-%m-%d %H:%M:%S}"
    return Markup('<time datetime="{}">{} UTC</time>').format(moment.isoformat(), text)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}".replace("%", " %")


def _shown(value: object) -> object:
    """Return a value for HTML, which Jinja2 then escapes: no control or direction characters."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return "-" if value is None else value
    return printable(value)


def _lines(text: str) -> Markup:
    """Return a text of several lines, escaped."""
    return Markup.escape(printable_lines(text.replace("\r\n", "\n").replace("\t", "    ")))


def environment() -> Environment:
    """Return the templates, with escaping on for all of them."""
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
        auto_reload=False,
    )
    made.filters |= {
        "time": _time,
        "number": _number,
        "ratio": _ratio,
        "size": lambda value: "-" if value is None else size(value),
        "duration": lambda value: "-" if value is None else duration(value),
        "counted": counted,
        "lines": _lines,
        "typed": Markup.escape,  # what a visitor typed, as it is
    }
    made.globals |= {"address": address}
    return made


def encoded(value: msgspec.Struct) -> bytes:
    """Return a struct as JSON."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # a lone surrogate, which a broker may send
        return json.dumps(msgspec.to_builtins(value)).encode()


def changed(query: Query, **changes: object) -> str:
    """Return the address of the same page with some parameters changed."""
    fields = query.__struct_fields__
    now = {name: getattr(query, name) for name in fields} | changes
    return address("", **{key: _word(value) for key, value in now.items()}) or "?"


def _word(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value
