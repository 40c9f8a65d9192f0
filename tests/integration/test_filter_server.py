"""Class filters from end to end: a broker, filter servers, and consumers that upload filters."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cometmq.client import (
    Filter,
    Message,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
    StartFrom,
    StoredMessage,
)
from cometmq.filtersrv import handler as handler_module
from cometmq.filtersrv.app import SETTINGS, FilterServer
from cometmq.filtersrv.config import FilterServerSettings
from cometmq.filtersrv.filters import CLIENT_UPLOADS_MAX, UPLOADS_MAX
from cometmq.filtersrv.handler import DECODED_BYTES_MAX
from cometmq.filtersrv.sandboxed import refusal
from cometmq.model.errors import ConfigError
from cometmq.model.flags import SysFlag, pull_sys_flag
from cometmq.protocol.bodies.route import TopicRouteData
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers.consumer import (
    RegisterFilterServerRequest,
    RegisterFilterServerResponse,
    RegisterMessageFilterClassRequest,
)
from cometmq.protocol.headers.namesrv import GetRouteinfoByTopicRequest
from cometmq.protocol.headers.pull import PullMessageRequest, PullMessageResponse
from cometmq.protocol.headers.send import SendMessageRequest
from cometmq.protocol.record import decode_messages
from cometmq.remoting import RemotingClient, check
from cometmq.system.configuration import load
from cometmq.system.rocketmq_keys import FILTERSRV_KEYS
from cometmq.testing import Cluster
from support.checks.waiting import until
from support.wire.request_headers import send_header

pytestmark = pytest.mark.skipif(refusal() is not None, reason=refusal() or "")

WAIT_S = 60.0
TOPIC, GROUP = "orders", "billing"
LARGE = 9_000
SOURCE = """
class Dear:
    def match(self, message, context):
        if message.body == b"odd one":
            raise ValueError("an odd one")
        return int(message.properties["price"]) > 5 and context.consumer_group == "billing"
