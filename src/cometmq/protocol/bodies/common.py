"""Small bodies that many commands share.

Source: DataVersion, KVTable, TopicList, GroupList and Connection, RocketMQ 5.3.
"""

from msgspec import field

from cometmq.protocol.bodies.base import Body, Part


class DataVersion(Body, kw_only=True):
    """Which state of a table this is; two are the same only if all their members are."""

    state_version: int = 0
    timestamp: int = 0
    counter: int = 0

    def next(self, now_ms: int, state_version: int | None = None) -> "DataVersion":
        """Return the version after one more change."""
        return DataVersion(
            state_version=self.state_version if state_version is None else state_version,
            timestamp=now_ms,
            counter=self.counter + 1,
        )


class DataVersion4(Body, kw_only=True):
    """The same as a broker of 4.9 shows it."""

    timestamp: int = 0
    counter: int = 0


class KVTable(Body, kw_only=True):
    """Texts by name."""

    table: dict[str, str] = field(default_factory=dict)


class TopicList(Body, kw_only=True):
    """Names of topics."""

    topic_list: list[str] = field(default_factory=list)
    broker_addr: str | None = None


class GroupList(Body, kw_only=True):
    """Names of groups."""

    group_list: list[str] = field(default_factory=list)


class Connection(Part, kw_only=True):
    """A client as a broker sees it."""

    client_id: str = ""
    client_addr: str = ""
    language: str | None = None
    version: int = 0
