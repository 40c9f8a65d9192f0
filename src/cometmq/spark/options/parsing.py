"""Declares the options of a format, and parses the values of ``.option(name, value)``.

A format declares its options as one frozen dataclass. Every field is made by `option` and has a
docstring on the lines below it. Spark hands options over as texts under lower-case names; the
kinds of values are those of `cometmq.system.settings`:

    bool               ``true`` or ``false``, in any case
    int, float         a number in its range
    str                as it stands, without blanks around it
    tuple[str, ...]    values separated by semicolons
    X | None           no text at all means None

Unknown names are refused with the nearest known one, for a misspelt option that is silently
ignored reads the wrong rows. So are removed ones, with what to use instead: a dataclass names them
in ``REMOVED``. A dataclass checks what its options are together in a method ``check``, which
`parse_options` calls.

The names are those of Spark's Kafka source where it has the same option.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from cometmq.model.errors import ConfigError
from cometmq.spark.errors import OptionError
from cometmq.system.settings import Setting, describe

T = TypeVar("T")

ADDED_BY_SPARK = ("owner", "provider")
"""What Spark adds to the options of a table."""
OF_TABLE = "option."
"""What Spark puts before the names of a table's options."""
NO_OPTIONS = (
    "; no option was met: Spark does not pass the options of CREATE TABLE. Name them where the"
    " table is used: SELECT … FROM table WITH (nameServer '…', subscribe '…')"
)

NO_PUSH_DOWN = (
    "was removed: Spark shares pushed conditions between the scans of a query and between queries,"
    " and returned wrong rows; conditions of where are applied by Spark, and the source reads less"
    " with"
)
NO_SNAPSHOT = (
    "was removed, because Spark plans a DataFrame once: every action reads up to the same end; call"
    " load() again to read newer messages, or set endingOffsets for an end of your own"
)


def option(
    default: Any,
    key: str,
    *,
    aliases: tuple[str, ...] = (),
    required: bool = False,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """Declare a field of a dataclass of options.

    Args:
        default: the value when the option is not given; an immutable value.
        key: the option's name, as documents spell it.
        aliases: other names that mean the same.
        required: whether there is nothing to do without it.
        unit: of the value, for help texts: ``ms``, ``bytes``, ``offsets``.
        low, high: the inclusive range of a number.
        choices: the allowed texts.
    """
    facts = {
        "key": key,
        "unit": unit,
        "low": low,
        "high": high,
        "choices": choices,
        "environment": None,
        "remote": False,
        "secret": False,
        "aliases": aliases,
        "required": required,
    }
    return dataclasses.field(default=default, metadata=facts)


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """What is known of one option: its names, and how its text becomes a value."""

    setting: Setting
    aliases: tuple[str, ...]
    required: bool

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the option, the documented one first."""
        return (self.setting.key, *self.aliases)


def options_of(kind: type) -> tuple[Option, ...]:
    """Return what is known of every option of a dataclass, in the order of declaration."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    return tuple(
        Option(
            setting,
            aliases=fields[setting.name].metadata["aliases"],
            required=fields[setting.name].metadata["required"],
        )
        for setting in describe(kind)
    )


def names_of(text: str | None) -> tuple[str, ...]:
    """Return the names of a text with commas between, each once and in its order."""
    names = (each.strip() for each in (text or "").split(","))
    return tuple(dict.fromkeys(name for name in names if name))


def parse_options(kind: type[T], given: Mapping[str, str]) -> T:
    """Return the options that ``given`` stands for.

    Args:
        kind: the dataclass of options.
        given: texts by name, in any case. ``option.NAME``, as Spark names the options of a table,
            stands for NAME where that is not given itself.

    Raises:
        OptionError: a name is unknown or given twice, a value is of the wrong kind or out of its
            range, a required option is missing, or options contradict each other.
    """
    known = options_of(kind)
    values: dict[str, Any] = {}
    removed = {name.lower(): f"{name} {why}" for name, why in getattr(kind, "REMOVED", {}).items()}
    for entry, name, text in _matched(known, given, removed):
        if entry.setting.name in values:
            names = " and ".join(entry.names)
            raise OptionError(f"option {name} is given twice: {names} mean the same")
        values[entry.setting.name] = _parsed(entry, text)
    _check_required(known, values)
    parsed = kind(**values)
    check = getattr(parsed, "check", None)
    if check is not None:
        check()
    return parsed


def _matched(
    known: tuple[Option, ...], given: Mapping[str, str], removed: Mapping[str, str]
) -> Iterator[tuple[Option, str, str]]:
    by_name = {name.lower(): entry for entry in known for name in entry.names}
    lower = {name.lower(): text for name, text in given.items()}
    for name, text in lower.items():
        plain = name.removeprefix(OF_TABLE)
        if plain != name and plain in lower:
            continue
        if plain in by_name:
            yield by_name[plain], plain, text
        elif plain in removed:
            raise OptionError(f"option {removed[plain]}")
        elif name not in ADDED_BY_SPARK:
            raise OptionError(_unknown(plain, known))


def _unknown(name: str, known: tuple[Option, ...]) -> str:
    spelt = {each.lower(): each for entry in known for each in entry.names}
    near = difflib.get_close_matches(name.lower(), spelt, n=1, cutoff=0.5)
    advice = f"did you mean {spelt[near[0]]}?" if near else f"known: {', '.join(spelt.values())}"
    return f"option {name} is unknown; {advice}"


def _parsed(entry: Option, text: str) -> Any:
    try:
        return entry.setting.parse(text)
    except ConfigError as error:
        raise OptionError(f"option {error}") from None


def _check_required(known: tuple[Option, ...], values: Mapping[str, Any]) -> None:
    for entry in known:
        if entry.required and not values.get(entry.setting.name):
            advice = "" if values else NO_OPTIONS
            raise OptionError(f"option {' or '.join(entry.names)} is required{advice}")