"""
DEAR = Filter.of_class("shop.Dear", SOURCE)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster() as running:
        yield running


@contextlib.asynccontextmanager
async def filter_server(cluster: Cluster, **settings: str) -> AsyncIterator[FilterServer]:
    values = {
        "connectWhichBroker": cluster.broker_addresses[0],
        "clientUploadFilterClassEnable": "true",
        "filterClassTimeoutMills": "60000",  # a busy machine may take seconds for a pull
        **settings,
    }
    server = FilterServer(load(SETTINGS, known_keys=FILTERSRV_KEYS, command_line=values))
    await server.start()
    try:
        yield server
    finally:
        await server.stop(0.1)


@pytest.fixture
async def server(cluster: Cluster) -> AsyncIterator[FilterServer]:
    async with filter_server(cluster) as running:
        yield running


@pytest.fixture
async def raw() -> AsyncIterator[RemotingClient]:
    client = RemotingClient(name="raw")
    yield client
    await client.close()


async def send(cluster: Cluster, prices: range, body: bytes = b"an order") -> None:
    async with Producer(cluster.name_servers, group="shop") as producer:
        for price in prices:
            await producer.send(Message(topic=TOPIC, body=body, properties={"price": str(price)}))


async def create_topic(cluster: Cluster) -> None:
    await cluster.brokers[0].core.topics.put([topic_config()])


def topic_config() -> Any:
    from cometmq.model.topic import TopicConfig

    return TopicConfig(topic_name=TOPIC, read_queue_nums=1, write_queue_nums=1, perm=6)


async def servers_in_route(cluster: Cluster, raw: RemotingClient) -> list[str]:
    header = GetRouteinfoByTopicRequest(topic=TOPIC)
    code = RequestCode.GET_ROUTEINFO_BY_TOPIC
    response = await raw.call(cluster.name_servers, code, header, timeout=WAIT_S)
    table = TopicRouteData.decode(check(response).body).filter_server_table
    assert set(table) <= set(cluster.broker_addresses)
    return [server for servers in table.values() for server in servers or ()]


async def until_route_names(cluster: Cluster, raw: RemotingClient, *addresses: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while sorted(await servers_in_route(cluster, raw)) != sorted(addresses):
            await asyncio.sleep(0.02)


async def test_routes_name_the_filter_servers_that_run(
    cluster: Cluster, raw: RemotingClient
) -> None:
    await create_topic(cluster)
    async with filter_server(cluster) as first:
        async with filter_server(cluster) as second:
            await until_route_names(cluster, raw, first.address, second.address)
        await until_route_names(cluster, raw, first.address)
    await until_route_names(cluster, raw)


async def test_a_filter_server_registers_again_when_its_broker_was_restarted(
    cluster: Cluster, server: FilterServer
) -> None:
    servers = cluster.brokers[0].features.filter_servers.servers
    await until(lambda: servers.addresses() == (server.address,))
    server._client.disconnect(cluster.broker_addresses[0])
    await until(lambda: servers.addresses() == ())
    await until(lambda: servers.addresses() == (server.address,))


@pytest.mark.both_loops
async def test_a_push_consumer_receives_what_its_class_matches(
    cluster: Cluster, server: FilterServer
) -> None:
    await create_topic(cluster)
    received: list[str] = []

    async def handle(message: StoredMessage) -> None:
        received.append(message.properties["price"])

    await send(cluster, range(5))
    async with PushConsumer(
        cluster.name_servers,
        group=GROUP,
        handler=handle,
        subscriptions={TOPIC: DEAR},
        start_from=StartFrom.FIRST,
    ) as consumer:
        await consumer.ready()
        assert len(server.filters) == 1, "the filter is uploaded at the start"
        await send(cluster, range(5, 10))
        await until(lambda: sorted(received) == ["6", "7", "8", "9"])
    offsets = cluster.brokers[0].core.offsets
    assert offsets.committed(GROUP, TOPIC, 0) == 10


@pytest.mark.parametrize("is_member", [True, False])
async def test_a_pull_consumer_receives_what_its_class_matches(
    cluster: Cluster, server: FilterServer, is_member: bool
) -> None:
    await create_topic(cluster)
    await send(cluster, range(10))
    async with PullConsumer(
        cluster.name_servers, group=GROUP, start_from=StartFrom.FIRST
    ) as consumer:
        if is_member:
            await consumer.subscribe(TOPIC, DEAR)
        else:
            await consumer.assign(await consumer.fetch_queues(TOPIC), filter=DEAR)
        prices: list[str] = []
        async with asyncio.timeout(WAIT_S):
            while len(prices) < 4:
                prices += [each.properties["price"] for each in await consumer.poll(timeout=1.0)]

    assert prices == ["6", "7", "8", "9"]


@pytest.mark.both_loops
async def test_a_filter_is_uploaded_again_to_a_server_that_lost_it(
    cluster: Cluster, server: FilterServer
) -> None:
    await create_topic(cluster)
    await send(cluster, range(10))
    async with PullConsumer(cluster.name_servers, group=GROUP) as consumer:
        (queue,) = await consumer.fetch_queues(TOPIC)
        assert len((await consumer.pull(queue, 0, filter=DEAR)).messages) == 4
        await server.filters.close()
        pulls = (consumer.pull(queue, 0, filter=DEAR) for _ in range(UPLOADS_MAX + 10))
        for result in await asyncio.gather(*pulls):  # more than the server lets wait for a load
            assert len(result.messages) == 4


async def test_pulls_go_on_through_the_filter_server_that_is_left(
    cluster: Cluster, raw: RemotingClient
) -> None:
    await create_topic(cluster)
    await send(cluster, range(10))
    async with (
        filter_server(cluster) as left,
        PullConsumer(cluster.name_servers, group=GROUP) as consumer,
    ):
        async with filter_server(cluster) as other:
            await until_route_names(cluster, raw, left.address, other.address)
            (queue,) = await consumer.fetch_queues(TOPIC)
            await until_both_serve(consumer, queue, left, other)
        for _ in range(10):  # the route still names both
            assert len((await consumer.pull(queue, 0, filter=DEAR)).messages) == 4


async def until_both_serve(consumer: PullConsumer, queue: Any, *servers: FilterServer) -> None:
    async with asyncio.timeout(WAIT_S):
        while not all(len(server.filters) for server in servers):
            await consumer.pull(queue, 0, filter=DEAR)


async def test_without_a_filter_server_pulls_fail_until_one_starts(cluster: Cluster) -> None:
    await create_topic(cluster)
    await send(cluster, range(10))
    received: list[StoredMessage] = []
    async with PushConsumer(
        cluster.name_servers,
        group=GROUP,
        handler=received.append,
        subscriptions={TOPIC: DEAR},
        start_from=StartFrom.FIRST,
        retry_ms=50,
    ):
        await asyncio.sleep(0.2)
        assert received == []
        async with filter_server(cluster):
            await until(lambda: len(received) == 4)


@pytest.mark.parametrize(
    ("settings", "wanted", "reason"),
    [
        ({}, Filter.of_class("Dear", "class Dear: ("), "SyntaxError"),
        ({}, Filter.of_class("Cheap", SOURCE), "defines no class Cheap"),
        ({"clientUploadFilterClassEnable": "false"}, DEAR, "clientUploadFilterClassEnable"),
        ({"filterClassSourceSizeMax": "10"}, DEAR, "expected at most 10"),
    ],
    ids=["syntax", "class", "disabled", "size"],
)
async def test_a_refused_filter_fails_the_start(
    cluster: Cluster, raw: RemotingClient, settings: dict[str, str], wanted: Filter, reason: str
) -> None:
    await create_topic(cluster)
    async with filter_server(cluster, **settings) as server:
        await until_route_names(cluster, raw, server.address)
        consumer = PushConsumer(
            cluster.name_servers,
            group=GROUP,
            handler=print,
            subscriptions={TOPIC: wanted},
        )
        with pytest.raises(ConfigError, match=reason):
            await consumer.start()


@pytest.mark.parametrize("kind", [PopConsumer, SimpleConsumer])
async def test_consumers_of_single_messages_refuse_class_filters(kind: Any) -> None:
    handler = {"handler": print} if kind is PopConsumer else {}
    with pytest.raises(ConfigError, match="filter servers serve PushConsumer and PullConsumer"):
        kind("127.0.0.1:1", group=GROUP, subscriptions={TOPIC: DEAR}, **handler)


@pytest.mark.parametrize("broker", ["127.0.0.1", "", "127.0.0.1:10911;127.0.0.1:10912", "a:b"])
def test_an_address_of_no_broker_is_refused(broker: str) -> None:
    with pytest.raises(ConfigError, match=f"connectWhichBroker={broker}: expected host:port"):
        FilterServerSettings(connect_which_broker=broker)


@pytest.mark.both_loops
async def test_a_system_without_a_sandbox_is_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(ConfigError, match="need Linux with seccomp, this system is darwin"):
        async with filter_server(cluster):
            pass
    async with filter_server(cluster, clientUploadFilterClassEnable="false"):
        pass


# --- requests -----------------------------------------------------------------------------------


async def upload(
    raw: RemotingClient, server: FilterServer, text: str = SOURCE, **changes: Any
) -> Command:
    facts: dict[str, Any] = {
        "consumer_group": GROUP,
        "topic": TOPIC,
        "class_name": "shop.Dear",
        "class_crc": zlib.crc32(text.encode()) & 0x7FFFFFFF,
    }
    header = RegisterMessageFilterClassRequest(**(facts | changes))
    code = RequestCode.REGISTER_MESSAGE_FILTER_CLASS
    return await raw.call(server.address, code, header, text.encode(), timeout=WAIT_S)


async def pull(raw: RemotingClient, server: FilterServer, offset: int, **changes: Any) -> Command:
    facts: dict[str, Any] = {
        "consumer_group": GROUP,
        "topic": TOPIC,
        "queue_id": 0,
        "queue_offset": offset,
        "max_msg_nums": 32,
        "sys_flag": pull_sys_flag(class_filter=True),
        "commit_offset": 0,
        "suspend_timeout_millis": 0,
        "sub_version": 0,
    }
    header = PullMessageRequest(**(facts | changes))
    return await raw.call(server.address, RequestCode.PULL_MESSAGE, header, timeout=WAIT_S)


async def test_one_client_leaves_places_to_others(cluster: Cluster, raw: RemotingClient) -> None:
    await create_topic(cluster)
    held = {
        "sys_flag": pull_sys_flag(suspend=True, class_filter=True),
        "suspend_timeout_millis": 15_000,
    }
    other = RemotingClient(name="other")
    async with filter_server(cluster, fsServerAsyncSemaphoreValue="4") as server:
        assert (await upload(raw, server)).code == 0
        pulls = {asyncio.create_task(pull(raw, server, 0, **held)) for _ in range(3)}
        done, pulls = await asyncio.wait(pulls, return_when=asyncio.FIRST_COMPLETED)
        refused = done.pop().result()
        assert refused.code == 2
        assert refused.remark == "[OVERLOAD]2 pulls are in progress already, 2 of this client"
        assert (await pull(other, server, 0)).code == 19
        await send(cluster, range(9, 10))
        assert [(await each).code for each in pulls] == [0, 0]
        assert (await pull(raw, server, 0)).code == 0
    await other.close()


async def test_pulls_have_the_codes_and_texts_of_rocketmq(
    cluster: Cluster, server: FilterServer, raw: RemotingClient
) -> None:
    await create_topic(cluster)
    await send(cluster, range(10))

    refused = await pull(raw, server, 0)
    assert (refused.code, refused.remark) == (1, "Find Filter class failed, not registered")
    assert (await upload(raw, server)).code == 0

    found = await pull(raw, server, 0)
    header = found.header(PullMessageResponse)
    assert found.code == 0
    assert [m.queue_offset for m in decode_messages(found.body)] == [6, 7, 8, 9]
    assert (header.next_begin_offset, header.min_offset, header.max_offset) == (10, 0, 10)
    assert header.suggest_which_broker_id == 0

    none = await pull(raw, server, 0, max_msg_nums=3)
    assert (none.code, none.body) == (20, b"")
    assert none.header(PullMessageResponse).next_begin_offset == 3
    assert (await pull(raw, server, 10)).code == 19
    moved = await pull(raw, server, 50)
    assert (moved.code, moved.header(PullMessageResponse).next_begin_offset) == (21, 10)

    await send(cluster, range(1), body=b"odd one")
    failed = await pull(raw, server, 8)
    assert failed.code == 1
    assert failed.remark == (
        f"do Message Filter Exception, ConsumerGroup: {GROUP} Topic: {TOPIC} ValueError: an odd one"
        " (<filter>, line 5)"
    )
    unknown = await pull(raw, server, 0, queue_id=77)
    assert unknown.code == 1
    assert (unknown.remark or "").startswith("Pull Callback Exception, CODE: ")


async def test_a_pull_is_held_until_a_message_arrives(
    cluster: Cluster, server: FilterServer, raw: RemotingClient
) -> None:
    await create_topic(cluster)
    await upload(raw, server)
    held = asyncio.ensure_future(
        pull(
            raw,
            server,
            0,
            sys_flag=pull_sys_flag(suspend=True, class_filter=True),
            suspend_timeout_millis=15_000,
        )
    )
    await until(lambda: len(cluster.brokers[0].features.pulling.held) == 1)
    await send(cluster, range(7, 8))

    assert len(decode_messages((await held).body)) == 1


@pytest.mark.both_loops
async def test_large_bodies_are_compressed(
    cluster: Cluster, server: FilterServer, raw: RemotingClient
) -> None:
    await create_topic(cluster)
    async with Producer(cluster.name_servers, group="shop", compress_from_bytes=2**30) as producer:
        for size in (LARGE, 100):
            body = bytes(size)
            await producer.send(Message(topic=TOPIC, body=body, properties={"price": "8"}))
    await upload(raw, server)

    found = await pull(raw, server, 0)

    assert len(found.body) < 1_000
    raw_messages = decode_messages(found.body, decompress=False)
    assert [m.sys_flag & SysFlag.COMPRESSED for m in raw_messages] == [1, 0]
    assert [len(m.body) for m in decode_messages(found.body)] == [LARGE, 100]
    assert raw_messages[0].body_crc == zlib.crc32(raw_messages[0].body) & 0x7FFFFFFF


async def send_compressed(cluster: Cluster, raw: RemotingClient, body: bytes) -> None:
    fields = {"sys_flag": int(SysFlag.COMPRESSED), "properties": "price\x018\x02"}
    header = send_header(SendMessageRequest, topic=TOPIC, **fields)
    address = cluster.brokers[0].address
    check(await raw.call(address, RequestCode.SEND_MESSAGE, header, body, timeout=WAIT_S))


async def test_a_body_that_cannot_be_decompressed_stops_no_group(
    cluster: Cluster, server: FilterServer, raw: RemotingClient
) -> None:
    """Filters and clients get it as it is, as clients of a broker do."""
    await create_topic(cluster)
    await send_compressed(cluster, raw, b"no zlib")
    await send_compressed(cluster, raw, zlib.compress(b"an order"))
    await upload(raw, server)

    found = await pull(raw, server, 0)

    messages = decode_messages(found.body, decompress=False)
    assert [m.body for m in messages] == [b"no zlib", zlib.compress(b"an order")]
    assert all(m.sys_flag & SysFlag.COMPRESSED for m in messages)


async def test_bodies_that_are_too_large_together_are_returned_by_several_pulls(
    cluster: Cluster, server: FilterServer, raw: RemotingClient
) -> None:
    await create_topic(cluster)
    body = await asyncio.to_thread(zlib.compress, bytes(DECODED_BYTES_MAX // 2 + 1))
    for _ in range(3):
        await send_compressed(cluster, raw, body)
    await upload(raw, server)

    offset, found = 0, []
    while offset < 3:
        response = await pull(raw, server, offset)
        assert response.code == 0, response.remark
        offset = response.header(PullMessageResponse).next_begin_offset
        found.append([m.queue_offset for m in decode_messages(response.body)])

    assert found == [[0], [1], [2]]


async def test_an_upload_with_another_checksum_is_refused(
    server: FilterServer, raw: RemotingClient
) -> None:
    refused = await upload(raw, server, class_crc=7)
    assert refused.code == 1
    assert "classCRC 7, expected" in (refused.remark or "")
    assert len(server.filters) == 0
    assert (await upload(raw, server, class_crc=0)).code == 0


@pytest.mark.both_loops
async def test_the_same_source_keeps_its_process_and_another_replaces_it(
    server: FilterServer, raw: RemotingClient
) -> None:
    await upload(raw, server)
    first = server.filters.find(TOPIC, GROUP)
    await upload(raw, server)
    assert server.filters.find(TOPIC, GROUP) is first
    assert (await upload(raw, server, "class Dear: (")).code == 1
    assert server.filters.find(TOPIC, GROUP) is first
    await upload(raw, server, SOURCE + "# changed")

    assert server.filters.find(TOPIC, GROUP) is not first
    assert first is not None
    assert first.pid is None


async def test_the_filter_that_was_not_used_for_the_longest_time_is_removed(
    cluster: Cluster, raw: RemotingClient
) -> None:
    async with filter_server(cluster, filterClassNumsMax="2") as server, client() as other:
        await upload(raw, server, consumer_group="a")
        await upload(other, server, consumer_group="b")
        async with client() as third:
            server.filters.find(TOPIC, "a")
            await upload(third, server, consumer_group="c")

        kept = [group for group in "abc" if server.filters.find(TOPIC, group)]

    assert kept == ["a", "c"]


# --- many clients -------------------------------------------------------------------------------

SLOW_FIRST = """
import time
class Dear:
    messages = 0
    def match(self, message, context):
        Dear.messages += 1
        if Dear.messages == 1:
            time.sleep(1.4)
        return Dear.messages > 3
