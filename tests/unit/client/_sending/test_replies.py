"""Replies as brokers push them, and what makes a message a reply."""

from __future__ import annotations

import zlib

import msgspec
import pytest

from cometmq.client._connection.instance import ClientCore
from cometmq.client._sending.replies import Replies, reply_from, reply_to
from cometmq.model import property_names as names
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from cometmq.protocol.compression import CompressionError
from cometmq.protocol.headers.base import encode_fields
from cometmq.protocol.headers.send import PushReplyMessageToClientRequest, SendMessageV2Request
from cometmq.protocol.properties import decode_properties, encode_properties
from cometmq.remoting import Request
from support.wire.recorded import VERSIONS, frames

PUSHED = PushReplyMessageToClientRequest(
    producer_group="g",
    topic="c_REPLY_TOPIC",
    default_topic="TBW102",
    default_topic_queue_nums=4,
    queue_id=2,
    sys_flag=0x301,
    born_timestamp=5,
    flag=7,
    properties="CORRELATION_ID\x011\x02",
    born_host="10.0.0.1:1",
    store_host="10.0.0.2:2",
    store_timestamp=6,
)


def test_a_compressed_reply_is_made_whole() -> None:
    reply = reply_from(PUSHED, zlib.compress(b"x" * 100))

    assert (reply.body, reply.sys_flag, reply.flag) == (b"x" * 100, 0, 7)
    assert (reply.born_host, reply.store_host) == ("10.0.0.1:1", "10.0.0.2:2")
    assert reply.properties["CORRELATION_ID"] == "1"
    assert int(reply.properties[names.ARRIVE_TIME]) > 0


async def test_a_damaged_reply_ends_the_request_with_the_reason() -> None:
    replies = Replies(ClientCore("127.0.0.1:1"))
    properties, reply = replies.open(3.0)
    header = msgspec.structs.replace(PUSHED, properties=encode_properties(properties).decode())
    code, fields = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, encode_fields(header)
    pushed = Command(code, fields=fields, body=b"no zlib")

    replies.take(Request(pushed, None))  # type: ignore[arg-type]

    with pytest.raises(CompressionError, match="damaged"):
        await reply


def test_a_damaged_reply_is_refused() -> None:
    with pytest.raises(CompressionError):
        reply_from(PUSHED, b"no zlib")


@pytest.mark.parametrize("version", VERSIONS)
def test_replies_that_real_brokers_pushed_are_read(version: str) -> None:
    pushed = [
        reply_from(command.header(PushReplyMessageToClientRequest), command.body)
        for name, command in frames(version, "request_reply")
        if name == "PUSH_REPLY_MESSAGE_TO_CLIENT"
    ]

    assert pushed
    for reply in pushed:
        assert reply.body.startswith(b"reply to")
        assert reply.properties.keys() >= {names.CORRELATION_ID, names.REPLY_TO_CLIENT, names.TTL}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_reply_has_the_properties_that_java_gives_it(version: str) -> None:
    """A recorded request, as its consumer would see it, makes the recorded reply."""
    sent = [
        (command.header(SendMessageV2Request), command.body)
        for name, command in frames(version, "request_reply")
        if name in ("SEND_MESSAGE_V2", "SEND_REPLY_MESSAGE_V2")
    ]
    requests = {
        decode_properties(header.properties or "")[names.CORRELATION_ID]: header
        for header, body in sent
        if body.startswith(b"ask")
    }
    compared = 0
    for header, body in sent:
        theirs = decode_properties(header.properties or "")
        request = requests.get(theirs[names.CORRELATION_ID])
        if not body.startswith(b"reply") or request is None:
            continue
        consumed = reply_from(PUSHED, zlib.compress(b"x"))
        consumed.properties = decode_properties(request.properties or "") | {
            names.CLUSTER: "DefaultCluster"
        }
        topic, ours = reply_to(consumed)
        del theirs[names.UNIQ_KEY]
        assert (topic, ours) == (header.topic, theirs)
        compared += 1
    assert compared
