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
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar, cast

from cometmq.model.errors import ConfigError
from cometmq.spark.errors import OptionError
from cometmq.system.settings import Setting, describe, setting

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


def option(default: Any, key: str, *, alias: str = "", required: bool = False, **facts: Any) -> Any:
    """Declare a field of a dataclass of options.

    Args:
        default: the value when the option is not given; an immutable value.
        key: the option's name, as documents spell it.
        alias: another name that means the same.
        required: whether there is nothing to do without it.
        facts: the unit, the range or the choices, as `cometmq.system.settings.setting` has them.
    """
    made: dataclasses.Field[Any] = setting(default, key=key, **facts)
    own = {"alias": alias, "required": required}
    return dataclasses.field(default=default, metadata={**made.metadata, **own})


class Option(NamedTuple):
    """The description of one option: its names, and how its text becomes a value."""

    setting: Setting
    names: tuple[str, ...]
    """All names of the option, the documented one first."""
    required: bool


def options_of(kind: type) -> tuple[Option, ...]:
    """Return the description of every option of a dataclass, in the order of declaration."""
    facts = {field.name: field.metadata for field in dataclasses.fields(kind)}
    return tuple(
        Option(
            each,
            tuple(filter(None, (each.key, facts[each.name]["alias"]))),
            facts[each.name]["required"],
        )
        for each in describe(kind)
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
    by_name = {name.lower(): entry for entry in known for name in entry.names}
    removed = {name.lower(): f"{name} {why}" for name, why in getattr(kind, "REMOVED", {}).items()}
    lower = {name.lower(): text for name, text in given.items()}
    values: dict[str, Any] = {}
    for full, text in lower.items():
        name = full.removeprefix(OF_TABLE)
        if name != full and name in lower:
            continue
        entry = by_name.get(name)
        if entry is None:
            if name not in removed and full in ADDED_BY_SPARK:
                continue
            raise OptionError(f"option {removed.get(name) or _unknown(name, known)}")
        if entry.setting.name in values:
            names = " and ".join(entry.names)
            raise OptionError(f"option {name} is given twice: {names} mean the same")
        try:
            values[entry.setting.name] = entry.setting.parse(text)
        except ConfigError as error:
            raise OptionError(f"option {error}") from None
    for entry in known:
        if entry.required and not values.get(entry.setting.name):
            advice = "" if values else NO_OPTIONS
            raise OptionError(f"option {' or '.join(entry.names)} is required{advice}")
    parsed: Any = kind(**values)
    if hasattr(parsed, "check"):
        parsed.check()
    return cast(T, parsed)


def _unknown(name: str, known: tuple[Option, ...]) -> str:
    spelt = {each.lower(): each for entry in known for each in entry.names}
    near = difflib.get_close_matches(name.lower(), spelt, n=1, cutoff=0.5)
    advice = f"did you mean {spelt[near[0]]}?" if near else f"known: {', '.join(spelt.values())}"
    return f"{name} is unknown; {advice}"
