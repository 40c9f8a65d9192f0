"""The rights that sends, send-backs and replies need."""

from __future__ import annotations

from typing import Final

from cometmq.access.needs import NOTHING, Action, Needs, group_need, needs_of, topic_need
from cometmq.access.rights import Lookups, Right, of_record, same, with_record
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.consumer import ConsumerSendMsgBackRequest
from cometmq.protocol.headers.send import SendMessageRequest, SendMessageV2Request
from cometmq.remoting import Request


def _topic(request: Request) -> str:
    if request.code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE):
        return request.header(SendMessageRequest).topic
    return request.header(SendMessageV2Request).topic


def _send(request: Request, _: Lookups) -> Needs:
    """A send needs its topic; the group in its header is ignored."""
    return needs_of(topic_need(_topic(request), Action.PUB))


def _reply(request: Request, lookups: Lookups) -> Needs:
    """A reply to another topic than the topic of replies is a send."""
    topic = _topic(request)
    return NOTHING if topic == lookups.reply_topic else needs_of(topic_need(topic, Action.PUB))


def _send_back(request: Request, lookups: Lookups) -> Needs:
    header = request.header(ConsumerSendMsgBackRequest)
    record = of_record(lookups.topic_of_record, header.offset, Action.SUB)
    return with_record(record, group_need(header.group))


RIGHTS: Final = {
    RequestCode.SEND_MESSAGE: same(Right(_send)),
    RequestCode.SEND_MESSAGE_V2: same(Right(_send)),
    RequestCode.SEND_BATCH_MESSAGE: same(Right(_send)),
    RequestCode.SEND_REPLY_MESSAGE: same(Right(_reply)),
    RequestCode.SEND_REPLY_MESSAGE_V2: same(Right(_reply)),
    RequestCode.CONSUMER_SEND_MSG_BACK: same(Right(_send_back)),
}
