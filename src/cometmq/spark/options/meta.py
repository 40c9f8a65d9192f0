"""The options of ``rocketmq-meta``: the topics and groups of its rows."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cometmq.spark.errors import OptionError
from cometmq.spark.options.connection import ConnectionOptions, check_references
from cometmq.spark.options.parsing import names_of, option


@dataclass(frozen=True)
class MetaOptions(ConnectionOptions):
    """The topics and groups to read; by default all but system ones."""

    subscribe: str = option("", "subscribe")
    """Topics, separated by commas; a topic that does not exist is an error."""
    subscribe_pattern: str = option("", "subscribePattern")
    """A regular expression that whole topic names match."""
    groups: str = option("", "groups")
    """Groups, separated by commas; each has rows even if it has committed nothing."""
    group_pattern: str = option("", "groupPattern")
    """A regular expression that whole group names match."""
    include_system: bool = option(False, "includeSystem")
    """Whether system topics and groups are included if none is named."""

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
        patterns = {"subscribePattern": self.subscribe_pattern, "groupPattern": self.group_pattern}
        for name, text in patterns.items():
            try:
                re.compile(text)
            except re.error as error:
                raise OptionError(
                    f"option {name}: {text!r} is not a regular expression: {error}"
                ) from None

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are named."""
        return names_of(self.subscribe)

    @property
    def group_names(self) -> tuple[str, ...]:
        """The groups that are named."""
        return names_of(self.groups)
