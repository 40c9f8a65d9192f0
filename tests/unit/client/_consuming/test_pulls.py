"""The messages of a pull: with their origin, unwrapped, and filtered by tag."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import zlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from cometmq.client import ClientInstance, Filter
from cometmq.client._connection.broker_calls import BrokerCalls
from cometmq.client._connection.instance import core_of
from cometmq.client._consuming import pulls
from cometmq.client._consuming.pulls import (
    FilterServers,
    Pull,
    PullResult,
    PullStatus,
    pull_once,
    result_from,
)
from cometmq.model import property_names as names
from cometmq.model.errors import ProtocolError, ResponseError
from cometmq.model.flags import PullSysFlag, SysFlag
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.protocol.batch import BatchItem, encode_batch
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.compression import CompressionError
from cometmq.protocol.headers.base import encode_fields
from cometmq.protocol.headers.pull import PullMessageRequest, PullMessageResponse
from cometmq.protocol.properties import encode_properties
from cometmq.protocol.version import CURRENT_VERSION
from cometmq.remoting import ConnectError, Request, Response
from support.brokers.scripted import ScriptedBroker, ScriptedCluster
from support.wire import message_records
from support.wire.recorded import VERSIONS, frames

QUEUE = MessageQueue("t", "a", 3)
WRAPPED = SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP


def record(offset: int, body: bytes = b"body", *, sys_flag: int = 0, **properties: str) -> bytes:
    """A record as a broker sends it."""
    facts = {"queue_id": 3, "queue_offset": offset, "log_offset": 1000 + offset}
    more = {"flag": 9, "sys_flag": sys_flag, "reconsume_times": 2}
    return message_records.record(body, b"t", properties, **facts, **more)


def answer(*records: bytes, code: int = 0, **fields: int) -> Command:
    """An answer to a pull."""
    header = {
        "suggestWhichBrokerId": 1,
        "nextBeginOffset": 8,
        "minOffset": 4,
        "maxOffset": 90,
        **fields,
    }
    return Command(
        code=code,
        remark="as told",
        fields={name: str(value) for name, value in header.items()},
        body=b"".join(records),
    )


def pull(queue: MessageQueue = QUEUE, wanted: str = "*", **more: Any) -> Pull:
    return Pull("g", queue, Filter.tags(wanted), **more)


def test_a_message_says_where_it_came_from() -> None:
    result = result_from(answer(record(5, COLOR="red"), record(6)), pull())

    assert result.status is PullStatus.FOUND
    assert (result.next_offset, result.min_offset, result.max_offset) == (8, 4, 90)
    assert result.suggested_broker_id == 1
    first, second = result.messages
    assert first.queue == QUEUE
    assert [first.queue_offset, second.queue_offset] == [5, 6]
    assert first.properties == {"COLOR": "red", names.MIN_OFFSET: "4", names.MAX_OFFSET: "90"}
    assert second.properties == {names.MIN_OFFSET: "4", names.MAX_OFFSET: "90"}


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ResponseCode.PULL_NOT_FOUND, PullStatus.NO_NEW_MESSAGE),
        (ResponseCode.PULL_RETRY_IMMEDIATELY, PullStatus.NO_MATCHED_MESSAGE),
        (ResponseCode.PULL_OFFSET_MOVED, PullStatus.OFFSET_ILLEGAL),
    ],
)
def test_an_answer_without_messages_says_why(code: int, status: PullStatus) -> None:
    result = result_from(answer(code=code), pull())

    assert result.status is status
    assert result.messages == []


def test_any_other_code_is_a_refusal() -> None:
    with pytest.raises(ResponseError, match="as told"):
        result_from(answer(code=ResponseCode.NO_PERMISSION), pull())


def test_records_that_are_not_whole_are_an_error() -> None:
    with pytest.raises(ProtocolError):
        result_from(answer(record(5)[:-1]), pull())


def test_tags_are_compared_by_their_text() -> None:
    records = [record(5, TAGS="Aa"), record(6, TAGS="BB"), record(7)]

    result = result_from(answer(*records), pull(wanted="Aa || C"))

    assert [message.queue_offset for message in result.messages] == [5]


def test_a_body_is_decompressed() -> None:
    flag = SysFlag.COMPRESSED | SysFlag.ZLIB
    [message] = result_from(
        answer(record(5, zlib.compress(b"text"), sys_flag=flag)), pull()
    ).messages

    assert message.body == b"text"
    assert not message.sys_flag & SysFlag.COMPRESSED


def test_a_message_whose_body_cannot_be_decompressed_is_handed_on() -> None:
    flag = SysFlag.COMPRESSED | SysFlag.ZLIB
    [message] = result_from(answer(record(5, b"damaged", sys_flag=flag)), pull()).messages

    assert message.queue_offset == 5
    with pytest.raises(CompressionError):
        _ = message.body


def batch(*bodies: bytes) -> bytes:
    """The body of a wrapped batch, with tags 0, 1, …"""
    return encode_batch(
        BatchItem(number, body, encode_properties({"TAGS": str(number)}))
        for number, body in enumerate(bodies)
    )


def test_a_wrapped_batch_is_taken_apart() -> None:
    wrapped = record(5, batch(b"one", b"two"), sys_flag=WRAPPED)

    result = result_from(answer(record(4), wrapped, record(7)), pull())

    assert [(each.queue_offset, each.body) for each in result.messages] == [
        (4, b"body"),
        (5, b"one"),
        (6, b"two"),
        (7, b"body"),
    ]
    inner = result.messages[2]
    assert (inner.flag, inner.sys_flag, inner.tags) == (1, 0, "1")
    assert (inner.queue, inner.log_offset, inner.reconsume_times) == (QUEUE, 1005, 2)
    assert inner.properties[names.MAX_OFFSET] == "90"


def test_a_pull_from_inside_a_wrapped_batch_leaves_out_what_is_before_it() -> None:
    """A broker returns the whole record."""
    wrapped = record(5, batch(b"one", b"two", b"three"), sys_flag=WRAPPED)

    result = result_from(answer(wrapped, record(8), nextBeginOffset=9), pull(), 6)

    assert [each.queue_offset for each in result.messages] == [6, 7, 8]


@pytest.mark.parametrize("offsets", [(6, 5), (5, 5), (4, 6, 5, 7), (-1, 0)], ids=str)
def test_offsets_that_do_not_rise_are_an_error(offsets: tuple[int, ...]) -> None:
    """Else a commit could pass a message that is not consumed."""
    with pytest.raises(ProtocolError, match=r"offset -?\d+ follows .*: expected rising offsets"):
        result_from(answer(*map(record, offsets)), pull())


def test_a_wrapped_batch_that_overlaps_the_next_message_is_an_error() -> None:
    wrapped = record(5, batch(b"one", b"two"), sys_flag=WRAPPED)

    with pytest.raises(ProtocolError, match="offset 6 follows 6: expected rising offsets"):
        result_from(answer(wrapped, record(6)), pull())


def test_a_next_offset_that_is_not_behind_the_messages_is_an_error() -> None:
    """Else the same messages are pulled again and again."""
    with pytest.raises(ProtocolError, match="next offset 6 after a message at 6 of t@a:3"):
        result_from(answer(record(5), record(6), nextBeginOffset=6), pull())


def test_tags_inside_a_wrapped_batch_are_compared_too() -> None:
    wrapped = record(5, batch(b"one", b"two"), sys_flag=WRAPPED)

    result = result_from(answer(wrapped), pull(wanted="1"))

    assert [message.body for message in result.messages] == [b"two"]


def test_a_compressed_wrapped_batch_is_taken_apart() -> None:
    flag = WRAPPED | SysFlag.COMPRESSED | SysFlag.ZLIB
    wrapped = record(5, zlib.compress(batch(b"one")), sys_flag=flag)

    assert [each.body for each in result_from(answer(wrapped), pull()).messages] == [b"one"]


def test_a_batch_that_cannot_be_decompressed_stays_wrapped() -> None:
    flag = WRAPPED | SysFlag.COMPRESSED | SysFlag.ZLIB
    [message] = result_from(answer(record(5, b"???", sys_flag=flag)), pull()).messages

    with pytest.raises(CompressionError):
        _ = message.body


def test_a_damaged_batch_stays_wrapped(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        [message] = result_from(answer(record(5, b"???", sys_flag=WRAPPED)), pull()).messages

    assert message.body == b"???"
    assert "cannot unwrap a batch" in caplog.text


def test_queues_and_offsets_of_a_static_topic_are_those_that_were_asked_for() -> None:
    logical = MessageQueue("t", "__syslo__global__", 12)

    [message] = result_from(
        answer(record(5), nextBeginOffset=106, offsetDelta=100), pull(logical)
    ).messages

    assert message.queue == logical
    assert message.queue_offset == 105


def test_a_lite_pull_says_that_it_is_one() -> None:
    header = pull(lite=True, hold_ms=9).header(QueueOffset(5), QueueOffset(4))

    assert header.sys_flag == (
        PullSysFlag.COMMIT_OFFSET
        | PullSysFlag.SUSPEND
        | PullSysFlag.SUBSCRIPTION
        | PullSysFlag.LITE_PULL
    )
    assert (header.commit_offset, header.suspend_timeout_millis) == (4, 9)


@pytest.mark.parametrize(("most", "is_bulk"), [(32, None), (33, True)])
def test_a_pull_of_many_messages_is_one_of_a_backlog(most: int, is_bulk: bool | None) -> None:
    pull = Pull("g", MessageQueue("T", "b", 0), Filter.tags("*"), max_messages=most)
    assert pull.header(QueueOffset(0)).bulk is is_bulk


def recorded_pulls(version: str, scenario: str) -> list[PullMessageRequest]:
    """The pulls that a Java client of this version sent."""
    return [
        command.header(PullMessageRequest)
        for name, command in frames(version, scenario)
        if name in ("PULL_MESSAGE", "LITE_PULL_MESSAGE")
    ]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scenario", ["push_consumer", "orderly", "broadcast", "lite_pull"])
def test_a_pull_is_what_a_java_client_sends(version: str, scenario: str) -> None:
    """But for the offset that it names while it commits none, which no broker looks at."""
    pulls = recorded_pulls(version, scenario)
    assert pulls
    for told in pulls:
        commits = told.sys_flag & PullSysFlag.COMMIT_OFFSET
        ours = Pull(
            told.consumer_group,
            MessageQueue(told.topic, told.bname or "", told.queue_id),
            dataclasses.replace(Filter.tags(told.subscription or "*"), version=told.sub_version),
            max_messages=told.max_msg_nums,
            max_bytes=told.max_msg_bytes,
            hold_ms=told.suspend_timeout_millis,
            send_filter=told.subscription is not None,
            lite=bool(told.sys_flag & PullSysFlag.LITE_PULL),
        ).header(
            QueueOffset(told.queue_offset),
            QueueOffset(told.commit_offset) if commits else None,
        )
        if not commits:
            told.commit_offset = ours.commit_offset
        assert encode_fields(ours) == encode_fields(told)


class Codes(BrokerCalls):
    """Notes the code of each request, and answers as a broker with nothing new."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def call_raw(self, address: str, code: int, *header: Any, **more: Any) -> Command:
        self.asked.append(code)
        return answer(code=ResponseCode.PULL_NOT_FOUND)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_lite_pull_has_the_code_that_its_broker_serves(version: str) -> None:
    """As Java clients of the broker's own release send it; theirs of 5.x get nothing from a 4.x."""
    [code] = {
        sent.code
        for name, sent in frames(version, "lite_pull")
        if name in ("PULL_MESSAGE", "LITE_PULL_MESSAGE")
    }
    number = {"4.9.7": 407, "5.3.3": CURRENT_VERSION}[version]
    brokers = Codes()
    for lite, known in ((True, number), (True, 0), (False, number)):
        await pull_once(
            brokers,
            "a:1",
            pull(lite=lite),
            QueueOffset(5),
            timeout=1,
            broker_version=known,
        )

    assert brokers.asked == [code, RequestCode.PULL_MESSAGE, RequestCode.PULL_MESSAGE]


