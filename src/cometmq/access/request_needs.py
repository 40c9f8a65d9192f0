"""What requests of clients need under each kind of access control.

The needs are read with the headers and bodies that the handlers read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from cometmq.access.needs import NOTHING, Action, Need, Needs, group_need, needs_of, topic_need
from cometmq.model.errors import InvalidMessageIdError
from cometmq.protocol.bodies import HeartbeatData
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import (
    ConsumeMessageDirectlyRequest,
    PullMessageRequest,
    SendMessageRequest,
    SendMessageV2Request,
    UnregisterClientRequest,
)
from cometmq.protocol.message_id import decode_offset_id
from cometmq.remoting.requests import Request

TopicOfRecord = Callable[[int], str | None]
"""Returns the topic of the record at an offset of the log; None if none begins there."""


class NeedsReader(Protocol):
    """Reads what requests need."""

    @property
    def stated_in(self) -> str:
        """The module that states the needs of requests."""

    @property
    def in_body(self) -> frozenset[int]:
        """The codes of requests whose bodies say what they need."""

    @property
    def codes(self) -> frozenset[int]:
        """The codes of requests whose needs are stated; all others need an administrator."""

    def of(self, request: Request) -> Needs:
        """Return what a request needs beside a signature.

        Raises:
            CometError: its header or its body cannot be read, or the disk refuses a record.
        """


def field(request: Request, name: str) -> str:
    """Return a field of the header; nothing if it is missing."""
    return request.command.fields.get(name, "")


def sent_topic(request: Request) -> str:
    """Return the topic of a send or a reply."""
    if request.code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE):
        return request.header(SendMessageRequest).topic
    return request.header(SendMessageV2Request).topic


def of_send(request: Request) -> Needs:
    """Return what a send needs, whatever group its header names."""
    return needs_of(topic_need(sent_topic(request), Action.PUB))


def of_reply(request: Request, reply_topic: str) -> Needs:
    """Return what a reply needs: one to another topic than that of replies is a send."""
    topic = sent_topic(request)
    return NOTHING if topic == reply_topic else needs_of(topic_need(topic, Action.PUB))


def of_recall(request: Request) -> Needs:
    """Return what the recall of a message needs."""
    return needs_of(topic_need(field(request, "topic"), Action.PUB))


def of_pull(request: Request) -> Needs:
    """Return what a pull needs."""
    header = request.header(PullMessageRequest)
    return needs_of(topic_need(header.topic, Action.SUB), group_need(header.consumer_group))


def of_heartbeat(request: Request) -> Needs:
    """Return what a heartbeat needs: its consumers only."""
    needs: list[Need] = []
    for consumer in HeartbeatData.decode(request.body).consumer_data_set:
        needs.append(group_need(consumer.group_name))
        needs += [topic_need(each.topic, Action.SUB) for each in consumer.subscription_data_set]
    return needs_of(needs)


def of_unregister(request: Request) -> Needs:
    """Return what the end of a client needs: that of a consumer only."""
    group = request.header(UnregisterClientRequest).consumer_group
    return needs_of(group_need(group)) if group else NOTHING


def of_record(topic_of_record: TopicOfRecord, offset: int, action: Action) -> Needs:
    """Return what the use of the record at an offset needs.

    Without the record it is not known what that is: this server may be a slave that does not have
    it yet, and forwards requests.
    """
    topic = topic_of_record(offset)
    if topic is None:
        return Needs(
            unknown=f"cannot find the message at offset {offset} of the log, and so not which"
            " rights the request needs: expected the offset of a message that this broker has"
        )
    return needs_of(topic_need(topic, action))


def of_message_id(topic_of_record: TopicOfRecord, message_id: str, action: Action) -> Needs:
    """Return what the use of the record that an offset message id names needs."""
    try:
        offset = decode_offset_id(message_id).log_offset
    except InvalidMessageIdError as problem:
        return Needs(unknown=str(problem))
    return of_record(topic_of_record, offset, action)


def with_record(record: Needs, *resources: Need | Iterable[Need]) -> Needs:
    """Return what a request about a record needs, and the other topics and groups it names."""
    return needs_of(*resources, record.resources)._replace(unknown=record.unknown)


def of_direct_consumption(request: Request, topic_of_record: TopicOfRecord) -> Needs:
    """Return what needs a request that sends a message to a consumer.

    The broker sends only a record of the topic that the header names, if it names one.
    """
    header = request.header(ConsumeMessageDirectlyRequest)
    group = group_need(header.consumer_group)
    if header.topic:
        return needs_of(group, topic_need(header.topic, Action.SUB))
    record = of_message_id(topic_of_record, header.msg_id or "", Action.SUB)
    return with_record(record, group)
