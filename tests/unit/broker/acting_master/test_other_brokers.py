"""The messages that a slave sends to other brokers while it acts as the master."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.acting_master.half_messages import send_undecided
from cometmq.broker.acting_master.member_query import broker_set_addresses
from cometmq.broker.acting_master.other_brokers import OtherBrokers
from cometmq.broker.cold_reads import ColdReads
from cometmq.broker.transactions.half_message import HalfMessage, half_properties
from cometmq.broker.transactions.half_queue import GROUP, HalfQueue
from cometmq.model.errors import CometError, ResponseError
from cometmq.model.flags import SysFlag
from cometmq.model.topic import HALF_TOPIC
from cometmq.protocol.bodies.route import (
    BrokerData,
    BrokerMemberGroup,
    GetBrokerMemberGroupResponseBody,
    QueueData,
    TopicRouteData,
)
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.namesrv import GetBrokerMemberGroupRequest, GetRouteinfoByTopicRequest
from cometmq.protocol.headers.send import SendMessageResponse, SendMessageV2Request
from cometmq.protocol.properties import decode_properties, encode_properties
from cometmq.protocol.record import RecordParts, encode_host
from cometmq.remoting import RemotingClient, RemotingServer, Request, Response
from support.brokers.timers import timer_routing
from support.stores.small_stores import put
from unit.broker.conftest import Tables, open_store

HEADER = GetBrokerMemberGroupRequest(cluster_name="c", broker_name="pair")
HOST = encode_host("10.0.0.9", 1)
READ_WRITE, READ = 6, 4


class Peers:
    """Name servers and brokers that a test scripts."""

    def __init__(self) -> None:
        self.client = RemotingClient(name="test")
        self.sends: list[tuple[str, SendMessageV2Request, bytes]] = []
        self.refusals: dict[str, int] = {}
        self.brokers: dict[str, str] = {}
        self.perms: dict[str, int] = {}
        self._servers: list[RemotingServer] = []

    async def serve(self, handlers: dict[int, Any]) -> str:
        server = RemotingServer(handlers, name="peer")
        await server.start("127.0.0.1", 0)
        self._servers.append(server)
        return f"127.0.0.1:{server.port}"

    async def name_server(self, members: dict[int, str] | None = None) -> str:
        def found(request: Request) -> Response:
            assert request.header(GetBrokerMemberGroupRequest) == HEADER
            group = BrokerMemberGroup(cluster="c", broker_name="pair", broker_addrs=members or {})
            return Response(
                body=GetBrokerMemberGroupResponseBody(broker_member_group=group).encode()
            )

        def route(request: Request) -> Response:
            if request.header(GetRouteinfoByTopicRequest).topic == "unknown":
                return Response(ResponseCode.TOPIC_NOT_EXIST, "no route")
            return Response(
                body=TopicRouteData(
                    queue_datas=[
                        QueueData(
                            broker_name=name,
                            read_queue_nums=2,
                            write_queue_nums=2,
                            perm=self.perms.get(name, READ_WRITE),
                        )
                        for name in self.brokers
                    ],
                    broker_datas=[
                        BrokerData(cluster="c", broker_name=name, broker_addrs={0: address})
                        for name, address in self.brokers.items()
                    ],
                ).encode()
            )

        return await self.serve(
            {
                RequestCode.GET_BROKER_MEMBER_GROUP: found,
                RequestCode.GET_ROUTEINFO_BY_TOPIC: route,
            }
        )

    async def broker(self, name: str, *, perm: int = READ_WRITE, refusal: int = 0) -> None:
        def take(request: Request) -> Response:
            if refusal:
                return Response(refusal, "refused")
            self.sends.append((name, request.header(SendMessageV2Request), request.body))
            return Response(header=SendMessageResponse(msg_id="id", queue_id=0, queue_offset=0))

        self.brokers[name] = await self.serve({RequestCode.SEND_MESSAGE_V2: take})
        self.perms[name] = perm

    async def close(self) -> None:
        await self.client.close()
        for server in self._servers:
            await server.stop(0.1)


@pytest.fixture
async def peers() -> AsyncIterator[Peers]:
    made = Peers()
    yield made
    await made.close()


async def others(peers: Peers) -> OtherBrokers:
    name_server = await peers.name_server()
    return OtherBrokers(
        peers.client, lambda: [name_server], broker_name="pair", group="InnerProducerGroup_pair_1"
    )


def record(topic: str, properties: dict[str, str], **more: Any) -> RecordParts:
    values: dict[str, Any] = {
        "topic": topic,
        "body": b"body",
        "properties": encode_properties(properties),
        "queue_id": 0,
        "queue_offset": 5,
        "log_offset": 500,
        "flag": 7,
        "sys_flag": SysFlag.COMPRESSED | SysFlag.BORN_HOST_V6,
        "born_time_ms": 11,
        "born_host": HOST,
        "store_time_ms": 12,
        "store_host": HOST,
        "reconsume_times": 0,
        "prepared_offset": 0,
        "body_crc": 0,
        "size_bytes": 100,
    }
    return RecordParts(**values | more)


# --- members -------------------------------------------------------------------------------------


async def test_a_master_that_one_name_server_has_is_there(peers: Peers) -> None:
    first = await peers.name_server({1: "slave:1"})
    second = await peers.name_server({0: "master:1", 1: "slave:1"})

    found = await broker_set_addresses(peers.client, [first, second], HEADER)
    assert found == {0: "master:1", 1: "slave:1"}


async def test_a_name_server_without_a_response_does_not_count(peers: Peers) -> None:
    silent, first = await peers.serve({}), await peers.name_server({1: "slave:1"})

    assert await broker_set_addresses(peers.client, [silent, first], HEADER) == {1: "slave:1"}
    with pytest.raises(CometError):
        await broker_set_addresses(peers.client, [silent], HEADER)
    with pytest.raises(CometError, match="no name server"):
        await broker_set_addresses(peers.client, [], HEADER)


# --- what is sent ---------------------------------------------------------------------------------


async def test_a_scheduled_message_is_sent_as_its_producer_sent_it(peers: Peers) -> None:
    sender = await others(peers)
    await peers.broker("other")
    properties = {
        "DELAY": "3",
        "REAL_TOPIC": "T",
        "REAL_QID": "1",
        "KEYS": "k",
        "TRAN_MSG": "true",
        "PGROUP": "shop",
        "CLUSTER": "c",
        "MSG_REGION": "r",
        "TRACE_ON": "true",
        "WAIT": "false",
    }
    committed = SysFlag.COMPRESSED | SysFlag.TRANSACTION_COMMIT
    await sender.send_scheduled("T", record("SCHEDULE_TOPIC_XXXX", properties, sys_flag=committed))

    [(name, header, body)] = peers.sends
    assert (name, body) == ("other", b"body")
    assert decode_properties(header.properties or "") == {
        "REAL_TOPIC": "T",
        "REAL_QID": "1",
        "KEYS": "k",
        "PGROUP": "shop",
    }
    assert header.topic == "T"
    assert header.producer_group == "shop"
    assert header.sys_flag == SysFlag.COMPRESSED
    assert (header.flag, header.born_timestamp, header.reconsume_times) == (7, 11, 0)
    assert header.max_reconsume_times is None
    assert header.queue_id in (0, 1)


async def test_a_retry_is_not_counted_again(peers: Peers) -> None:
    sender = await others(peers)
    await peers.broker("other")
    await sender.send_scheduled("%RETRY%G", record("SCHEDULE_TOPIC_XXXX", {}, reconsume_times=16))

    [(_, header, _)] = peers.sends
    assert (header.reconsume_times, header.max_reconsume_times) == (16, 17)
    assert header.producer_group == "InnerProducerGroup_pair_1"


async def test_a_half_message_stays_one(peers: Peers) -> None:
    sender = await others(peers)
    await peers.broker("other")
    properties = half_properties("T", 1, {"UNIQ_KEY": "u", "PGROUP": "shop", "TRAN_MSG": "true"})
    properties |= {"TRANSACTION_CHECK_TIMES": "3", "TRAN_PREPARED_QUEUE_OFFSET": "1"}
    await sender.send_half(HalfMessage(record(HALF_TOPIC, properties)))

    [(_, header, _)] = peers.sends
    assert decode_properties(header.properties or "") == {
        "UNIQ_KEY": "u",
        "PGROUP": "shop",
        "TRAN_MSG": "true",
        "__transactionId__": "u",
    }
    assert header.topic == "T"
    assert header.producer_group == "shop"
    assert header.sys_flag == SysFlag.COMPRESSED | SysFlag.TRANSACTION_PREPARED


async def test_only_other_brokers_that_can_be_written_get_messages(peers: Peers) -> None:
    sender = await others(peers)
    await peers.broker("pair")
    await peers.broker("read-only", perm=READ)
    with pytest.raises(CometError, match="no other broker"):
        await sender.send_scheduled("T", record("SCHEDULE_TOPIC_XXXX", {}))
    with pytest.raises(CometError, match="no other broker"):
        await sender.send_scheduled("unknown", record("SCHEDULE_TOPIC_XXXX", {}))
    assert peers.sends == []

    await peers.broker("other")
    await sender.send_scheduled("T", record("SCHEDULE_TOPIC_XXXX", {}))
    assert [name for name, _, _ in peers.sends] == ["other"]


async def test_a_broker_that_refuses_or_is_gone_is_passed_over(peers: Peers) -> None:
    sender = await others(peers)
    await peers.broker("full", refusal=ResponseCode.SYSTEM_BUSY)
    with pytest.raises(ResponseError, match="refused"):
        await sender.send_scheduled("T", record("SCHEDULE_TOPIC_XXXX", {}))
    peers.brokers["gone"] = "127.0.0.1:1"
    await peers.broker("other")

    for _ in range(3):
        await sender.send_scheduled("T", record("SCHEDULE_TOPIC_XXXX", {}))
    assert [name for name, _, _ in peers.sends] == ["other"] * 3


async def test_a_message_that_is_stored_but_not_replicated_is_sent(peers: Peers) -> None:
    sender = await others(peers)
    await peers.broker("alone", refusal=ResponseCode.SLAVE_NOT_AVAILABLE)

    await sender.send_scheduled("T", record("SCHEDULE_TOPIC_XXXX", {}))


# --- half messages --------------------------------------------------------------------------------


async def test_half_messages_are_sent_up_to_the_first_that_no_broker_takes(
    tmp_path: Path, tables: Tables
) -> None:
    store = open_store(tmp_path / "store", tables)
    halves = HalfQueue(
        store,
        tables.offsets,
        timer_routing(tables.clock, "1s"),
        clock=tables.clock,
        cold_reads=ColdReads(),
    )
    for number in range(4):
        properties = half_properties("T", 0, {"UNIQ_KEY": f"u{number}", "PGROUP": "shop"})
        put(store, b"%d" % number, topic=HALF_TOPIC, properties=properties)
    written_to = store.written_to
    sent: list[bytes] = []

    async def send(half: HalfMessage) -> None:
        if half.record.body == b"2" and len(sent) == 2:
            raise CometError("no other broker")
        sent.append(half.record.body)

    await send_undecided(halves, send, lambda: False)
    assert sent == [b"0", b"1"]
    assert tables.offsets.committed(GROUP, HALF_TOPIC, 0) == 2
    sent.append(b"other")
    await send_undecided(halves, send, lambda: False)
    assert sent == [b"0", b"1", b"other", b"2", b"3"]
    assert tables.offsets.committed(GROUP, HALF_TOPIC, 0) == 4
    assert store.written_to == written_to
    store.close()
