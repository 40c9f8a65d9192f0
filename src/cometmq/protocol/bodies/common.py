"""Small bodies that many commands share.

Source: DataVersion, KVTable, TopicList, GroupList and Connection, RocketMQ 5.3.
"""

from msgspec import field

from cometmq.protocol.bodies.base import Body, Part


class DataVersion(Body, kw_only=True):
    """The version of a table; two versions are equal only if all their members are.

    QUERY_DATA_VERSION (322).
    """

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
    """The version of a table as a broker of 4.9 shows it."""

    timestamp: int = 0
    counter: int = 0


class KVTable(Body, kw_only=True):
    """Texts by name.

    The response to GET_BROKER_RUNTIME_INFO (28), GET_KVLIST_BY_NAMESPACE (219) and REGISTER_BROKER
    (103).
    """

    table: dict[str, str] = field(default_factory=dict)


class TopicList(Body, kw_only=True):
    """Names of topics.

    The response to QUERY_TOPICS_BY_CONSUMER (343), GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305),
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206), GET_TOPICS_BY_CLUSTER (224),
    GET_SYSTEM_TOPIC_LIST_FROM_NS (304), GET_UNIT_TOPIC_LIST (311), GET_HAS_UNIT_SUB_TOPIC_LIST
    (312) and GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST (313).
    """

    topic_list: list[str] = field(default_factory=list)
    broker_addr: str | None = None


class GroupList(Body, kw_only=True):
    """Names of groups. The response to QUERY_TOPIC_CONSUME_BY_WHO (300)."""

    group_list: list[str] = field(default_factory=list)


class Connection(Part, kw_only=True):
    """A client as a broker sees it."""

    client_id: str = ""
    client_addr: str = ""
    language: str | None = None
    version: int = 0
