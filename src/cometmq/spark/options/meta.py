"""Options of ``rocketmq-meta``: which topics and groups there are rows for.

Source: ours.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cometmq.spark.errors import OptionError
from cometmq.spark.options.connection import ConnectionOptions, check_references
from cometmq.spark.options.parsing import option


@dataclass(frozen=True)
class MetaOptions(ConnectionOptions):
    """Which topics and groups are looked at; without any, all but the system's own."""

    subscribe: str = option("", "subscribe")
    """Topics, with commas between; a topic that does not exist is an error."""

    subscribe_pattern: str = option("", "subscribePattern")
    """Regular expression that whole names of topics match."""

    groups: str = option("", "groups")
    """Groups, with commas between; a row for each of them even where it has committed nothing."""

    group_pattern: str = option("", "groupPattern")
    """Regular expression that whole names of groups match."""

    include_system: bool = option(False, "includeSystem")
    """Whether the system's own topics and groups count where none is named."""

    def check(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            OptionError: two ways to choose, a pattern that is none, or a secret given itself.
        """
        check_references(self)
        if self.subscribe and self.subscribe_pattern:
            raise OptionError("options subscribe and subscribePattern: give one of them")
        if self.groups and self.group_pattern:
            raise OptionError("options groups and groupPattern: give one of them")
        for name, text in (
            ("subscribePattern", self.subscribe_pattern),
            ("groupPattern", self.group_pattern),
        ):
            _check_pattern(name, text)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are named."""
        return _parts(self.subscribe)

    @property
    def group_names(self) -> tuple[str, ...]:
        """The groups that are named."""
        return _parts(self.groups)


def _parts(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part for each in text.split(",") if (part := each.strip())))


def _check_pattern(name: str, text: str) -> None:
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(f"option {name}: {text!r} is no regular expression: {error}") from None
