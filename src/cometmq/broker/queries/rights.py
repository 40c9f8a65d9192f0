"""The rights that queries need."""

from __future__ import annotations

from typing import Final

from cometmq.access.needs import NOTHING, Action, Needs, needs_of, topic_need
from cometmq.access.rights import (
    SUB_OR_GET,
    Lookups,
    Right,
    Rights,
    field,
    named,
    of_record,
    on_named,
    topic_if_any,
    with_record,
)
from cometmq.model.topic import TOPICS_OF_WAITING
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.query import QueryMessageRequest, ViewMessageByIdRequest
from cometmq.protocol.headers.topic import QueryConsumeQueueRequest
from cometmq.remoting import Request


def _by_key(request: Request, _: Lookups) -> Needs:
    return needs_of(topic_need(request.header(QueryMessageRequest).topic, Action.SUB))


def _view(request: Request, lookups: Lookups) -> Needs:
    offset = request.header(ViewMessageByIdRequest).offset
    return of_record(lookups.topic_of_record, offset, Action.SUB)


def _view_of_user(request: Request, lookups: Lookups) -> Needs:
    header = request.header(ViewMessageByIdRequest)
    record = of_record(lookups.topic_of_record, header.offset, Action.GET)
    return with_record(record, topic_if_any(header.topic, Action.GET))


def _entries(request: Request, _: Lookups) -> Needs:
    """The group is only one whose filter the response shows."""
    topic = request.header(QueryConsumeQueueRequest).topic
    return needs_of(topic_need(topic, Action.SUB)) if topic else NOTHING


def _entries_of_user(request: Request, _: Lookups) -> Needs:
    """Return what the entries of a queue need, which name messages."""
    needs = needs_of(named(request, Action.GET, topic="topic", group="consumerGroup"))
    return needs._replace(administrator=field(request, "topic") in TOPICS_OF_WAITING)


RIGHTS: Final = {
    RequestCode.QUERY_MESSAGE: Rights(
        plain=Right(_by_key), users=on_named(SUB_OR_GET, topic="topic")
    ),
    RequestCode.VIEW_MESSAGE_BY_ID: Rights(plain=Right(_view), users=Right(_view_of_user)),
    RequestCode.QUERY_CONSUME_QUEUE: Rights(plain=Right(_entries), users=Right(_entries_of_user)),
}
