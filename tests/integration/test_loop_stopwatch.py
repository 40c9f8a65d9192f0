"""Nothing that a client sends keeps the event loop of a server busy for more than 5 ms at a time.

The broker has much of everything: topics, groups, offsets, queues, members, messages with one
key. The name server has many topics, and a topic of many brokers. Each request code has its hostile
requests in `BROKER_CASES` or `NAMESRV_CASES`; a code without an entry fails
`test_every_request_code_has_hostile_requests`. Forms of frames that no code is
responsible for are in `FRAME_CASES`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import json
import random
import socket
import struct
import time
import zlib
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

import msgspec
import pytest

from cometmq.broker.access import unserved
from cometmq.broker.app import Broker
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import DELAY_TOPIC, TopicConfig
from cometmq.namesrv.app import NameServer
from cometmq.namesrv.assembly import NEEDS
from cometmq.namesrv.kv_config.table import ORDER_NAMESPACE
from cometmq.namesrv.registry import Registration
from cometmq.protocol import fastjson
from cometmq.protocol.batch import BatchItem, encode_batch
from cometmq.protocol.bodies.common import DataVersion
from cometmq.protocol.bodies.group import LockBatchRequestBody, SubscriptionGroupList
from cometmq.protocol.bodies.heartbeat import CheckClientRequestBody
from cometmq.protocol.bodies.register import RegisterBrokerBody
from cometmq.protocol.bodies.route import (
    LogicQueueMappingItem,
    QueueData,
    TopicQueueMappingDetail,
    TopicRouteData,
)
from cometmq.protocol.bodies.topic import TopicConfigList, TopicConfigSerializeWrapper
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command, encode_command
from cometmq.protocol.frame import BINARY_HEADER, JSON_HEADER
from cometmq.protocol.message_id import encode_offset_id
from cometmq.store import NewRecord
from cometmq.testing.threaded import ThreadedCluster
from support.brokers.access import tables_of_rights
from support.checks.stopwatch import Stopwatch, slowness
from support.runner.build import compiled_modules
from support.runner.tiers import rounds
from support.stores.small_stores import put
from support.wire.wire_classes import header_class

pytestmark = [
    pytest.mark.skipif(not compiled_modules(), reason="limits are meant for the compiled build"),
    pytest.mark.long,
]
"""It needs a machine to itself: beside other stages a step of a millisecond took 22 once."""

LIMIT_S = 0.005
"""On the machine for which `support.checks.stopwatch` has the time of a known piece of work."""
ATTEMPTS = 4
"""What the machine does meanwhile is not repeated; work that was asked for is."""
RESPONSE_S = 30.0

TOPICS, GROUPS, MEMBERS, MESSAGES = 10_000, 3_000, 300, 120_000
DUE_MESSAGES, LARGE_BYTES = 100_000, 1024 * 1024
WIDE_QUEUES = 16_384
WIDE_FILES = rounds(test=200, long=2_000)
"""Queues of them that have messages."""
HUGE = 2**31 - 1
FRAME_MAX = 4 * 1024 * 1024 - 1024
MANY_REQUESTS = rounds(test=20, long=100)
"""Requests in one read, of those each of which writes a table."""

LONG, WIDE, MANY = "long", "wide", "many-topics"
BROKERS = 2_000
GROUP = "group-of-many"
BUSY_GROUP = "group-of-all-topics"


def topic_name(number: int) -> str:
    return f"topic-with-a-name-of-some-length-{number:06d}"


def group_name(number: int) -> str:
    return f"group-with-a-name-of-some-length-{number:06d}"


class Peer:
    """One connection of a client that waits for the response to each frame."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=RESPONSE_S)
        self._received = bytearray()

    def send(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    def next_header(self) -> dict[str, Any]:
        """Return the header of the next frame.

        Raises:
            ConnectionError: the server has closed the connection.
        """
        length = int.from_bytes(self._read(4))
        frame = self._read(length)
        header: dict[str, Any] = {}
        if frame[0] == JSON_HEADER:
            header = msgspec.json.decode(frame[4 : 4 + int.from_bytes(frame[1:4])])
        return header

    def _read(self, size: int) -> bytes:
        while len(self._received) < size:
            data = self._socket.recv(1 << 20)
            if not data:
                raise ConnectionError("closed")
            self._received += data
        found = bytes(self._received[:size])
        del self._received[:size]
        return found

    def responses(self, count: int = 1) -> None:
        """Return after so many responses, or when the server closes the connection."""
        with contextlib.suppress(ConnectionError):
            for _ in range(count):
                self.next_header()

    def ask(self, frame: bytes, responses: int = 1) -> None:
        """Send frames and wait for so many responses, or for the end of the connection."""
        with contextlib.suppress(ConnectionError):
            self.send(frame)
            self.responses(responses)

    def close(self) -> None:
        self._socket.close()


class Measured:
    """The loop of one thread with a server, and its stopwatch."""

    def __init__(self, cluster: ThreadedCluster, watch: Stopwatch) -> None:
        self.watch = watch
        assert cluster._loop is not None
        self.loop = cluster._loop
        self._used = 0

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(RESPONSE_S)

    def prepare(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do what no request does, and do not measure it."""
        self.run(work)
        self.watch.restart()

    def unused(self, kind: str) -> str:
        self._used += 1
        return f"{kind}-{self._used}"


class Servers(Measured):
    """A broker with very much of everything."""

    def __init__(self, cluster: ThreadedCluster, watch: Stopwatch) -> None:
        super().__init__(cluster, watch)
        self.broker: Broker = cluster._cluster.brokers[0]
        self.members: list[Peer] = []
        self.last_record = 0

    async def fill(self) -> None:
        core = self.broker.core
        configs = [
            TopicConfig(
                topic_name=topic_name(n),
                read_queue_nums=8,
                write_queue_nums=8,
                attributes={"message.type": "NORMAL"},
            )
            for n in range(TOPICS)
        ]
        await core.topics.put([*configs, wide(WIDE), TopicConfig(topic_name=LONG)])
        groups = [SubscriptionGroupConfig(group_name=group_name(n)) for n in range(GROUPS)]
        names = [GROUP, BUSY_GROUP]
        await core.groups.put(
            [*groups, *(SubscriptionGroupConfig(group_name=name) for name in names)]
        )
        for number in range(TOPICS):
            for queue in range(2):
                core.offsets.commit(BUSY_GROUP, topic_name(number), queue, number)
            core.offsets.commit(group_name(number % GROUPS), LONG, 0, 1)
            core.stats.got(group_name(number % GROUPS), LONG, 0, 1, 1)
            core.stats.put(topic_name(number), 0, 1, 1)
        for queue in range(WIDE_QUEUES):
            core.offsets.commit(GROUP, WIDE, queue, queue)
            core.offsets.note_pulled(GROUP, WIDE, queue, queue)
            core.stats.put(WIDE, queue, 1, 1)
            core.stats.got(GROUP, WIDE, queue, 1, 1)
        self.store_messages()

    def store_messages(self) -> None:
        store = self.broker.core.store
        properties = b"KEYS\x01the-key\x02TAGS\x01tag"
        body = encode_batch([BatchItem(0, b"x" * 8, properties)] * 2000)
        host = bytes([127, 0, 0, 1]) + bytes(4)
        for _ in range(MESSAGES // 2000):
            store.append_batch(
                NewRecord(LONG, 0, body, b"", born_time_ms=1, born_host=host, store_host=host)
            )
        for queue in range(WIDE_FILES):
            stored = put(store, b"x", topic=WIDE, queue_id=queue)
        self.last_record = stored.log_offset

    def join_members(self) -> None:
        address = self.broker.address
        for number in range(MEMBERS):
            peer = Peer(address)
            peer.ask(frame(RequestCode.HEART_BEAT, body=heartbeat(f"client-{number}", GROUP)))
            self.members.append(peer)


def wide(name: str) -> TopicConfig:
    return TopicConfig(topic_name=name, read_queue_nums=WIDE_QUEUES, write_queue_nums=WIDE_QUEUES)


class Names(Measured):
    """A name server with many topics of one broker, and one topic of many brokers."""

    def __init__(self, cluster: ThreadedCluster, watch: Stopwatch) -> None:
        super().__init__(cluster, watch)
        assert cluster._cluster._name_server is not None
        self.server: NameServer = cluster._cluster._name_server

    async def fill(self) -> None:
        await self.register(MANY, [topic_name(n) for n in range(TOPICS)])
        for number in range(BROKERS):
            await self.register(f"broker-{number}", ["shared", f"of-{number}"])
        values = {f"key-{n}": "broker-0:8" for n in range(TOPICS)}
        self.server.core.kv._table[MANY] = values
        self.server.core.kv._table[ORDER_NAMESPACE] = dict(values)

    async def register(self, name: str, topics: list[str], connection: object = None) -> None:
        registration = Registration(
            cluster="cluster",
            broker_name=name,
            broker_id=0,
            address=f"{name}:1",
            ha_address="",
            version=DataVersion(),
            topics={topic: TopicConfig(topic_name=topic) for topic in topics},
            filter_servers=(f"{name}:2",),
            expiry_ms=86_400_000,
        )
        await self.server.registry.register(registration, connection, self.server.core.now_ms())


@pytest.fixture(scope="module", autouse=True)
def no_collections() -> Iterator[None]:
    """A garbage collection is no work that a request asks for."""
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    watch = Stopwatch()
    settings = {
        "channelExpiredTimeout": "3600000",
        "mappedFileSizeCommitLog": str(64 * 1024 * 1024),
        "mappedFileSizeConsumeQueue": str(300_000 * 20),
        "maxTransferCountOnMessageInMemory": "100000",
        "enablePropertyFilter": "true",
    }
    # The broker registers at a name server of another thread, which is not measured.
    with (
        ThreadedCluster() as names,
        ThreadedCluster(settings=settings | {"namesrvAddr": names.name_servers}) as cluster,
    ):
        running = Servers(cluster, watch)
        running.run(running.fill())
        running.join_members()
        gc.freeze()
        with watch.measures(cluster._thread):
            yield running
        for peer in running.members:
            peer.close()


@pytest.fixture(scope="module")
def names() -> Iterator[Names]:
    watch = Stopwatch()
    with ThreadedCluster() as cluster:
        running = Names(cluster, watch)
        running.run(running.fill())
        gc.freeze()
        with watch.measures(cluster._thread):
            yield running


def frame(code: int, body: bytes = b"", *, binary: bool = False, **fields: object) -> bytes:
    text = {name: str(value) for name, value in fields.items() if value is not None}
    command = Command(
        int(code),
        opaque=random.randrange(1 << 30),
        fields=text,
        body=body,
        serialization=BINARY_HEADER if binary else JSON_HEADER,
    )
    return encode_command(command)


def raw_frame(header: bytes, body: bytes = b"", encoding: int = JSON_HEADER) -> bytes:
    word = encoding << 24 | len(header)
    return struct.pack(">II", 4 + len(header) + len(body), word) + header + body


def heartbeat(client: str, *groups: str, subscriptions: int = 60) -> bytes:
    topics = [
        {"topic": f"t{n}", "subString": "a || b", "tagsSet": ["a", "b"], "codeSet": [97, 98]}
        for n in range(subscriptions)
    ]
    consumers = [
        {
            "groupName": name,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": topics,
        }
        for name in groups
    ]
    producers = [{"groupName": name} for name in groups]
    return json.dumps(
        {"clientID": client, "consumerDataSet": consumers, "producerDataSet": producers}
    ).encode()


def padded(body: bytes, size: int) -> bytes:
    """The same JSON object with one more, very long member."""
    return body[:-1] + b',"x":"' + b"y" * (size - len(body) - 8) + b'"}'


def odd(body: bytes) -> bytes:
    """The same JSON as only the general parser reads it."""
    return body.replace(b'"', b"'") + b" "


def numbers(count: int) -> bytes:
    """JSON of the dialect with very many values."""
    return b"{'a':[" + b"1," * count + b"1]}"


def junk() -> list[bytes]:
    """Bodies that no request has."""
    return [
        b"\0" * FRAME_MAX,
        numbers(1_000_000),
        b"[" * 1_000_000,
        b"{'a':'" + b"\\x41" * 500_000 + b"'}",
        b'{"a":[' + b"{}," * 500_000 + b"{}]}",
        b'{"a":' * 90 + b"1" + b"}" * 90,
        b'{"a":[' + b'{"$ref":"$.b"},' * 50_000 + b'1],"b":[1,2,3,4]}',
    ]


Frames = Iterable[bytes]
Case = Callable[[Servers], Frames]
NamesCase = Callable[[Names], Frames]
M = TypeVar("M", bound=Measured)


def with_junk(code: RequestCode, **fields: object) -> Frames:
    for body in junk():
        yield frame(code, body, **fields)


# --- the broker -------------------------------------------------------------------------------


def sends(code: RequestCode, _: Servers) -> Frames:
    names = {
        "producerGroup": "p",
        "topic": topic_name(1),
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 0,
        "sysFlag": 0,
        "bornTimestamp": 1,
        "flag": 0,
        "properties": "",
        "reconsumeTimes": 0,
        "unitMode": "true",
        "batch": "false",
        "maxReconsumeTimes": 3,
    }
    keys = "abcdefghijklm"
    short = {
        "a": "p",
        "b": topic_name(1),
        "c": "TBW102",
        "d": 4,
        "e": 0,
        "f": 0,
        "g": 1,
        "h": 0,
        "i": "",
        "j": 0,
        "k": "true",
        "l": 3,
        "m": "false",
    }
    is_short = code in (
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    )
    fields: dict[str, object] = dict(short if is_short else names)
    text = "i" if is_short else "properties"
    assert len(keys) == 13
    yield frame(code, b"x" * 1000, **fields)
    yield frame(code, b"x" * (1024 * 1024), **fields)
    many = "".join(f"n{n}\x01v\x02" for n in range(3_000))
    yield frame(code, b"x", **{**fields, text: many})
    yield frame(code, b"x", **{**fields, text: "KEYS\x01" + "k " * 16_000 + "\x02"})
    yield frame(code, b"x", **{**fields, text: "n\x01v\x02" * 60_000})
    if code == RequestCode.SEND_BATCH_MESSAGE:
        fields["m"] = "true"
        yield frame(code, encode_batch([BatchItem(0, b"", b"")] * 150_000), **fields)
        yield frame(code, encode_batch([BatchItem(0, b"", b"")] * 600_000), **fields)
        item = BatchItem(0, b"", b"KEYS\x01" + b"k " * 200)
        yield frame(code, encode_batch([item] * 9_000), **fields)


PULL: dict[str, object] = {
    "consumerGroup": GROUP, "topic": LONG, "queueId": 0, "queueOffset": 0, "maxMsgNums": 1,
    "sysFlag": 0, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*",
    "subVersion": 0, "expressionType": "TAG",
}  # fmt: skip
HELD = {"sysFlag": 6, "suspendTimeoutMillis": 1500}


def pulls(code: RequestCode, servers: Servers) -> Frames:
    base = PULL | {"maxMsgNums": HUGE, "maxMsgBytes": HUGE}
    subscribed = {**base, "sysFlag": 4}
    yield frame(code, **subscribed)
    yield frame(code, **{**subscribed, "subscription": "none"})
    yield frame(code, **{**subscribed, "subscription": " || ".join(f"t{n}" for n in range(40_000))})
    yield frame(code, **{**subscribed, "subscription": "|" * 400_000})
    yield frame(code, **{**subscribed, "subscription": "a>1 " * 100_000, "expressionType": "SQL92"})
    yield from filtered_pulls(code, subscribed)
    yield frame(code, **{**base, "consumerGroup": "x" * 400_000})
    yield frame(code, **{**base, "topic": "x" * 400_000})
    # Many in one read; then many are held, and one message wakes them all.
    yield b"".join(frame(code, **subscribed) for _ in range(40))


def long_expressions() -> Iterator[str]:
    """Expressions that take as long as a client can make them take, to compile or to evaluate."""
    number = next(_numbers)
    yield " OR ".join([f"x{number} = 'never'"] * 1_500)
    yield f"KEYS = 'x{number}' OR " + " OR ".join(f"p{n % 60} > {n}" for n in range(2_500))
    yield "(" * 15_000 + f"x{number}"
    yield "NOT " * 7_000 + f"x{number}"
    yield f"x{number} IN (" + ", ".join(f"'{n}'" for n in range(4_000)) + ")"
    yield "KEYS CONTAINS '" + "k" * 30_000 + f"' AND x{number} = 1"


_numbers = itertools.count()


def filtered_pulls(code: RequestCode, subscribed: dict[str, object]) -> Frames:
    """A filter that matches next to nothing looks at very many messages in each pull."""
    for expression in ("KEYS = 'the-key' AND n > 1", "TAGS = 'none'", "KEYS = 'the-key'"):
        sql = {**subscribed, "subscription": expression, "expressionType": "SQL92"}
        yield frame(code, **sql)
        yield frame(code, **{**sql, "maxMsgNums": 32})
        yield b"".join(frame(code, **{**sql, "queueOffset": 800 * n}) for n in range(40))
    for expression in long_expressions():
        yield frame(code, **{**subscribed, "subscription": expression, "expressionType": "SQL92"})


def held_pulls(servers: Servers) -> Frames:
    topic = servers.unused("held")
    servers.run(servers.broker.core.topics.put([TopicConfig(topic_name=topic)]))
    waiting = [
        frame(RequestCode.PULL_MESSAGE, **PULL | {"topic": topic, **HELD}) for _ in range(1000)
    ]
    peers = [Peer(servers.broker.address) for _ in range(20)]
    for peer in peers:
        peer.send(b"".join(waiting))
    while len(servers.broker.features.pulling.held) < 20_000:
        servers.run(asyncio.sleep(0.01))
    send = frame(
        RequestCode.SEND_MESSAGE_V2,
        b"x",
        a="p",
        b=topic,
        c="TBW102",
        d=4,
        e=0,
        f=0,
        g=1,
        h=0,
        i="",
        j=0,
        k="false",
        m="false",
    )
    yield send
    for peer in peers:
        peer.responses(1000)
        peer.send(b"".join(waiting))  # of which none is held
        peer.responses(1000)
        peer.send(b"".join(w.replace(b'"queueOffset":"0"', b'"queueOffset":"1"') for w in waiting))
    for peer in peers:  # all times end together
        peer.responses(1000)
        peer.close()
    yield send
    yield from filtered_held_pulls(servers, topic, send)


def filtered_held_pulls(servers: Servers, topic: str, send: bytes) -> Frames:
    """Many messages arrive where pulls with long expressions are held."""
    end = servers.broker.core.store.next_offset(topic, 0)
    peer = Peer(servers.broker.address)
    for expression in long_expressions():
        wanted = {"queueOffset": end, "subscription": expression, "expressionType": "SQL92"}
        held = PULL | {"topic": topic, **HELD, **wanted}
        peer.send(frame(RequestCode.PULL_MESSAGE, **held) * 10)
    yield send * 200
    peer.responses(10 * sum(1 for _ in long_expressions()))
    peer.close()


def send_backs(servers: Servers) -> Frames:
    code = RequestCode.CONSUMER_SEND_MSG_BACK
    fields: dict[str, object] = {
        "offset": servers.last_record,
        "group": GROUP,
        "delayLevel": 0,
        "originMsgId": "x" * 1000,
        "originTopic": LONG,
        "unitMode": "false",
        "maxReconsumeTimes": 16,
    }
    yield frame(code, **fields)
    yield frame(code, **{**fields, "group": servers.unused("back")})
    yield frame(code, **{**fields, "originTopic": "x" * 400_000})
    yield from with_junk(code, **fields)


def heartbeats(servers: Servers) -> Frames:
    code = RequestCode.HEART_BEAT
    many = [group_name(n) for n in range(10_000)]
    yield frame(code, heartbeat("c", *many, subscriptions=1))
    yield frame(code, heartbeat("c", *many[:900], subscriptions=5))
    yield frame(code, heartbeat("c", *many[:900], subscriptions=4))
    yield frame(code, heartbeat("c", *many[:2], subscriptions=2400))
    yield frame(code, heartbeat("d", *many[:2], subscriptions=2400))
    yield frame(code, odd(heartbeat("d", *many[:2], subscriptions=2400)))
    yield frame(code, heartbeat("c", GROUP, subscriptions=4900))
    yield frame(
        code, heartbeat("c", *(servers.unused("beat") for _ in range(900)), subscriptions=1)
    )
    yield frame(
        code, heartbeat("c", subscriptions=1)[:-1] + b',"clientID":"' + b"x" * 900_000 + b'"}'
    )
    tags = {"topic": "t", "subString": "a", "tagsSet": ["t"] * 9000, "codeSet": list(range(9000))}
    data = {
        "clientID": "c",
        "consumerDataSet": [{"groupName": GROUP, "subscriptionDataSet": [tags]}],
    }
    yield frame(code, json.dumps(data).encode())
    yield from filtering_heartbeats(code, servers)
    yield from with_junk(code)


def filtering_heartbeats(code: RequestCode, servers: Servers) -> Frames:
    def beat(*expressions: str) -> bytes:
        sql = [
            {"topic": f"t{n}", "subString": text, "expressionType": "SQL92", "subVersion": n}
            for n, text in enumerate(expressions)
        ]
        group = {"groupName": servers.unused("filtering"), "subscriptionDataSet": sql}
        return frame(code, json.dumps({"clientID": "c", "consumerDataSet": [group]}).encode())

    yield beat(*long_expressions())
    for expression in long_expressions():
        yield beat(expression)
    yield beat(*(f"short{n} > {n}" for n in range(100)))
    yield beat(*(f"short{n} > {n}" for n in range(101)))


def leavers(servers: Servers) -> Frames:
    """A client of very many groups whose connection ends."""
    peer = Peer(servers.broker.address)
    peer.ask(
        frame(
            RequestCode.HEART_BEAT,
            heartbeat("leaver", *(group_name(n) for n in range(900)), subscriptions=3),
        )
    )
    peer.close()
    yield frame(RequestCode.GET_BROKER_HA_STATUS)


def locks(code: RequestCode, servers: Servers) -> Frames:
    queues = [MessageQueue(WIDE, "broker-0", n) for n in range(WIDE_QUEUES)]
    for count in (2_000, WIDE_QUEUES):
        body = LockBatchRequestBody(consumer_group=GROUP, client_id="c", mq_set=queues[:count])
        yield frame(code, body.encode())
    few = LockBatchRequestBody(consumer_group=GROUP, client_id="c", mq_set=queues[:2_000]).encode()
    yield frame(code, odd(few))
    yield frame(code, b"{'mqSet':[" + b"{}," * 100_000 + b"],'consumerGroup':'g','clientId':'c'}")
    yield from with_junk(code)


def topic_lists(servers: Servers) -> Frames:
    code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
    for count in (1_000, 9_000, 60_000):
        name = servers.unused("listed")
        configs = [
            TopicConfig(topic_name=f"{name}-{n}", attributes={"+message.type": "FIFO"})
            for n in range(count)
        ]
        yield frame(code, TopicConfigList(topic_config_list=configs).encode())
    yield frame(code, odd(TopicConfigList(topic_config_list=configs[:5_000]).encode()))
    yield from with_junk(code)


def static_mappings(servers: Servers) -> Frames:
    code = RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC
    broker = servers.broker.core.static_topics.broker_name
    for queues, items in ((1, 900), (900, 1), (1_000, 7), (7, 1_200)):
        name = servers.unused("mapped")
        hosted = {
            queue: [
                LogicQueueMappingItem(
                    gen=gen, queue_id=queue * items + gen, bname=broker, logic_offset=10 * gen
                )
                for gen in range(items)
            ]
            for queue in range(queues)
        }
        detail = TopicQueueMappingDetail(
            topic=name, total_queues=queues, bname=broker, epoch=1, hosted_queues=hosted
        )
        fields: dict[str, object] = {
            "topic": name,
            "readQueueNums": queues * items,
            "writeQueueNums": queues * items,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
        }
        yield frame(code, detail.encode(), **fields)
        yield frame(code, detail.encode(), **fields)
    yield from with_junk(code)


def created_topics(servers: Servers) -> Frames:
    code = RequestCode.UPDATE_AND_CREATE_TOPIC
    fields: dict[str, object] = {
        "topic": servers.unused("created"),
        "defaultTopic": "TBW102",
        "readQueueNums": WIDE_QUEUES,
        "writeQueueNums": WIDE_QUEUES,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
        "attributes": "+message.type=FIFO",
    }
    yield frame(code, **fields)
    yield frame(code, **{**fields, "attributes": "+a=b," * 80_000})
    yield frame(code, **{**fields, "attributes": "," * 400_000})
    yield b"".join(frame(code, **{**fields, "topic": servers.unused("made")}) for _ in range(20))


def deleted_topics(servers: Servers) -> Frames:
    code = RequestCode.DELETE_TOPIC_IN_BROKER
    name = servers.unused("deleted")
    servers.prepare(_make_wide(servers, name))
    yield frame(code, topic=name)
    yield frame(code, topic="x" * 400_000)
    yield b"".join(frame(code, topic=topic_name(TOPICS - 1 - n)) for n in range(MANY_REQUESTS))


async def _make_wide(servers: Servers, name: str) -> None:
    core = servers.broker.core
    await core.topics.put([wide(name)])
    for queue in range(WIDE_QUEUES):
        core.offsets.commit(GROUP, name, queue, 1)
        core.stats.put(name, queue, 1, 1)
        if queue < WIDE_FILES:
            put(core.store, b"x", topic=name, queue_id=queue)


def unused_topics(servers: Servers) -> Frames:
    async def make() -> None:
        for number in range(500):
            put(servers.broker.core.store, b"x", topic=f"unknown-{number}")

    servers.prepare(make())
    yield frame(RequestCode.CLEAN_UNUSED_TOPIC)


def one_group(servers: Servers) -> Frames:
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    config = SubscriptionGroupConfig(
        group_name=servers.unused("g"), attributes={f"+a{n}": "b" for n in range(50_000)}
    )
    yield frame(code, fastjson.dumps(config))
    yield frame(code, odd(fastjson.dumps(config)))
    yield from with_junk(code)


def group_lists(servers: Servers) -> Frames:
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    for count in (1_000, 9_000, 30_000):
        name = servers.unused("listed")
        configs = [SubscriptionGroupConfig(group_name=f"{name}-{n}") for n in range(count)]
        yield frame(code, SubscriptionGroupList(group_config_list=configs).encode())
    yield frame(code, odd(SubscriptionGroupList(group_config_list=configs[:9_000]).encode()))
    yield from with_junk(code)


def deleted_groups(servers: Servers) -> Frames:
    code = RequestCode.DELETE_SUBSCRIPTIONGROUP
    name = servers.unused("gone")

    async def make() -> None:
        core = servers.broker.core
        await core.groups.put([SubscriptionGroupConfig(group_name=name)])
        for number in range(5_000):
            core.offsets.commit(name, topic_name(number), 0, 1)
            core.stats.got(name, topic_name(number), 0, 1, 1)

    servers.prepare(make())
    yield frame(code, groupName=name, cleanOffset="true")
    yield b"".join(
        frame(code, groupName=group_name(GROUPS - 1 - n), cleanOffset="true")
        for n in range(MANY_REQUESTS)
    )


def forbidden(servers: Servers) -> Frames:
    code = RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN
    yield frame(code, group=GROUP, topic=LONG)
    yield b"".join(
        frame(code, group=group_name(5), topic=f"t{n}", readable="false")
        for n in range(5 * MANY_REQUESTS)
    )
    yield frame(code, group="x" * 200_000, topic="y" * 200_000, readable="false")


def clones(servers: Servers) -> Frames:
    code = RequestCode.CLONE_GROUP_OFFSET
    yield frame(code, srcGroup=GROUP, destGroup=servers.unused("clone"), topic=WIDE)
    yield frame(code, srcGroup=BUSY_GROUP, destGroup=servers.unused("clone"))


def resets(servers: Servers) -> Frames:
    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    for timestamp in (-1, 0, 2**62):
        yield frame(code, topic=WIDE, group=GROUP, timestamp=timestamp, isForce="true")
    yield frame(code, topic=LONG, group=GROUP, timestamp=1, isForce="true")


def resets_by_clients(servers: Servers) -> Frames:
    servers.run(_set_broker(servers, useServerSideResetOffset="false"))
    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    yield frame(code, topic=LONG, group=GROUP, timestamp=1, isForce="true")
    servers.run(_set_broker(servers, useServerSideResetOffset="true"))


async def _set_broker(servers: Servers, **values: str) -> None:
    servers.broker.configuration.set(values)


def key_queries(servers: Servers) -> Frames:
    code = RequestCode.QUERY_MESSAGE
    base: dict[str, object] = {
        "topic": LONG,
        "key": "the-key",
        "maxNum": HUGE,
        "beginTimestamp": 0,
        "endTimestamp": 2**62,
    }
    yield frame(code, **base)
    yield frame(code, **{**base, "beginTimestamp": 2**61})
    yield frame(code, **{**base, "topic": topic_name(1)})
    yield frame(code, **{**base, "key": "x" * 400_000})
    yield frame(code, **base, _UNIQUE_KEY_QUERY="true")
    yield b"".join(frame(code, **base) for _ in range(10))


def queue_entries(servers: Servers) -> Frames:
    code = RequestCode.QUERY_CONSUME_QUEUE
    for group in (None, GROUP, "offline"):
        yield frame(code, topic=LONG, queueId=0, index=0, count=HUGE, consumerGroup=group)


def time_searches(servers: Servers) -> Frames:
    code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    yield b"".join(
        frame(code, topic=LONG, queueId=0, timestamp=t, boundaryType="UPPER")
        for t in range(0, 2**62, 2**55)
    )


def consume_stats(servers: Servers) -> Frames:
    code = RequestCode.GET_CONSUME_STATS
    yield frame(code, consumerGroup=BUSY_GROUP)
    yield frame(code, consumerGroup=GROUP, topic=WIDE)
    names = ";".join(topic_name(n) for n in range(8_000))
    yield frame(code, consumerGroup=BUSY_GROUP, topicList=names)
    yield frame(code, consumerGroup=GROUP, topicList=";".join([WIDE] * 50_000))


def corrections(servers: Servers) -> Frames:
    code = RequestCode.QUERY_CORRECTION_OFFSET
    yield frame(code, topic=WIDE, compareGroup=GROUP)
    yield frame(code, topic=LONG, compareGroup=GROUP, filterGroups="")
    names = ",".join(group_name(n) for n in range(8_000))
    yield frame(code, topic=LONG, compareGroup=GROUP, filterGroups=names)
    yield frame(code, topic=LONG, compareGroup=GROUP, filterGroups="," * 400_000)


def direct_consumption(servers: Servers) -> Frames:
    message_id = encode_offset_id(bytes([127, 0, 0, 1]) + bytes(4), servers.last_record)
    yield from relayed(
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        servers,
        consumerGroup=GROUP,
        clientId="client-7",
        msgId=message_id,
        topic=LONG,
    )


def running_info(servers: Servers) -> Frames:
    yield from relayed(
        RequestCode.GET_CONSUMER_RUNNING_INFO, servers, consumerGroup=GROUP, clientId="client-7"
    )


def relayed(code: RequestCode, servers: Servers, **fields: object) -> Frames:
    """The member answers with as much as fits into a frame."""
    asking = Peer(servers.broker.address)
    asking.send(frame(code, **fields))
    _answer_as_member(servers.members[7], code, b"x" * FRAME_MAX)
    asking.responses(1)
    asking.send(frame(code, **{f"field-{n}": n for n in range(5_000)}, **fields))
    _answer_as_member(servers.members[7], code, b"{}")
    asking.responses(1)
    asking.close()
    yield frame(code, **{**fields, "clientId": "x" * 400_000})


def member_status(servers: Servers) -> Frames:
    code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    asking = Peer(servers.broker.address)
    queue = b'{"brokerName":"broker-0","queueId":%d,"topic":"wide"}:%d'
    large = b",".join(queue % (n, n) for n in range(5_000))
    for body in (b'{"messageQueueTable":{' + large + b"}}", b"\0" * 100_000):
        asking.send(frame(code, topic=WIDE, group=GROUP, clientAddr="client-7"))
        _answer_as_member(servers.members[7], RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, body)
        asking.responses(1)
    asking.close()
    yield frame(code, topic=WIDE, group=GROUP, clientAddr="x" * 400_000)


def _answer_as_member(member: Peer, code: int, body: bytes) -> None:
    """Answer the next request of this code that the broker sends to a member."""
    while True:
        header = member.next_header()
        if header["code"] == code and not header["flag"] & 1:
            break
    answer = Command(0, opaque=header["opaque"], flag=1, body=body)
    member.send(encode_command(answer))


def check_client(servers: Servers) -> Frames:
    code = RequestCode.CHECK_CLIENT_CONFIG
    body = CheckClientRequestBody(client_id="c", group=GROUP).encode()
    yield frame(code, body)
    for expression in ("a > 1 AND " * 20_000, *long_expressions()):
        data = {"subscriptionData": {"subString": expression, "expressionType": "SQL92"}}
        yield frame(code, json.dumps(data).encode())
    yield frame(code, json.dumps({"subscriptionData": {"codeSet": list(range(200_000))}}).encode())
    yield from with_junk(code)


def config_changes(code: RequestCode, _: Measured) -> Frames:
    yield frame(code, b"flushDiskType=ASYNC_FLUSH\n" * 9_000)
    yield frame(code, b"".join(b"k%d=v\n" % n for n in range(20_000)))
    yield frame(code, b"a" * 250_000)
    yield frame(code, b"\\\n" * 120_000)
    yield frame(code, b"\\u0041" * 40_000)
    yield from with_junk(code)


def cold_limits(code: RequestCode, servers: Servers) -> Frames:
    for first in (0, 1_000, 2_000):  # the last ones are too many
        groups = range(first, first + 1_000)
        yield frame(code, b"".join(b"g%d%s=%d\n" % (n, b"x" * 200, n + 1) for n in groups))
    yield frame(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)
    yield from config_changes(code, servers)


def plain(
    code: RequestCode, *more: dict[str, object], junk_too: bool = True
) -> Callable[[Measured], Frames]:
    """Requests with these fields; each also with a long text in place of each text."""

    def case(_: Measured) -> Frames:
        for fields in more or ({},):
            yield frame(code, **fields)
            for name, value in fields.items():
                if isinstance(value, str):
                    yield frame(code, **{**fields, name: "x" * 400_000})
        if junk_too:
            yield frame(code, b"\0" * FRAME_MAX, **(more[0] if more else {}))

    return case


_QUEUE: dict[str, object] = {"topic": LONG, "queueId": 0}

BROKER_CASES: dict[RequestCode, Case] = {
    **{
        code: partial(sends, code)
        for code in (
            RequestCode.SEND_MESSAGE,
            RequestCode.SEND_MESSAGE_V2,
            RequestCode.SEND_BATCH_MESSAGE,
            RequestCode.SEND_REPLY_MESSAGE,
            RequestCode.SEND_REPLY_MESSAGE_V2,
        )
    },
    **{
        code: partial(pulls, code)
        for code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
    },
    **{
        code: partial(locks, code)
        for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ)
    },
    RequestCode.CONSUMER_SEND_MSG_BACK: send_backs,
    RequestCode.HEART_BEAT: heartbeats,
    RequestCode.UNREGISTER_CLIENT: plain(
        RequestCode.UNREGISTER_CLIENT,
        {"clientID": "c", "producerGroup": GROUP, "consumerGroup": GROUP},
    ),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: plain(
        RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP}
    ),
    RequestCode.CHECK_CLIENT_CONFIG: check_client,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: plain(
        RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": GROUP}
    ),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: plain(
        RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": GROUP}
    ),
    RequestCode.GET_ALL_PRODUCER_INFO: plain(RequestCode.GET_ALL_PRODUCER_INFO),
    RequestCode.GET_CONSUMER_RUNNING_INFO: running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: direct_consumption,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: member_status,
    RequestCode.QUERY_CONSUMER_OFFSET: plain(
        RequestCode.QUERY_CONSUMER_OFFSET,
        dict(**_QUEUE, consumerGroup=GROUP),
        dict(**_QUEUE, consumerGroup="new"),
    ),
    RequestCode.UPDATE_CONSUMER_OFFSET: plain(
        RequestCode.UPDATE_CONSUMER_OFFSET, dict(**_QUEUE, consumerGroup=GROUP, commitOffset=1)
    ),
    RequestCode.GET_ALL_CONSUMER_OFFSET: plain(RequestCode.GET_ALL_CONSUMER_OFFSET),
    RequestCode.CLONE_GROUP_OFFSET: clones,
    RequestCode.QUERY_CORRECTION_OFFSET: corrections,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: time_searches,
    **{
        code: plain(code, _QUEUE)
        for code in (
            RequestCode.GET_MAX_OFFSET,
            RequestCode.GET_MIN_OFFSET,
            RequestCode.GET_EARLIEST_MSG_STORETIME,
        )
    },
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: resets,
    RequestCode.UPDATE_AND_CREATE_TOPIC: created_topics,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: topic_lists,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: static_mappings,
    RequestCode.DELETE_TOPIC_IN_BROKER: deleted_topics,
    RequestCode.CLEAN_UNUSED_TOPIC: unused_topics,
    RequestCode.GET_TOPIC_CONFIG: plain(RequestCode.GET_TOPIC_CONFIG, {"topic": WIDE}),
    RequestCode.GET_ALL_TOPIC_CONFIG: plain(RequestCode.GET_ALL_TOPIC_CONFIG),
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: plain(
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER
    ),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: one_group,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: group_lists,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: deleted_groups,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: plain(
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": GROUP}
    ),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: plain(
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    ),
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: forbidden,
    RequestCode.GET_ALL_DELAY_OFFSET: plain(RequestCode.GET_ALL_DELAY_OFFSET),
    RequestCode.QUERY_MESSAGE: key_queries,
    RequestCode.VIEW_MESSAGE_BY_ID: lambda servers: [
        frame(RequestCode.VIEW_MESSAGE_BY_ID, offset=servers.last_record),
        frame(RequestCode.VIEW_MESSAGE_BY_ID, offset=servers.last_record + 1),
    ],
    RequestCode.QUERY_CONSUME_QUEUE: queue_entries,
    RequestCode.GET_BROKER_RUNTIME_INFO: plain(RequestCode.GET_BROKER_RUNTIME_INFO),
    RequestCode.VIEW_BROKER_STATS_DATA: plain(
        RequestCode.VIEW_BROKER_STATS_DATA,
        {"statsName": "TOPIC_PUT_NUMS", "statsKey": WIDE},
        {"statsName": "GROUP_GET_NUMS", "statsKey": f"{WIDE}@{GROUP}"},
        {"statsName": "BROKER_PUT_NUMS", "statsKey": "DefaultCluster"},
        {"statsName": "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC", "statsKey": "DefaultCluster"},
    ),
    RequestCode.GET_TOPIC_STATS_INFO: plain(RequestCode.GET_TOPIC_STATS_INFO, {"topic": WIDE}),
    RequestCode.GET_CONSUME_STATS: consume_stats,
    RequestCode.GET_BROKER_CONSUME_STATS: plain(
        RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}, {"isOrder": "true"}
    ),
    RequestCode.QUERY_CONSUME_TIME_SPAN: plain(
        RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": WIDE, "group": GROUP}
    ),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: plain(
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": LONG}
    ),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: plain(
        RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": BUSY_GROUP}
    ),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: plain(
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, {"group": GROUP, "topic": "t1"}
    ),
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: plain(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE),
    RequestCode.DELETE_EXPIRED_COMMITLOG: plain(RequestCode.DELETE_EXPIRED_COMMITLOG),
    RequestCode.END_TRANSACTION: plain(
        RequestCode.END_TRANSACTION,
        {
            "producerGroup": GROUP,
            "tranStateTableOffset": 0,
            "commitLogOffset": 0,
            "commitOrRollback": 8,
            "msgId": "0" * 32,
            "transactionId": "t",
        },
    ),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: plain(
        RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": "0" * 32}
    ),
    RequestCode.REGISTER_FILTER_SERVER: plain(
        RequestCode.REGISTER_FILTER_SERVER, {"filterServerAddr": "127.0.0.1:1"}
    ),
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: plain(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE),
    RequestCode.GET_TIMER_CHECK_POINT: plain(RequestCode.GET_TIMER_CHECK_POINT),
    RequestCode.GET_TIMER_METRICS: plain(RequestCode.GET_TIMER_METRICS),
    RequestCode.LIST_TIMER_MESSAGES: plain(RequestCode.LIST_TIMER_MESSAGES),
    RequestCode.RECALL_MESSAGE: plain(
        RequestCode.RECALL_MESSAGE, {"topic": "T", "recallHandle": "djEgVCBiIDEgSw=="}
    ),
    RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: plain(
        RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, {"topic": LONG, "checkStoreTime": 0}
    ),
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: plain(
        RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON, {"configType": "topics"}
    ),
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: partial(
        cold_limits, RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG
    ),
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: plain(
        RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG
    ),
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: plain(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO),
    RequestCode.SET_COMMITLOG_READ_MODE: plain(
        RequestCode.SET_COMMITLOG_READ_MODE, {"READ_AHEAD_MODE": 0}
    ),
    RequestCode.GET_BROKER_EPOCH_CACHE: plain(RequestCode.GET_BROKER_EPOCH_CACHE),
    RequestCode.RESET_MASTER_FLUSH_OFFSET: plain(
        RequestCode.RESET_MASTER_FLUSH_OFFSET, {"masterFlushOffset": 1}
    ),
    RequestCode.GET_BROKER_HA_STATUS: plain(RequestCode.GET_BROKER_HA_STATUS),
    RequestCode.GET_BROKER_CONFIG: plain(RequestCode.GET_BROKER_CONFIG),
    RequestCode.UPDATE_BROKER_CONFIG: partial(config_changes, RequestCode.UPDATE_BROKER_CONFIG),
}

FRAME_CASES: dict[str, Case] = {}


def frames(case: Case) -> Case:
    FRAME_CASES[case.__name__] = case
    return case


CODES = (RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE, RequestCode.GET_ALL_DELAY_OFFSET, 9)


@frames
def huge_json_headers(_: Servers) -> Frames:
    for code in CODES:
        for size in (400_000, FRAME_MAX):
            yield frame(code, name="x" * size)
            yield raw_frame(b'{"code":%d,"remark":"%s"}' % (code, b"y" * size))


@frames
def json_headers_of_many_fields(_: Servers) -> Frames:
    for code in CODES:
        for count in (900, 20_000, 100_000):
            yield frame(code, **{f"f{n}": n for n in range(count)})
            yield raw_frame(
                b"{'code':%d,'extFields':{%s}}"
                % (code, b",".join(b"'f%d':'1'" % n for n in range(count)))
            )


@frames
def json_headers_of_many_values(_: Servers) -> Frames:
    for code in CODES:
        head = b"{'code':%d,'x':" % code
        yield raw_frame(head + b"[" + b"1," * 200_000 + b"1]}")
        yield raw_frame(head + b"[" * 400_000)
        yield raw_frame(head + b"{'a':" * 99 + b"1" + b"}" * 99 + b"}")
        yield raw_frame(head + b"'" + b"\\x41" * 100_000 + b"'}")
        yield raw_frame(head + b"1" + b" " * 400_000 + b"}")
        yield raw_frame(head + b"1" + b"/**/" * 100_000 + b"}")
        yield raw_frame(head + b"1,'y':" + b"9" * 400_000 + b"}")
        refs = b'{"$ref":"$.y"},' * 20_000
        yield raw_frame(b'{"code":%d,"y":[1,2,3,4,5],"extFields":{"x":[%s1]}}' % (code, refs))


@frames
def binary_headers_of_many_fields(_: Servers) -> Frames:
    for code in CODES:
        for count in (900, 20_000, 100_000):
            yield frame(code, binary=True, **{f"f{n}": n for n in range(count)})
        yield frame(code, binary=True, name="x" * 400_000)


@frames
def many_frames_in_one_read(_: Servers) -> Frames:
    for code in CODES:
        yield b"".join(frame(code) for _ in range(2_000))


@frames
def held_pulls_of_one_queue(servers: Servers) -> Frames:
    yield from held_pulls(servers)


@frames
def a_client_of_many_groups_that_leaves(servers: Servers) -> Frames:
    yield from leavers(servers)


@frames
def resets_that_clients_carry_out(servers: Servers) -> Frames:
    yield from resets_by_clients(servers)


# --- the name server ------------------------------------------------------------------------------


def registrations(names: Names) -> Frames:
    code = RequestCode.REGISTER_BROKER
    version = 0

    def fields(name: str) -> dict[str, object]:
        return {
            "brokerName": name,
            "brokerAddr": f"{name}:1",
            "clusterName": "cluster",
            "haServerAddr": "",
            "brokerId": 0,
        }

    for count in (2_000, 20_000):
        name = names.unused("registered")
        table = {topic_name(n): TopicConfig(topic_name=topic_name(n)) for n in range(count)}
        for _ in range(2):
            version += 1
            wrapper = TopicConfigSerializeWrapper(
                topic_config_table=table, data_version=DataVersion(counter=version)
            )
            body = RegisterBrokerBody(topic_config_serialize_wrapper=wrapper).encode()
            yield frame(code, body, **fields(name))
            yield frame(code, body, **fields(name))
    yield frame(code, odd(body[: len(body) // 4]), **fields(name))
    filters = RegisterBrokerBody(filter_server_list=["127.0.0.1:1"] * 50_000)
    yield frame(code, filters.encode(), **fields(name))
    mapping = {"topic": MANY, "currIdMap": {str(n): n for n in range(100_000)}}
    static = {"topicConfigTable": {}, "topicQueueMappingInfoMap": {MANY: mapping}}
    data = json.dumps({"topicConfigSerializeWrapper": static}).encode()
    yield frame(code, data, **fields(MANY))
    yield frame(code, b"\x78\x9c" + b"\0" * 1_000_000, **fields(name))
    yield frame(code, zlib.compress(b"\0" * 32_000_000), **fields(name))
    yield frame(code, body, **fields("x" * 400_000))
    yield b"".join(frame(code, **fields(f"small-{n}")) for n in range(MANY_REQUESTS))
    yield from with_junk(code, **fields(name))


def unregistrations(names: Names) -> Frames:
    name = names.unused("leaving")
    names.prepare(names.register(name, [topic_name(n) for n in range(TOPICS)]))
    fields: dict[str, object] = {
        "brokerName": name,
        "brokerAddr": f"{name}:1",
        "clusterName": "cluster",
        "brokerId": 0,
    }
    yield frame(RequestCode.UNREGISTER_BROKER, **fields)
    yield from plain(RequestCode.UNREGISTER_BROKER, fields)(names)


def lost_connections(names: Names) -> Frames:
    """The connection of many brokers ends, one of them with very many topics."""
    code = RequestCode.REGISTER_BROKER
    table = {topic_name(n): TopicConfig(topic_name=topic_name(n)) for n in range(TOPICS)}
    wrapper = TopicConfigSerializeWrapper(topic_config_table=table)
    body = RegisterBrokerBody(topic_config_serialize_wrapper=wrapper).encode()
    peer = Peer(names.server.address)
    for n in range(50):
        peer.ask(
            frame(
                code,
                b"" if n else body,
                brokerName=f"lost-{n}",
                brokerAddr=f"lost-{n}:1",
                clusterName="cluster",
                haServerAddr="",
                brokerId=0,
            )
        )
    peer.close()
    while "lost-49" in names.server.registry.groups:
        names.run(asyncio.sleep(0.01))
    yield frame(RequestCode.GET_NAMESRV_CONFIG)


def expiries(names: Names) -> Frames:
    """A broker of very many topics is silent for too long."""
    name = names.unused("silent")
    names.prepare(names.register(name, [topic_name(n) for n in range(TOPICS)]))
    registry = names.server.registry
    names.run(registry.expire(lambda: names.server.core.now_ms() + 90_000_000))
    assert name not in registry.groups
    names.prepare(names.fill())
    yield frame(RequestCode.GET_NAMESRV_CONFIG)


def topic_registrations(_: Names) -> Frames:
    code = RequestCode.REGISTER_TOPIC_IN_NAMESRV
    rows = [QueueData(broker_name=f"broker-{n % BROKERS}") for n in range(30_000)]
    body = TopicRouteData(queue_datas=rows).encode()
    yield frame(code, body, topic="registered-by-a-tool")
    yield frame(code, odd(body[: len(body) // 8]), topic="registered-by-a-tool")
    yield from with_junk(code, topic="registered-by-a-tool")


_VALUE: dict[str, object] = {"namespace": MANY, "key": "key-1"}
_BROKER: dict[str, object] = {
    "brokerName": MANY,
    "brokerAddr": f"{MANY}:1",
    "clusterName": "cluster",
    "brokerId": 0,
}

NAMESRV_CASES: dict[RequestCode, NamesCase] = {
    RequestCode.REGISTER_BROKER: registrations,
    RequestCode.UNREGISTER_BROKER: unregistrations,
    RequestCode.QUERY_DATA_VERSION: plain(RequestCode.QUERY_DATA_VERSION, _BROKER),
    RequestCode.BROKER_HEARTBEAT: plain(RequestCode.BROKER_HEARTBEAT, _BROKER),
    RequestCode.GET_BROKER_MEMBER_GROUP: plain(RequestCode.GET_BROKER_MEMBER_GROUP, _BROKER),
    **{
        code: plain(code, {"brokerName": MANY})
        for code in (
            RequestCode.WIPE_WRITE_PERM_OF_BROKER,
            RequestCode.ADD_WRITE_PERM_OF_BROKER,
        )
    },
    RequestCode.GET_ROUTEINFO_BY_TOPIC: plain(
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        {"topic": topic_name(1)},
        {"topic": "shared"},
        {"topic": "shared", "acceptStandardJsonOnly": "true"},
        {"topic": "shared", "__ZONE_MODE": "true", "__ZONE_NAME": "z"},
    ),
    **{
        code: plain(code)
        for code in (
            RequestCode.GET_BROKER_CLUSTER_INFO,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
            RequestCode.GET_UNIT_TOPIC_LIST,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
            RequestCode.GET_NAMESRV_CONFIG,
        )
    },
    RequestCode.GET_TOPICS_BY_CLUSTER: plain(
        RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "cluster"}
    ),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: plain(
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        {"topic": "shared", "clusterName": "cluster"},
        {"topic": "of-1"},
    ),
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: topic_registrations,
    RequestCode.PUT_KV_CONFIG: plain(RequestCode.PUT_KV_CONFIG, dict(**_VALUE, value="v")),
    RequestCode.GET_KV_CONFIG: plain(RequestCode.GET_KV_CONFIG, _VALUE),
    RequestCode.DELETE_KV_CONFIG: plain(RequestCode.DELETE_KV_CONFIG, _VALUE),
    RequestCode.GET_KVLIST_BY_NAMESPACE: plain(
        RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": MANY}
    ),
    RequestCode.UPDATE_NAMESRV_CONFIG: partial(config_changes, RequestCode.UPDATE_NAMESRV_CONFIG),
}


def many_due_messages(servers: Servers) -> Frames:
    """Very many scheduled messages of two levels are due at once, and some large ones."""
    core = servers.broker.core
    ends = {
        level: end for level, (_, end) in servers.broker.features.delay.delivery.progress().items()
    }

    async def store(count: int, body: bytes) -> None:
        for number in range(count):
            level = 1 + number % 2  # of 1 and 5 seconds
            ends[level] = ends.get(level, 0) + 1
            properties = b"DELAY\x01%d\x02REAL_TOPIC\x01%s\x02REAL_QID\x010\x02" % (
                *(level, LONG.encode()),
            )
            put(core.store, body, topic=DELAY_TOPIC, queue_id=level - 1, properties=properties)

    servers.prepare(store(DUE_MESSAGES, b"x" * 100))
    servers.prepare(store(40, b"x" * LARGE_BYTES))
    while any(
        servers.broker.features.delay.delivery.offsets().get(level, 0) < end
        for level, end in ends.items()
    ):
        servers.run(asyncio.sleep(0.01))
    yield frame(RequestCode.GET_ALL_DELAY_OFFSET)


# --- the tests ------------------------------------------------------------------------------------


def longest_of(servers: M, address: str, case: Callable[[M], Frames]) -> list[str]:
    """The requests of a case during which the loop was busy for too long."""
    took: list[tuple[float, str]] = []
    slow = slowness()
    servers.watch.restart()
    for number, request in enumerate(case(servers)):
        took.append((servers.watch.longest_s, f"before request {number}: {servers.watch.longest}"))
        servers.watch.restart()
        peer = Peer(address)
        peer.ask(request, count_frames(request))
        peer.close()
        servers.run(asyncio.sleep(0))
        what = f"request {number} {request[8:60]!r} of {len(request)} bytes"
        took.append((servers.watch.longest_s, f"{what}: {servers.watch.longest}"))
        servers.watch.restart()
    limit_s = LIMIT_S * max(slow, slowness())
    return [f"{s * 1000:.1f} ms {what}" for s, what in took if s > limit_s]


def count_frames(data: bytes) -> int:
    count = at = 0
    while at < len(data):
        at += 4 + int.from_bytes(data[at : at + 4])
        count += 1
    return count


def check(servers: M, address: str, case: Callable[[M], Frames]) -> None:
    for _ in range(ATTEMPTS):
        slow = longest_of(servers, address, case)
        if not slow:
            return
    pytest.fail("\n".join(slow), pytrace=False)


def hostile(code: RequestCode) -> Callable[[Measured], Frames]:
    """Requests with a long text in place of each field that their header has."""
    header = header_class(code, is_response=False)
    fields = () if header is None else msgspec.structs.fields(header)
    return plain(code, {field.encode_name: "1" for field in fields})


STATED = {
    RequestCode(code)
    for place, rights in tables_of_rights().items()
    for code in rights
    if place != unserved.__name__
}
"""Every request that some broker serves."""
BROKER_CASES |= {code: hostile(code) for code in STATED - BROKER_CASES.keys()}
NAMESRV_CASES |= {
    RequestCode(code): hostile(RequestCode(code)) for code in NEEDS.codes - NAMESRV_CASES.keys()
}


@pytest.mark.parametrize("case", FRAME_CASES)
def test_no_frame_keeps_the_loop_of_a_broker_busy(servers: Servers, case: str) -> None:
    check(servers, servers.broker.address, FRAME_CASES[case])


@pytest.mark.parametrize("code", sorted(BROKER_CASES), ids=lambda code: code.name)
def test_no_request_keeps_the_loop_of_a_broker_busy(servers: Servers, code: RequestCode) -> None:
    check(servers, servers.broker.address, BROKER_CASES[code])


@pytest.mark.parametrize("code", sorted(NAMESRV_CASES), ids=lambda code: code.name)
def test_no_request_keeps_the_loop_of_a_name_server_busy(names: Names, code: RequestCode) -> None:
    check(names, names.server.address, NAMESRV_CASES[code])


@pytest.mark.parametrize("case", [lost_connections, expiries])
def test_no_removal_of_brokers_keeps_the_loop_of_a_name_server_busy(
    names: Names, case: NamesCase
) -> None:
    check(names, names.server.address, case)


def test_no_delivery_of_scheduled_messages_keeps_the_loop_of_a_broker_busy(
    servers: Servers,
) -> None:
    check(servers, servers.broker.address, many_due_messages)


def test_every_request_code_has_hostile_requests(servers: Servers, names: Names) -> None:
    of_some_brokers = {
        RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE,
        RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
    }
    served = set(servers.broker.listening.servers[0]._handlers)
    assert served | of_some_brokers == set(BROKER_CASES)
    assert set(names.server._server._handlers) == set(NAMESRV_CASES)


def test_the_stopwatch_sees_a_loop_that_is_kept_busy(names: Names) -> None:
    async def hog() -> None:
        end_s = time.thread_time() + 2 * LIMIT_S * slowness()
        while time.thread_time() < end_s:
            pass

    def case(_: Names) -> Frames:
        names.run(hog())
        yield frame(RequestCode.GET_NAMESRV_CONFIG)

    assert longest_of(names, names.server.address, case)


def test_a_request_with_too_long_a_header_ends_the_connection(servers: Servers) -> None:
    peer = Peer(servers.broker.address)
    peer.send(frame(RequestCode.GET_ALL_DELAY_OFFSET, name="x" * 500_000))
    peer.responses()
    peer.send(frame(RequestCode.GET_ALL_DELAY_OFFSET, name="x" * 530_000)[:8])
    with pytest.raises(ConnectionError):
        peer.next_header()
    peer.close()
