"""Forms of changes: from a struct to its fields, from a request to the struct, and what HTML shows
of a struct that has no template."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from cometmq.console.pages import NAME_MAX, Query
from cometmq.model.errors import ConfigError
from cometmq.system.log_format import printable

F = TypeVar("F", bound="Form")
LOGGED_CHARS_MAX = 128
"""Characters of a value in the audit log."""
KINDS: dict[type[inspect.Type], str] = {
    inspect.BoolType: "checkbox",
    inspect.IntType: "number",
    inspect.FloatType: "number",
    inspect.LiteralType: "select",
    inspect.ListType: "lines",
}


class Form(Query):
    """What a change needs; a field without a default is required.

    A field is a text, a number, a bool, a ``Literal``, a list of texts, or one of them or None. Its
    name makes the label, ``Meta(description=...)`` the hint, ``Meta(extra={"lines": 8})`` a text
    of several lines, and ``Meta(extra={"secret": True})`` a password, which nothing shows or logs.
    """


class Field(NamedTuple):
    """A field of a form, as HTML has it."""

    name: str
    kind: str
    """``text``, ``number``, ``checkbox``, ``select``, ``lines``, ``area`` or ``password``."""
    choices: tuple[str, ...]
    hint: str
    rows: int
    is_required: bool

    @property
    def label(self) -> str:
        """The name in words."""
        return words(self.name)


def words(name: str) -> str:
    """Return the name of a field in words."""
    for unit in ("_time_ms", "_ms"):
        name = name.removesuffix(unit)
    return name.replace("_", " ").capitalize()


def fields_of(kind: type[Form]) -> list[Field]:
    """Return the fields of a form."""
    struct = inspect.type_info(kind)
    assert isinstance(struct, inspect.StructType)
    return [_field(each) for each in struct.fields]


def _field(field: inspect.Field) -> Field:
    wanted, hint, optional = field.type, "", False
    extra: dict[str, Any] = {}
    while isinstance(wanted, inspect.Metadata | inspect.UnionType):
        if isinstance(wanted, inspect.UnionType):
            optional = True
            wanted = next(each for each in wanted.types if not isinstance(each, inspect.NoneType))
        else:
            hint = (wanted.extra_json_schema or {}).get("description", hint)
            extra = wanted.extra or extra
            wanted = wanted.type
    choices = tuple(map(str, wanted.values)) if isinstance(wanted, inspect.LiteralType) else ()
    kind = KINDS.get(type(wanted), "text")
    if extra.get("secret"):
        kind = "password"
    elif "lines" in extra and kind == "text":
        kind = "area"
    required = field.required and kind != "checkbox"
    return Field(
        field.name, kind, ("", *choices) if optional else choices, hint,
        extra.get("lines", 3), required,
    )  # fmt: skip


def form_of_fields(kind: type[F], pairs: Iterable[tuple[str, str]], *, is_sent: bool) -> F:
    """Return the form that the fields of a request make; an empty one counts as not given.

    Args:
        kind: of the form.
        pairs: names and values; several of one name, or several lines, make a list.
        is_sent: whether a form was sent: then a check box without a value is off. Otherwise the
            fields are those of an address, and it has its default.

    Raises:
        ConfigError: a field is unknown, missing or wrong.
    """
    fields = {field.name: field for field in fields_of(kind)}
    given: dict[str, Any] = {
        name: False for name, field in fields.items() if is_sent and field.kind == "checkbox"
    }
    for name, value in pairs:
        field = fields.get(name)
        if field is None:
            raise ConfigError(
                f"unknown field {printable(name)[:NAME_MAX]}: expected"
                f" {', '.join(fields) or 'none'}"
            )
        if field.kind == "lines":
            values = given.setdefault(name, [])
            values.extend(line.strip() for line in value.splitlines() if line.strip())
        elif field.kind in ("area", "password"):
            if value:
                given[name] = value.replace("\r\n", "\n")
        elif value.strip():
            given[name] = value.strip()
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{error}: correct this field") from None


def shown_values(kind: type[Form], pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return what the form shows again after an error, from the fields that were sent."""
    fields = {field.name: field for field in fields_of(kind) if field.kind != "password"}
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        if name in fields:
            values.setdefault(name, []).append(value)
    return {
        name: "\n".join(each) if fields[name].kind == "lines" else each[-1]
        for name, each in values.items()
    }


def values_of(form: Form) -> dict[str, str]:
    """Return the values of a form as texts, without secrets."""
    return {
        field.name: _text(getattr(form, field.name))
        for field in fields_of(type(form))
        if field.kind != "password"
    }


def without_secrets(form: Form, text: str) -> str:
    """Return a text with stars in place of the secrets of a form."""
    for field in fields_of(type(form)):
        secret = getattr(form, field.name)
        if field.kind == "password" and secret:
            text = text.replace(secret, "***")
    return text


def logged_values(form: Form) -> dict[str, str]:
    """Return the values of a form that the audit log has: no secrets, and each one cut."""
    return {
        name: text if len(text) <= LOGGED_CHARS_MAX else f"{text[:LOGGED_CHARS_MAX]}..."
        for name, text in values_of(form).items()
        if text
    }


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return "\n".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


class Described(NamedTuple):
    """A struct without a template: its values, lists of texts, and tables."""

    values: list[tuple[str, str, object]]
    """Label, name and value."""
    lists: list[tuple[str, list[object]]]
    tables: list[tuple[str, list[tuple[str, str]], list[list[object]]]]
    """Label; label and name of each column; rows."""


def described(value: msgspec.Struct) -> Described:
    """Return what HTML shows of a struct."""
    found = Described([], [], [])
    for name in value.__struct_fields__:
        content = getattr(value, name)
        if not isinstance(content, list | tuple):
            found.values.append((words(name), name, content))
        elif content and isinstance(content[0], msgspec.Struct):
            columns = content[0].__struct_fields__
            rows = [[getattr(row, column) for column in columns] for row in content]
            found.tables.append((words(name), [(words(each), each) for each in columns], rows))
        elif content:
            found.lists.append((words(name), list(content)))
    return found