class FilterServer(ScriptedBroker):
    """A filter server with nothing new, which may not respond to uploads."""

    def __init__(self, *, hangs: bool = False) -> None:
        super().__init__()
        self.uploads = 0
        self._hangs = hangs
        self.handlers[RequestCode.REGISTER_MESSAGE_FILTER_CLASS] = self._upload
        self.handlers[RequestCode.PULL_MESSAGE] = self._pull

    def _upload(self, request: Request) -> Response | None:
        self.uploads += 1
        return None if self._hangs else Response()

    def _pull(self, request: Request) -> Response:
        offsets = PullMessageResponse(
            suggest_which_broker_id=0, next_begin_offset=5, min_offset=0, max_offset=5
        )
        return Response(ResponseCode.PULL_NOT_FOUND, header=offsets)


@asynccontextmanager
async def filter_servers(*servers: FilterServer) -> AsyncIterator[tuple[FilterServers, str]]:
    """A client's access to these filter servers of one broker, and the broker's address."""
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(ScriptedCluster([ScriptedBroker("a")]))
        for server in servers:
            await server.start()
            stack.push_async_callback(server.stop)
        broker = cluster.brokers[0].address
        told = cluster.name_server.routes["t"]
        told.filter_server_table = {broker: [server.address for server in servers]}
        instance = await stack.enter_async_context(ClientInstance(cluster.address))
        yield FilterServers.of(core_of(instance)), broker