"""
"""The first message takes more than a second; the fourth one and all later ones match."""
SLOW_LOAD = "import time\ntime.sleep(2.0)\n" + SOURCE


@contextlib.asynccontextmanager
async def client() -> AsyncIterator[RemotingClient]:
    made = RemotingClient(name="client")
    try:
        yield made
    finally:
        await made.close()


async def waiting_pulls(
    raw: RemotingClient, server: FilterServer, count: int, **changes: Any
) -> list[asyncio.Future[Command]]:
    """Return pulls of which the first is matched and the others wait."""
    worker = server.filters.find(TOPIC, GROUP)
    assert worker is not None
    before = worker._waiting
    pulls = [asyncio.ensure_future(pull(raw, server, 0, **changes)) for _ in range(count)]
    await until(lambda: worker._waiting == before + count)
    return pulls


def stored_messages() -> int:
    return sum(isinstance(each, StoredMessage) for each in gc.get_objects())


async def test_pulls_that_wait_for_a_filter_are_not_decoded_yet(
    cluster: Cluster, server: FilterServer, raw: RemotingClient
) -> None:
    await create_topic(cluster)
    await send(cluster, range(10))
    await upload(raw, server, SLOW_FIRST)
    before = stored_messages()
    pulls = await waiting_pulls(raw, server, 6)
    assert 0 < stored_messages() - before <= 10
    found = [len(decode_messages(each.body)) for each in await asyncio.gather(*pulls)]
    assert found == [7, 10, 10, 10, 10, 10]


async def test_what_waits_for_filters_has_a_limit(
    cluster: Cluster,
    server: FilterServer,
    raw: RemotingClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await create_topic(cluster)
    await send(cluster, range(5))
    await upload(raw, server, SLOW_FIRST)
    monkeypatch.setattr(handler_module, "WAITING_BYTES_MAX", 1)
    (first,) = await waiting_pulls(raw, server, 1)

    refused = await pull(raw, server, 0)

    assert (refused.code, refused.remark) == (2, "[OVERLOAD]1 bytes wait for filters already")
    assert len(decode_messages((await first).body)) == 2
    assert len(decode_messages((await pull(raw, server, 0)).body)) == 5


@pytest.mark.both_loops
async def test_pulls_of_clients_that_have_gone_are_not_matched(
    cluster: Cluster, server: FilterServer, raw: RemotingClient
) -> None:
    await create_topic(cluster)
    await send(cluster, range(5))
    await upload(raw, server, SLOW_FIRST)
    (first,) = await waiting_pulls(raw, server, 1, max_msg_nums=1)
    async with client() as other:
        left = await waiting_pulls(other, server, 5)
    assert all(isinstance(each, Exception) for each in await asyncio.gather(
        *left, return_exceptions=True
    ))  # fmt: skip

    found = await pull(raw, server, 0)

    assert (await first).code == 20
    offsets = [message.queue_offset for message in decode_messages(found.body)]
    assert offsets == [2, 3, 4], "the filter got one message before these"


@pytest.mark.both_loops
async def test_a_slow_upload_delays_no_other_client(
    server: FilterServer, raw: RemotingClient
) -> None:
    async with client() as slow:
        uploads = [
            asyncio.ensure_future(upload(slow, server, SLOW_LOAD, consumer_group=f"g{number}"))
            for number in range(CLIENT_UPLOADS_MAX)
        ]
        await until(lambda: server.filters._uploads == CLIENT_UPLOADS_MAX)
        refused = await upload(slow, server, consumer_group="one-more")
        assert (refused.code, refused.remark) == (
            2, f"[OVERLOAD]{CLIENT_UPLOADS_MAX} uploads of this client wait to be loaded already",
        )  # fmt: skip

        assert (await upload(raw, server)).code == 0

        assert not any(each.done() for each in uploads)
        assert len(server.filters) == 1
    await asyncio.gather(*uploads, return_exceptions=True)


async def test_a_few_uploads_are_loaded_at_the_same_time(server: FilterServer) -> None:
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client()) for _ in range(6)]
        source = SLOW_LOAD.replace("2.0", "0.3")
        uploads = [
            asyncio.ensure_future(upload(each, server, source, consumer_group=f"g{number}"))
            for number, each in enumerate(clients)
        ]
        await until(lambda: server.filters._loads.locked())
        assert len(server.filters) == 0
        assert [each.code for each in await asyncio.gather(*uploads)] == [0] * 6
    assert len(server.filters) == 6
    assert server.filters._locks == {}


async def test_one_client_cannot_remove_the_filters_of_all_others(
    cluster: Cluster, raw: RemotingClient
) -> None:
    async with filter_server(cluster, filterClassNumsMax="4") as server:

        def kept() -> str:
            return "".join(g for g in "abcdefg" if server.filters._filters.get((TOPIC, g)))

        for group in "ab":
            assert (await upload(raw, server, consumer_group=group)).code == 0
        refused = await upload(raw, server, consumer_group="c")
        assert refused.code == 1
        assert (refused.remark or "").endswith(
            "this client has 2 filters, and may have half of filterClassNumsMax=4 at most"
        )
        assert (await upload(raw, server, SOURCE + "#", consumer_group="a")).code == 0
        async with client() as other:
            for group in "cd":
                assert (await upload(other, server, consumer_group=group)).code == 0
            assert kept() == "abcd"
        async with client() as third:
            await until(lambda: all(
                server.filters._filters[TOPIC, group].client.closed for group in "cd"
            ))  # fmt: skip
            await pull(third, server, 0, consumer_group="c")  # it belongs to this client now
            assert (await upload(third, server, consumer_group="e")).code == 0
            assert kept() == "abce", "the one of a client that has gone was removed"
            assert (await upload(third, server, consumer_group="f")).code == 1


async def test_registrations_return_the_broker_and_refuse_what_is_no_address(
    cluster: Cluster, raw: RemotingClient
) -> None:
    code, broker = RequestCode.REGISTER_FILTER_SERVER, cluster.broker_addresses[0]
    for address in ("here", "a b:1", "", "h:99999999", "a:1;b:2"):
        header = RegisterFilterServerRequest(filter_server_addr=address)
        refused = await raw.call(broker, code, header, timeout=WAIT_S)
        assert (refused.code, "expected host:port" in (refused.remark or "")) == (1, True), address
    header = RegisterFilterServerRequest(filter_server_addr="10.0.0.7:9000")
    found = await raw.call(broker, code, header, timeout=WAIT_S)

    answer = check(found).header(RegisterFilterServerResponse)
    assert (answer.broker_name, answer.broker_id) == ("broker-0", 0)
    assert cluster.brokers[0].features.filter_servers.servers.addresses() == ("10.0.0.7:9000",)


@pytest.mark.both_loops
async def test_a_stopped_filter_server_leaves_no_process(
    cluster: Cluster, raw: RemotingClient
) -> None:
    async with filter_server(cluster) as server:
        await upload(raw, server)
        worker = server.filters.find(TOPIC, GROUP)
        assert worker is not None
        process = worker._process
        assert process is not None

    assert process.returncode == -9
