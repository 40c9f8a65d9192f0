"""The rights that requests for offsets need."""

from __future__ import annotations

from typing import Final

from cometmq.access.needs import Action, Needs, group_need, needs_of, topic_need
from cometmq.access.rights import (
    ADMINISTRATION,
    LOOK,
    SIGNED,
    SUB_OR_GET,
    Lookups,
    Right,
    Rights,
    field,
    named,
    on_named,
    to_consume_as,
)
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.offset import UpdateConsumerOffsetRequest
from cometmq.remoting import Request


def _commit(request: Request, _: Lookups) -> Needs:
    header = request.header(UpdateConsumerOffsetRequest)
    return needs_of(group_need(header.consumer_group), topic_need(header.topic, Action.SUB))


def _clone(request: Request, lookups: Lookups) -> Needs:
    """Without a topic it is about all topics of the first group, for which the groups decide.

    A group that does not exist has no offsets to read.
    """
    target = named(request, Action.UPDATE, topic="topic", group="destGroup")
    source = field(request, "srcGroup")
    exists = source and lookups.group_exists(source)
    return needs_of(target, group_need(source, Action.GET) if exists else ())


def _correction(request: Request, _: Lookups) -> Needs:
    left_out = field(request, "filterGroups").split(",")
    return needs_of(
        named(request, Action.GET, topic="topic", group="compareGroup"),
        (group_need(group, Action.GET) for group in left_out if group),
    )


_BOUNDS: Final = Rights(plain=SIGNED, users=on_named(Action.GET, topic="topic"))

RIGHTS: Final = {
    RequestCode.QUERY_CONSUMER_OFFSET: Rights(
        plain=to_consume_as("consumerGroup"),
        users=on_named(SUB_OR_GET, topic="topic", group="consumerGroup"),
    ),
    RequestCode.UPDATE_CONSUMER_OFFSET: Rights(
        plain=Right(_commit),
        users=on_named(Action.SUB | Action.UPDATE, topic="topic", group="consumerGroup"),
    ),
    RequestCode.GET_ALL_CONSUMER_OFFSET: LOOK,
    RequestCode.CLONE_GROUP_OFFSET: Rights(plain=ADMINISTRATION, users=Right(_clone)),
    RequestCode.QUERY_CORRECTION_OFFSET: Rights(plain=ADMINISTRATION, users=Right(_correction)),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _BOUNDS,
    RequestCode.GET_MAX_OFFSET: _BOUNDS,
    RequestCode.GET_MIN_OFFSET: _BOUNDS,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _BOUNDS,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: Rights(
        plain=ADMINISTRATION, users=on_named(Action.UPDATE, topic="topic", group="group")
    ),
}
