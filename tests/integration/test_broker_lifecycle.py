"""A broker as a process, from its ready line to its exit code, seen from the wire."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from pathlib import Path

import pytest

from cometmq.client import AdminClient, Message, Producer, PullConsumer, StartFrom
from cometmq.client.settings import PullSettings
from cometmq.model.errors import RemotingError
from cometmq.protocol import fastjson
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers.base import Header
from cometmq.protocol.headers.pull import PullMessageRequest
from cometmq.protocol.headers.send import SendMessageV2Request
from cometmq.protocol.headers.topic import GetTopicConfigRequest
from cometmq.remoting import ConnectionLostError, RemotingClient, check
from cometmq.remoting.ports import FAST_PORT_GAP, free_broker_port, free_port
from cometmq.remoting.tls import client_context
from cometmq.system import java_properties
from cometmq.testing import ServerProcess, ServerStartError
from support.processes import forks
from support.wire.request_headers import pull_header, send_header

START_S = STOP_S = 120.0
"""They end what hangs."""
HELD_PULLS = 40
SENDERS = 16


class Place:
    """A store and ports, where one standalone server after the other can live."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.namesrv = f"127.0.0.1:{free_port()}"
        self.broker_port = free_broker_port()

    @property
    def broker(self) -> str:
        return f"127.0.0.1:{self.broker_port}"

    @property
    def fast(self) -> str:
        return f"127.0.0.1:{self.broker_port - FAST_PORT_GAP}"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    async def start(self, **settings: str) -> ServerProcess:
        config = self.folder / "broker.conf"
        small = {"mappedFileSizeCommitLog": str(2**22), "maxHashSlotNum": "1000"}
        small |= {"maxIndexNum": "200000", "mappedFileSizeConsumeQueue": "200000"}
        config.write_text("".join(f"{k}={v}\n" for k, v in (small | settings).items()))
        return await ServerProcess.start(
            "standalone",
            "--namesrv-port", self.namesrv.partition(":")[2],
            "--broker-port", str(self.broker_port),
            "--store", str(self.store),
            "-c", str(config),
            log=self.folder / "log",
            timeout=START_S,
        )  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def a_send() -> SendMessageV2Request:
    return send_header(default_topic_queue_nums=1, properties="WAIT\x01true\x02")


def a_pull(offset: int) -> PullMessageRequest:
    return pull_header(offset, hold_ms=30_000)


async def ask(
    client: RemotingClient, address: str, code: int, header: Header | None = None, body: bytes = b""
) -> Command:
    return await client.call(address, code, header, body, timeout=60)


# --- ready --------------------------------------------------------------------------------------


async def test_ready_is_one_line_with_addresses_that_answer(
    place: Place, client: RemotingClient
) -> None:
    async with await place.start() as server:
        assert server.addresses["namesrv"] == place.namesrv
        assert server.addresses["broker"] == place.broker
        assert server.addresses["build"]
        answer = await ask(client, place.broker, RequestCode.SEND_MESSAGE_V2, a_send(), b"x")
        assert check(answer).fields["queueOffset"] == "0"
        assert await server.stop(STOP_S) == 0


async def test_a_broker_without_a_name_server_says_that_no_client_finds_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    port = str(free_broker_port())
    server = await ServerProcess.start(
        "broker", "--port", port, "--store", str(tmp_path / "store"), log=log, timeout=START_S
    )
    assert await server.stop(STOP_S) == 0

    assert "no name server is set" in log.read_text()


async def test_a_broker_that_shall_start_filter_servers_says_that_it_starts_none(
    tmp_path: Path,
) -> None:
    log, config = tmp_path / "log", tmp_path / "broker.conf"
    config.write_text("filterServerNums=2\n")
    arguments = ["--port", str(free_broker_port()), "--store", str(tmp_path / "store")]
    server = await ServerProcess.start(
        "broker", *arguments, "-c", str(config), log=log, timeout=START_S
    )
    assert await server.stop(STOP_S) == 0

    assert "filterServerNums=2 has no effect" in log.read_text()


