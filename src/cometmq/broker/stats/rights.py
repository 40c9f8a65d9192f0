"""The rights that requests for statistics need."""

from __future__ import annotations

from typing import Final

from cometmq.access.needs import NOTHING, Action, Needs, group_need, needs_of, topic_need
from cometmq.access.rights import (
    LOOK,
    READ,
    SIGNED,
    Lookups,
    Right,
    Rights,
    field,
    named,
    on_cluster,
    on_named,
    to_consume_as,
)
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import Request

_COUNTERS_WITHOUT_GROUP: Final = ("TOPIC_", "QUEUE_PUT_", "BROKER_")
"""How the names of counters begin whose keys have no group; other keys end with one."""


def _counter(request: Request, _: Lookups) -> Needs:
    """Return what a counter needs: the group, if it is one of a group."""
    name, key = field(request, "statsName"), field(request, "statsKey")
    if name.startswith(_COUNTERS_WITHOUT_GROUP):
        return NOTHING
    return needs_of(group_need(key.rpartition("@")[2]))


def _consume_stats(request: Request, _: Lookups) -> Needs:
    topics = [field(request, "topic"), *field(request, "topicList").split(";")]
    return needs_of(
        named(request, Action.GET, group="consumerGroup"),
        (topic_need(topic, Action.GET) for topic in topics if topic),
    )


_TOPIC: Final = Rights(plain=SIGNED, users=on_named(Action.GET, topic="topic"))
_GROUP_AND_TOPIC: Final = Rights(
    plain=to_consume_as("group"), users=on_named(Action.GET, topic="topic", group="group")
)

RIGHTS: Final = {
    RequestCode.GET_BROKER_RUNTIME_INFO: READ,
    RequestCode.VIEW_BROKER_STATS_DATA: Rights(plain=Right(_counter), users=on_cluster(Action.GET)),
    RequestCode.GET_TOPIC_STATS_INFO: _TOPIC,
    RequestCode.GET_CONSUME_STATS: Rights(
        plain=to_consume_as("consumerGroup"), users=Right(_consume_stats)
    ),
    RequestCode.GET_BROKER_CONSUME_STATS: LOOK,
    RequestCode.QUERY_CONSUME_TIME_SPAN: _GROUP_AND_TOPIC,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _TOPIC,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: Rights(
        plain=to_consume_as("group"), users=on_named(Action.GET, group="group")
    ),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _GROUP_AND_TOPIC,
}
