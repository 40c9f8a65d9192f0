"""What all settings of a client have in common: they are checked when they are made.

Source: ours.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import msgspec

from cometmq.system.settings import Setting, describe

KIB = 1024
MIB = 1024 * KIB


@functools.cache
def described(kind: type) -> tuple[Setting, ...]:
    """What is known of each setting, under the name that a program uses."""
    return tuple(msgspec.structs.replace(setting, key=setting.name) for setting in describe(kind))


@dataclass(frozen=True)
class Checked:
    """Settings that are made in programs, and so are checked when they are made."""

    section: ClassVar[str]
    """Their table in a TOML file, and a part of the names of their environment variables."""

    given: ClassVar[frozenset[str]] = frozenset()
    """The names of the settings that were passed, even if with the value of the default."""

    def __new__(cls, *values: Any, **named: Any) -> Self:
        """Remember which settings were passed, since those win over files and environment."""
        made = super().__new__(cls)
        kind: type = cls
        names = [setting.name for setting in described(kind)]
        object.__setattr__(made, "given", frozenset([*names[: len(values)], *named]))
        return made

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: one is out of its range; says which, and what was expected.
        """
        kind: type = type(self)
        for known in described(kind):
            known.parse(known.render(getattr(self, known.name)))
