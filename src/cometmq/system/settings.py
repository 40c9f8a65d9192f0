"""Settings: frozen dataclasses whose fields have a RocketMQ key, a unit and a range.

A part of the program declares its settings as one frozen dataclass. Every field is made by
`setting` and has a docstring on the lines below it; the key is RocketMQ's, or the field's name in
camelCase where RocketMQ has no such setting. Values come as text (from a file, the command line,
the environment or a request) and are parsed by the field's type:

    bool               ``true`` or ``false``, in any case
    int, float         a number in its range
    str                unchanged, without blanks around it
    Path               the same, with ``~`` for the home directory
    tuple[str, ...]    values separated by semicolons, blank ones left out
    X | None           no text at all means None

The keys are those of RocketMQ's properties files.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from cometmq.model.errors import ConfigError

T = TypeVar("T")

ADDRESS = re.compile(r"[^\s:;]+:[0-9]{1,5}|\[[0-9A-Fa-f:.%]+\]:[0-9]{1,5}")
"""``host:port`` of a server; an IPv6 address is in brackets."""
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")


def setting(
    default: Any = dataclasses.MISSING,
    *,
    key: str | None = None,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] | None = None,
    factory: Callable[[], Any] | None = None,
    environment: str | None = None,
    remote: bool = False,
    secret: bool = False,
) -> Any:
    """Declare a field of a settings dataclass.

    Args:
        default: the value when nothing sets it; an immutable value.
        key: the name in RocketMQ's properties files; None for a setting that RocketMQ lacks.
        unit: of the value, for help texts: ``ms``, ``bytes``, ``%``.
        low, high: the inclusive range of a number.
        choices: the allowed texts.
        factory: makes the default where it depends on the machine, such as its host name.
        environment: the environment variable that sets it when file and command line do not.
        remote: whether a request may change it while the server runs. Do not set it for a path,
            a command or the name of code.
        secret: the value is never printed and never in a response.
    """
    facts = {
        "key": key,
        "unit": unit,
        "low": low,
        "high": high,
        "choices": choices,
        "environment": environment,
        "remote": remote,
        "secret": secret,
    }
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata=facts, repr=not secret)
    return dataclasses.field(default=default, metadata=facts, repr=not secret)


@typing.dataclass_transform(frozen_default=True, kw_only_default=True)
def settings_class(kind: type[T]) -> type[T]:
    """Make a settings dataclass: frozen, made with keywords, equal if all values are.

    `dataclass` would compile the methods of each class from text, a tenth of the start of a server.
    """
    kind.__init__ = _init  # type: ignore[assignment, method-assign]
    kind.__repr__ = _repr  # type: ignore[method-assign]
    kind.__eq__ = _eq  # type: ignore[method-assign]
    kind.__hash__ = _hash  # type: ignore[method-assign]
    kind.__setattr__ = kind.__delattr__ = _refuse  # type: ignore[method-assign]
    return dataclasses.dataclass(init=False, repr=False, eq=False)(kind)


def _init(self: Any, /, *unnamed: Any, **values: Any) -> None:
    kind = type(self)
    if unnamed:
        raise TypeError(f"{kind.__name__}: met a value without a name, expected NAME=VALUE")
    for field in dataclasses.fields(kind):
        value = values.pop(field.name, dataclasses.MISSING)
        if value is dataclasses.MISSING:
            value = _default_of(field)()
        object.__setattr__(self, field.name, value)
    if values:
        raise TypeError(f"{kind.__name__} has no setting {', '.join(sorted(values))}")
    if hasattr(self, "__post_init__"):
        self.__post_init__()


def _values(settings: Any) -> tuple[Any, ...]:
    return tuple(getattr(settings, field.name) for field in dataclasses.fields(settings))


def _repr(self: Any) -> str:
    shown = (field.name for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__name__}({', '.join(f'{n}={getattr(self, n)!r}' for n in shown)})"


def _eq(self: Any, other: object) -> bool:
    return _values(self) == _values(other) if type(self) is type(other) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _refuse(self: Any, name: str, value: Any = None) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot change {type(self).__name__}.{name}")


class Setting(msgspec.Struct, frozen=True):
    """The description of one field: its names, its type, its limits."""

    name: str
    """The field's name in Python."""
    key: str
    """Its name in properties files."""
    kind: Any
    """Its type, None taken out of a union."""
    optional: bool
    """Whether it may be None."""
    unit: str
    low: float | None
    high: float | None
    choices: tuple[str, ...] | None
    environment: str | None
    remote: bool
    secret: bool
    depends_on_machine: bool
    """Whether the default differs from machine to machine."""
    default: Callable[[], Any]
    """Makes the default."""

    def parse(self, text: str) -> Any:
        """Return the value of a text.

        Raises:
            ConfigError: it has the wrong type or is out of range; the text names what was expected.
        """
        text = text.strip()
        if self.optional and not text:
            return None
        value = _PARSERS[self.kind](text)
        if value is None or not self._allows(value):
            met = "(hidden)" if self.secret else text
            raise ConfigError(f"{self.key}={met}: expected {self.expectation}")
        return value

    def render(self, value: Any) -> str:
        """Return the text whose `parse` returns ``value``."""
        if value is None:
            return ""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ";".join(value)
        return str(value)

    @property
    def expectation(self) -> str:
        """The values that are accepted, in words."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        words = _WORDS[self.kind]
        if self.low is not None and self.high is not None:
            words += f" from {self.low} to {self.high}"
        elif self.low is not None:
            words += f" of at least {self.low}"
        elif self.high is not None:
            words += f" of at most {self.high}"
        return f"{words} ({self.unit})" if self.unit else words

    def _allows(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return (self.low is None or value >= self.low) and (
                self.high is None or value <= self.high
            )
        return True


@functools.cache
def describe(settings: type) -> tuple[Setting, ...]:
    """Return what is known of every field of a settings dataclass, in the order of declaration.

    Raises:
        TypeError: a field was not made by `setting`, or has a type without a text form.
    """
    hints = typing.get_type_hints(settings)
    return tuple(_described(field, hints[field.name]) for field in dataclasses.fields(settings))


@functools.cache
def field_texts(settings: type) -> Mapping[str, str]:
    """Return field name → docstring of a settings class, on one line each."""
    import ast  # only for help texts and sample files
    import inspect
    import textwrap

    tree = ast.parse(textwrap.dedent(inspect.getsource(settings)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _described(field: dataclasses.Field[Any], hint: Any) -> Setting:
    kind, optional = _without_none(hint)
    if "remote" not in field.metadata or kind not in _PARSERS:
        raise TypeError(f"{field.name}: {hint} is not a setting of a known type")
    return Setting(
        name=field.name,
        key=field.metadata["key"] or camel_case(field.name),
        kind=kind,
        optional=optional,
        depends_on_machine=field.default_factory is not dataclasses.MISSING,
        default=_default_of(field),
        **{name: field.metadata[name] for name in _PLAIN_FACTS},
    )


_PLAIN_FACTS = ("unit", "low", "high", "choices", "environment", "remote", "secret")


def _default_of(field: dataclasses.Field[Any]) -> Callable[[], Any]:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory
    if field.default is dataclasses.MISSING:
        raise TypeError(f"{field.name}: a setting needs a default")
    return lambda: field.default


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    others = [part for part in typing.get_args(hint) if part is not type(None)]
    return (others[0] if len(others) == 1 else hint), len(others) < len(typing.get_args(hint))


def camel_case(name: str) -> str:
    """Return ``flush_interval_ms`` as ``flushIntervalMs``."""
    first, *others = name.split("_")
    return first + "".join(part.capitalize() for part in others)


def _parse_bool(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text.lower())


def _parse_int(text: str) -> int | None:
    return int(text) if _INTEGER.fullmatch(text) else None


def _parse_float(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _parse_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(";") if part.strip())


def _parse_path(text: str) -> Path | None:
    return Path(text).expanduser() if text and "\0" not in text else None


_LIST = tuple[str, ...]
_PARSERS: dict[Any, Callable[[str], Any]] = {
    bool: _parse_bool,
    int: _parse_int,
    float: _parse_float,
    str: str,
    Path: _parse_path,
    _LIST: _parse_list,
}
_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Path: "a path",
    _LIST: "values separated by semicolons",
}