async def filtered_pulls(*servers: FilterServer) -> list[PullResult | BaseException]:
    """Pull ten queues at once through these filter servers of one broker."""
    async with filter_servers(*servers) as (through, broker):
        wanted = Filter.of_class("A", "class A: ...")
        queues = [MessageQueue("t", "a", number) for number in range(10)]
        asked = (
            through.pull(broker, Pull("g", queue, wanted), QueueOffset(5), timeout=60.0)
            for queue in queues
        )
        return await asyncio.gather(*asked, return_exceptions=True)


async def test_a_start_waits_once_for_all_filter_servers_that_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pulls, "UPLOAD_S", 0.5)
    hanging, good = [FilterServer(hangs=True) for _ in range(4)], FilterServer()

    async with filter_servers(*hanging, good) as (through, _), asyncio.timeout(1.0):
        await through.upload_to_all("g", "t", Filter.of_class("A", "class A: ..."))

    assert [server.uploads for server in (*hanging, good)] == [1] * 5


async def test_queues_do_not_wait_one_by_one_for_a_filter_server_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pulls, "UPLOAD_S", 0.2)
    hanging = FilterServer(hangs=True)

    ended = await filtered_pulls(hanging)

    assert hanging.uploads == 1
    assert {type(each) for each in ended} == {ConnectError}


async def test_pulls_pass_over_a_filter_server_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulls, "UPLOAD_S", 0.2)
    hanging, other = FilterServer(hangs=True), FilterServer()

    ended = await filtered_pulls(hanging, other)

    assert [each.status for each in ended if isinstance(each, PullResult)] == (
        [PullStatus.NO_NEW_MESSAGE] * 10
    )
    assert other.uploads == 1