async def test_acknowledged_means_on_disk_unless_said_otherwise() -> None:
    process = await asyncio.create_subprocess_exec(
        *forks.python(), "-m", "cometmq", "broker", "--print-config", stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()

    assert "flushDiskType=SYNC_FLUSH" in output.decode().splitlines()


# --- stopping -----------------------------------------------------------------------------------


class Load:
    """Clients that keep sending and pulls that are held, until the broker goes."""

    def __init__(self, client: RemotingClient, broker: str) -> None:
        self._client = client
        self._broker = broker
        self.acknowledged: set[bytes] = set()
        self.refusals: list[Command] = []
        self.enough = asyncio.Event()

    async def send(self, name: int) -> None:
        for number in range(1_000_000):
            body = b"%d-%d" % (name, number)
            try:
                answer = await ask(
                    self._client, self._broker, RequestCode.SEND_MESSAGE_V2, a_send(), body
                )
            except RemotingError:
                return
            if answer.code:
                self.refusals.append(answer)
                await asyncio.sleep(0.01)
                continue
            self.acknowledged.add(body)
            if len(self.acknowledged) >= 300:
                self.enough.set()

    async def hold(self) -> Command:
        """A pull that waits for what will never come."""
        return await self._client.call(
            self._broker, RequestCode.PULL_MESSAGE, a_pull(1_000_000), timeout=60
        )


async def make_topic(place: Place, topic: str = "t", queues: int = 1) -> None:
    async with AdminClient(place.namesrv) as admin:
        await admin.create_topic(topic, queues=queues)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_a_signal_ends_the_broker_in_order_in_the_midst_of_its_work(
    place: Place, client: RemotingClient, flush: str, number: signal.Signals
) -> None:
    """Sends keep coming and pulls are held; nothing acknowledged is missing afterwards."""
    async with await place.start(flushDiskType=flush) as server:
        await make_topic(place)
        load = Load(client, place.broker)
        held = [asyncio.create_task(load.hold()) for _ in range(HELD_PULLS)]
        sending = [asyncio.create_task(load.send(name)) for name in range(SENDERS)]
        async with asyncio.timeout(120):
            await load.enough.wait()
        began = time.monotonic()

        os.kill(server.pid, number)
        code = await server.stop(STOP_S)

        assert time.monotonic() - began < STOP_S
        assert code == 0, place.log
        await asyncio.gather(*sending)
        assert {answer.code for answer in load.refusals} <= {ResponseCode.SERVICE_NOT_AVAILABLE}
        outcomes = await asyncio.gather(*held, return_exceptions=True)
        lost = [o for o in outcomes if not isinstance(o, Command | ConnectionLostError)]
        assert lost == []
        assert " ERROR " not in place.log, place.log
        assert not (place.store / "abort").exists()

    async with (
        await place.start(),
        PullConsumer(place.namesrv, group="all", start_from=StartFrom.FIRST) as reading,
    ):
        await reading.assign(await reading.fetch_queues("t"))
        found: set[bytes] = set()
        async with asyncio.timeout(120):
            while not load.acknowledged <= found:
                found |= {message.body for message in await reading.poll(timeout=5)}


async def test_held_pulls_are_answered_when_the_broker_stops(
    place: Place, client: RemotingClient
) -> None:
    async with await place.start() as server:
        await make_topic(place)
        load = Load(client, place.broker)
        check(await ask(client, place.broker, RequestCode.SEND_MESSAGE_V2, a_send(), b"x"))
        pulls = [
            asyncio.create_task(
                client.call(place.broker, RequestCode.PULL_MESSAGE, a_pull(1), timeout=60)
            )
            for _ in range(HELD_PULLS)
        ]
        # The broker handles requests of one connection in order: now it holds all of them.
        request = ask(client, place.broker, RequestCode.PULL_MESSAGE, a_pull(0))
        check(await asyncio.create_task(request))
        assert not any(pull.done() for pull in pulls)
        assert await server.stop(STOP_S) == 0

        answers = await asyncio.gather(*pulls)
        assert {answer.code for answer in answers} == {ResponseCode.PULL_NOT_FOUND}
        assert load.refusals == []


async def test_a_client_that_reads_nothing_does_not_hold_up_the_stop(
    place: Place, client: RemotingClient
) -> None:
    async with await place.start() as server:
        await make_topic(place)
        for number in range(8):
            send = a_send()
            check(
                await ask(
                    client,
                    place.broker,
                    RequestCode.SEND_MESSAGE_V2,
                    send,
                    bytes(4_000_000 + number),
                )
            )
        deaf = RemotingClient()
        connection = await deaf.connection(place.broker)
        assert connection._transport is not None
        connection._transport.pause_reading()
        pulls = [
            asyncio.create_task(
                connection.call(RequestCode.PULL_MESSAGE, a_pull(offset), timeout=120)
            )
            for offset in range(8)
        ]
        await asyncio.sleep(0.3)
        began = time.monotonic()

        assert await server.stop(STOP_S) == 0
        assert time.monotonic() - began < STOP_S
        await deaf.close()
        outcomes = await asyncio.gather(*pulls, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {ConnectionLostError}


async def test_what_the_broker_knew_it_still_knows_after_a_restart(
    place: Place, client: RemotingClient
) -> None:
    """Topics and groups as they were set, offsets, messages, and a delay that went on meanwhile."""
    group = {"groupName": "set", "consumeEnable": False, "retryMaxTimes": 7, "brokerId": 0}
    async with await place.start() as server:
        async with AdminClient(place.namesrv) as admin:
            (queue,) = await admin.create_topic("t", queues=1)
            await admin.create_topic("shown", queues=3, perm=4)
        check(
            await client.call(
                place.broker,
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
                body=fastjson.dumps(group),
                timeout=60,
            )
        )
        async with (
            Producer(place.namesrv, group="g") as sending,
            PullConsumer(place.namesrv, group="keeps", start_from=StartFrom.FIRST) as reading,
        ):
            for number in range(3):
                await sending.send(Message("t", b"%d" % number))
            await sending.send(Message("t", b"delayed", delay_level=2))
            await reading.assign([queue])
            for _ in range(2):
                await anext(reading)
            await reading.commit()
        assert await server.stop(STOP_S) == 0

    async with await place.start():
        async with AdminClient(place.namesrv) as admin:
            assert await admin.committed("keeps", "t") == {queue: 2}
        header = GetTopicConfigRequest(topic="shown")
        answer = await ask(client, place.broker, RequestCode.GET_TOPIC_CONFIG, header)
        shown = fastjson.loads(check(answer).body)
        assert (shown["readQueueNums"], shown["writeQueueNums"], shown["perm"]) == (3, 3, 4)
        groups = await client.call(
            place.broker, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, timeout=60
        )
        table = fastjson.loads(check(groups).body)["subscriptionGroupTable"]
        assert (table["set"]["consumeEnable"], table["set"]["retryMaxTimes"]) == (False, 7)
        settings = PullSettings(retry_ms=50)
        async with PullConsumer(place.namesrv, group="keeps", settings=settings) as reading:
            await reading.assign([queue])
            async with asyncio.timeout(120):
                bodies = [(await anext(reading)).body for _ in range(2)]
        assert bodies == [b"2", b"delayed"]


async def test_a_scheduled_message_is_delivered_though_the_table_of_topics_is_lost(
    place: Place,
) -> None:
    async with await place.start() as server:
        async with (
            AdminClient(place.namesrv) as admin,
            Producer(place.namesrv, group="g") as sending,
        ):
            await admin.create_topic("t", queues=1)
            await sending.send(Message("t", b"delayed", delay_level=1))
        assert await server.stop(STOP_S) == 0
    for path in place.folder.rglob("topics.json*"):
        path.unlink()

    async with await place.start():
        assert "no topic is known, though the store has queues" in place.log
        async with AdminClient(place.namesrv) as admin:
            (queue,) = await admin.create_topic("t", queues=1)
        settings = PullSettings(retry_ms=50)
        async with PullConsumer(
            place.namesrv, group="keeps", start_from=StartFrom.FIRST, settings=settings
        ) as reading:
            await reading.assign([queue])
            async with asyncio.timeout(120):
                assert (await anext(reading)).body == b"delayed"


# --- refusing to start --------------------------------------------------------------------------


async def refused(place: Place) -> str:
    """Why a start fails; it says so in one line."""
    before = len(place.log) if (place.folder / "log").exists() else 0
    with pytest.raises(ServerStartError) as problem:
        await place.start()
    assert "Traceback" not in place.log[before:], place.log[before:]
    assert re.search(r"ended with [12]:", str(problem.value)), problem.value
    return place.log[before:].strip().splitlines()[-1]


async def test_a_second_broker_on_a_store_is_refused_and_changes_nothing(place: Place) -> None:
    async with await place.start() as server:
        await make_topic(place)
        config = place.store / "config"
        before = {path: path.read_bytes() for path in config.iterdir()}
        other = Place(place.folder / "other")
        other.folder.mkdir()
        other.store = place.store

        reason = await refused(other)

        assert str(place.store / "lock") in reason
        assert "another process" in reason
        assert {path: path.read_bytes() for path in config.iterdir()} == before
        async with Producer(place.namesrv, group="g") as sending:
            await sending.send(Message("t", b"still served"))
        assert await server.stop(STOP_S) == 0


@pytest.mark.parametrize("taken", ["broker", "fast", "namesrv"])
async def test_a_port_in_use_is_named_and_the_store_is_left_in_order(
    place: Place, taken: str
) -> None:
    async with await place.start() as server:
        other = Place(place.folder / "other")
        other.folder.mkdir()
        if taken == "broker":
            other.broker_port = place.broker_port
        elif taken == "fast":
            other.broker_port = place.broker_port - FAST_PORT_GAP
            port = other.broker_port
        else:
            other.namesrv = place.namesrv
        port = {"broker": other.broker, "fast": other.broker, "namesrv": other.namesrv}[taken]

        reason = await refused(other)

        name = "namesrv" if taken == "namesrv" else "broker"
        assert reason.startswith(f"cometmq: {name}: cannot listen on")
        assert port in reason
        assert "in use" in reason
        assert "listenPort" in reason
        assert not (other.store / "abort").exists()
        assert await server.stop(STOP_S) == 0
    other.broker_port, other.namesrv = place.broker_port, place.namesrv
    async with await other.start() as again:
        assert await again.stop(STOP_S) == 0
    assert " ERROR " not in other.log


# --- ports --------------------------------------------------------------------------------------


async def test_the_fast_port_serves_all_but_pulls(place: Place, client: RemotingClient) -> None:
    async with await place.start() as server:
        await make_topic(place)
        sent = await ask(client, place.fast, RequestCode.SEND_MESSAGE_V2, a_send(), b"x")
        assert check(sent).fields["queueOffset"] == "0"
        header = GetTopicConfigRequest(topic="t")
        check(await ask(client, place.fast, RequestCode.GET_TOPIC_CONFIG, header))
        for code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
            refused = await ask(client, place.fast, code, a_pull(0))
            assert refused.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            found = await ask(client, place.broker, code, a_pull(0))
            assert check(found).body != b""
        assert await server.stop(STOP_S) == 0


async def test_a_broker_without_a_controller_has_no_epochs(
    place: Place, client: RemotingClient
) -> None:
    async with await place.start():
        refused = await ask(client, place.broker, RequestCode.GET_BROKER_EPOCH_CACHE)
    assert (refused.code, refused.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "this request only for controllerMode",
    )


async def test_settings_that_the_broker_finds_out_are_shown_as_they_are(
    place: Place, client: RemotingClient
) -> None:
    async with await place.start():
        shown = check(await ask(client, place.broker, RequestCode.GET_BROKER_CONFIG))
    entries = java_properties.parse(shown.body.decode())
    texts = {entry.key: entry.value for entry in entries}
    port = int(place.broker.rpartition(":")[2])

    assert (texts["brokerIP1"], texts["brokerIP2"]) == ("127.0.0.1", "127.0.0.1")
    assert (texts["listenPort"], int(texts["haListenPort"])) == (str(port), port + 1)
    assert Path(texts["storePathCommitLog"]) == Path(texts["storePathRootDir"]) / "commitlog"
    assert texts["useTLS"] == "false"
    assert texts["sendMessageThreadPoolNums"] == "2"  # RocketMQ's default: no effect here


async def test_tls_and_plain_clients_meet_on_one_port(place: Place, client: RemotingClient) -> None:
    secret = RemotingClient(tls=client_context())
    async with await place.start() as server:
        for number, sending in enumerate((client, secret, client, secret)):
            for address in (place.broker, place.fast):
                body = b"%d" % number * 100_000
                answer = await ask(sending, address, RequestCode.SEND_MESSAGE_V2, a_send(), body)
                check(answer)
        for reading in (client, secret):
            answer = await ask(reading, place.broker, 11, a_pull(0))
            assert b"3" * 100_000 in check(answer).body or len(answer.body) > 100_000
        assert await server.stop(STOP_S) == 0
    await secret.close()


# --- name servers -------------------------------------------------------------------------------


async def knows(client: RemotingClient, namesrv: str) -> bool:
    """Whether a name server knows a broker."""
    try:
        answer = await client.call(namesrv, RequestCode.GET_BROKER_CLUSTER_INFO, timeout=30)
    except RemotingError:
        return False
    return bool(fastjson.loads(check(answer).body)["brokerAddrTable"])


async def test_one_name_server_that_is_down_delays_nothing_and_is_told_when_it_comes(
    tmp_path: Path, client: RemotingClient
) -> None:
    late_port = free_port()
    late_address = f"127.0.0.1:{late_port}"
    async with await ServerProcess.start(
        "namesrv", "--port", "0", log=tmp_path / "first", timeout=START_S
    ) as first:
        up = first.addresses["namesrv"]
        began = time.monotonic()
        async with await ServerProcess.start(
            "broker",
            "--port", "0",
            "--store", str(tmp_path / "store"),
            "-n", f"{late_address};{up}",
            log=tmp_path / "broker",
            timeout=START_S,
        ) as broker:  # fmt: skip
            assert time.monotonic() - began < STOP_S
            assert await knows(client, up)
            async with await ServerProcess.start(
                "namesrv", "--port", str(late_port), log=tmp_path / "late", timeout=START_S
            ):
                async with asyncio.timeout(120):
                    while not await knows(client, late_address):
                        await asyncio.sleep(0.1)
                began = time.monotonic()
                assert await broker.stop(STOP_S) == 0
                assert time.monotonic() - began < STOP_S
                for address in (up, late_address):
                    assert not await knows(client, address)
