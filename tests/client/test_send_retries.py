"""Sends to brokers that refuse, are silent, close connections, or store less safely than asked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cometmq.client import (
    ClientClosedError,
    Message,
    MessageQueue,
    Producer,
    ResponseError,
    SendFailedError,
    SendReceipt,
    SendStatus,
    SendTimeoutError,
    TopicNotFoundError,
)
from cometmq.client.errors import NameServerError
from cometmq.client.settings import RETRIED, ProducerSettings
from cometmq.model.errors import ConfigError
from cometmq.protocol.codes import ResponseCode
from cometmq.remoting import ConnectError
from support.brokers.scripted import Act, ScriptedBroker, ScriptedCluster, SentBroker, route

MESSAGE = Message(topic="t", body=b"x")
FLUSH, SLAVE, NO_SLAVE = (
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)
RETRIED_CODES = [ResponseCode[name] for name in RETRIED]


def producer(cluster: ScriptedCluster, **options: Any) -> Producer:
    """A producer that leaves refusals of a whole connection to its own retries."""
    return Producer(cluster.address, group="g", reconnect_for_go_away=False, **options)


def both(*script: int | Act) -> ScriptedCluster:
    """Two brokers that do the same."""
    return ScriptedCluster([ScriptedBroker("a", *script), ScriptedBroker("b", *script)])


# --- awaited sends ------------------------------------------------------------------------------


PERMANENT = ResponseCode.NO_PERMISSION
"""With the remark of a scripted broker, which is none of a switch for reading and writing."""


async def test_a_broker_that_refuses_for_good_is_not_tried_again_and_others_are() -> None:
    async with both(PERMANENT) as cluster, producer(cluster) as sending:
        with pytest.raises(ResponseError):
            await sending.send(MESSAGE)
    assert sorted(cluster.sends) == ["a", "b"]

    brokers = [ScriptedBroker("a", *[PERMANENT] * 3), ScriptedBroker("b", Act.HANG_UP)]
    async with ScriptedCluster(brokers) as cluster, producer(cluster) as sending:
        for _ in range(2):
            assert (await sending.send(MESSAGE)).queue.broker_name == "b"


@pytest.mark.parametrize(
    "code", [code for code in RETRIED_CODES if code != PERMANENT], ids=lambda code: code.name
)
async def test_a_refusal_that_another_broker_may_not_share_is_tried_elsewhere(code: int) -> None:
    async with both(code) as cluster, producer(cluster) as sending:
        receipt = await sending.send(MESSAGE)
        assert receipt.status is SendStatus.SEND_OK

    assert len(cluster.sends) == 3, "each broker refuses once, and the third try is stored"
    assert set(cluster.sends) == {"a", "b"}


@pytest.mark.parametrize("code", [ResponseCode.MESSAGE_ILLEGAL, ResponseCode.TOPIC_EXIST_ALREADY])
async def test_any_other_refusal_ends_the_send(code: int) -> None:
    async with both(code) as cluster, producer(cluster) as sending:
        with pytest.raises(ResponseError) as refusal:
            await sending.send(MESSAGE)

    assert refusal.value.code == code
    assert len(cluster.sends) == 1


async def test_codes_can_be_added_by_name_or_number_and_taken_away() -> None:
    codes = ("MESSAGE_ILLEGAL", "207")
    async with (
        both(ResponseCode.MESSAGE_ILLEGAL, 207) as cluster,
        producer(cluster, retry_codes=codes, retries=4) as sending,
    ):
        await sending.send(MESSAGE)
    assert len(cluster.sends) == 5

    async with (
        both(ResponseCode.SYSTEM_BUSY) as cluster,
        producer(cluster, retry_codes=codes) as sending,
    ):
        with pytest.raises(ResponseError):
            await sending.send(MESSAGE)
    assert len(cluster.sends) == 1


def test_a_code_that_is_neither_name_nor_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="'NO_SUCH'"):
        ProducerSettings(retry_codes=("NO_SUCH",))


@pytest.mark.parametrize("retries", [0, 1, 4])
async def test_there_is_one_try_more_than_retries(retries: int) -> None:
    refusals = [ResponseCode.SYSTEM_BUSY] * 9
    async with both(*refusals) as cluster, producer(cluster, retries=retries) as sending:
        with pytest.raises(ResponseError):
            await sending.send(MESSAGE)

    assert len(cluster.sends) == 1 + retries


async def test_a_lost_connection_is_tried_on_another_broker() -> None:
    async with both(Act.HANG_UP) as cluster, producer(cluster) as sending:
        await sending.send(MESSAGE)

    assert len(cluster.sends) == 3
    assert set(cluster.sends) == {"a", "b"}


async def test_every_try_failing_tells_of_each_and_that_the_message_is_perhaps_stored() -> None:
    async with both(*[Act.HANG_UP] * 3) as cluster, producer(cluster) as sending:
        with pytest.raises(SendFailedError) as failure:
            await sending.send(MESSAGE)

    assert len(failure.value.attempts) == 3
    assert {attempt.broker_name for attempt in failure.value.attempts} == {"a", "b"}
    assert failure.value.maybe_stored


@pytest.mark.usefixtures("virtual_time")
async def test_the_timeout_covers_all_tries_together() -> None:
    async with both(*[Act.STAY_SILENT] * 9) as cluster, producer(cluster) as sending:
        began = asyncio.get_running_loop().time()
        with pytest.raises(SendTimeoutError) as failure:
            await sending.send(MESSAGE, timeout=0.3)
        took = asyncio.get_running_loop().time() - began

    assert len(failure.value.attempts) == 1, "the first try takes all the time there is"
    assert took == pytest.approx(0.3)


@pytest.mark.usefixtures("virtual_time")
async def test_no_try_begins_in_the_last_moment_whatever_the_time_of_the_clock() -> None:
    """A call may end before its time by what rounding takes; nothing can be done in that time."""
    rounds = 30
    async with both(*[Act.STAY_SILENT] * rounds) as cluster, producer(cluster) as sending:
        for _ in range(rounds):
            await asyncio.sleep(0.37)
            with pytest.raises(SendTimeoutError) as failure:
                await sending.send(MESSAGE, timeout=0.3)
            assert len(failure.value.attempts) == 1


@pytest.mark.usefixtures("virtual_time")
async def test_the_time_of_one_try_can_be_limited_so_that_there_are_more() -> None:
    async with both(Act.STAY_SILENT) as cluster, producer(cluster, try_timeout_ms=60) as sending:
        receipt = await sending.send(MESSAGE, timeout=5.0)

    assert receipt.status is SendStatus.SEND_OK
    assert sorted(set(cluster.sends)) == ["a", "b"]


@pytest.mark.parametrize("code", [FLUSH, SLAVE, NO_SLAVE])
async def test_less_safely_stored_is_a_receipt_with_a_status_and_no_retry(code: int) -> None:
    async with both(code) as cluster, producer(cluster) as sending:
        receipt = await sending.send(MESSAGE)

    assert receipt.status is SendStatus[ResponseCode(code).name]
    assert len(cluster.sends) == 1


async def test_less_safely_stored_is_tried_elsewhere_if_that_is_set() -> None:
    async with both(FLUSH) as cluster, producer(cluster, retry_not_stored=True) as sending:
        receipt = await sending.send(MESSAGE)

    assert receipt.status is SendStatus.SEND_OK
    assert len(cluster.sends) == 3


@pytest.mark.parametrize("later", [FLUSH, ResponseCode.SYSTEM_BUSY, ResponseCode.MESSAGE_ILLEGAL])
async def test_less_safely_stored_is_the_answer_when_no_later_try_does_better(later: int) -> None:
    brokers = [ScriptedBroker("a", FLUSH, later, later)]
    async with (
        ScriptedCluster(brokers) as cluster,
        producer(cluster, retry_not_stored=True) as sending,
    ):
        receipt = await sending.send(MESSAGE)

    assert receipt.status is SendStatus.FLUSH_DISK_TIMEOUT
    assert len(cluster.sends) >= 2


@pytest.mark.parametrize(
    "how",
    [
        {"queue": MessageQueue("t", "a", 1)},
        {"order_key": "k"},
        {"selector": lambda queues, message: queues[0]},
    ],
    ids=["queue", "key", "selector"],
)
@pytest.mark.parametrize("act", [ResponseCode.SYSTEM_BUSY, Act.HANG_UP])
async def test_a_chosen_queue_is_tried_once(how: dict[str, Any], act: int | Act) -> None:
    async with both(act, act) as cluster, producer(cluster, retry_not_stored=True) as sending:
        with pytest.raises((ResponseError, SendFailedError)):
            await sending.send(MESSAGE, **how)

    assert len(cluster.sends) == 1


async def test_a_chosen_queue_is_not_left_for_being_stored_less_safely() -> None:
    async with both(FLUSH) as cluster, producer(cluster, retry_not_stored=True) as sending:
        receipt = await sending.send(MESSAGE, order_key="k")

    assert receipt.status is SendStatus.FLUSH_DISK_TIMEOUT
    assert len(cluster.sends) == 1


async def test_nothing_is_sent_without_a_route_or_a_name_server() -> None:
    async with both() as cluster, producer(cluster) as sending:
        with pytest.raises(TopicNotFoundError):
            await sending.send(Message("unknown", b"x"))
        cluster.name_server.silent = True
        with pytest.raises(NameServerError):
            await sending.send(Message("other", b"x"), timeout=0.2)

    assert cluster.sends == []


async def test_a_producer_that_does_not_run_sends_nothing() -> None:
    async with both() as cluster:
        sending = producer(cluster)
        with pytest.raises(ClientClosedError):
            await sending.send(MESSAGE)
        with pytest.raises(ClientClosedError):
            await sending.send_nowait(MESSAGE)

    assert cluster.sends == []


async def test_a_broker_without_a_master_counts_as_not_reached() -> None:
    async with both() as cluster, producer(cluster) as sending:
        await sending.ready("t")
        only_slaves = route({"a": cluster.brokers[0].address})
        only_slaves.broker_datas[0].broker_addrs = {1: cluster.brokers[0].address}
        cluster.name_server.routes["t"] = only_slaves
        with pytest.raises(SendFailedError) as failure:
            await sending.send(MESSAGE, queue=MessageQueue("t", "c", 0), timeout=0.2)

    assert not failure.value.maybe_stored
    assert cluster.sends == []


# --- sends that are only begun ------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    sorted({*RETRIED_CODES, ResponseCode.MESSAGE_ILLEGAL} - {ResponseCode.SERVICE_NOT_AVAILABLE}),
)
async def test_a_begun_send_is_not_tried_again_after_a_refusal(code: int) -> None:
    async with both(code) as cluster, producer(cluster) as sending:
        with pytest.raises(ResponseError) as refusal:
            await sending.send_nowait(MESSAGE)

    assert refusal.value.code == code
    assert len(cluster.sends) == 1


async def test_a_begun_send_is_tried_on_another_broker_when_the_connection_is_lost() -> None:
    async with both(Act.HANG_UP) as cluster, producer(cluster) as sending:
        receipt = await sending.send_nowait(MESSAGE)

    assert isinstance(receipt, SendReceipt)
    assert len(set(cluster.sends)) == 2


async def test_a_begun_send_to_a_chosen_queue_is_tried_again_at_the_same_broker() -> None:
    async with both(Act.HANG_UP, Act.HANG_UP) as cluster, producer(cluster) as sending:
        receipt = await sending.send_nowait(MESSAGE, queue=MessageQueue("t", "a", 1))

    assert receipt.queue == MessageQueue("t", "a", 1)
    assert cluster.sends == ["a"] * 3


@pytest.mark.parametrize("retries", [0, 1])
async def test_a_begun_send_has_its_own_number_of_retries(retries: int) -> None:
    acts = [Act.HANG_UP] * 5
    async with both(*acts) as cluster, producer(cluster, retries_async=retries) as sending:
        with pytest.raises(SendFailedError):
            await sending.send_nowait(MESSAGE)

    assert len(cluster.sends) == 1 + retries


@pytest.mark.usefixtures("virtual_time")
async def test_a_begun_send_fails_in_time_and_is_perhaps_stored() -> None:
    async with both(*[Act.STAY_SILENT] * 3) as cluster, producer(cluster) as sending:
        with pytest.raises(SendTimeoutError) as failure:
            await sending.send_nowait(MESSAGE, timeout=0.5)

    assert failure.value.maybe_stored
    assert len(cluster.sends) == 1


# --- oneway sends -------------------------------------------------------------------------------


async def test_a_oneway_send_never_tells_of_a_refusal() -> None:
    broker = SentBroker("a", ResponseCode.SYSTEM_ERROR, Act.HANG_UP)
    async with ScriptedCluster([broker]) as cluster, producer(cluster) as sending:
        for _ in range(2):
            assert len(await sending.send_oneway(MESSAGE)) == 32
        await broker.until(lambda: len(broker.sends) == 2)

    assert [command.is_oneway for command in broker.commands] == [True, True]


async def test_a_oneway_send_tells_that_the_broker_cannot_be_reached() -> None:
    async with both() as cluster, producer(cluster) as sending:
        await sending.fetch_queues("t")
        for broker in cluster.brokers:
            await broker.stop()
        with pytest.raises(ConnectError):
            await sending.send_oneway(MESSAGE)


# --- the wire -----------------------------------------------------------------------------------


async def test_headers_have_names_of_one_letter_and_batches_their_own_code() -> None:
    broker = SentBroker("a")
    async with ScriptedCluster([broker]) as cluster, producer(cluster) as sending:
        await sending.send(MESSAGE)
        await sending.send_batch([MESSAGE, MESSAGE])

    single, batch = broker.commands
    assert (single.code, batch.code) == (310, 320)
    assert sorted(single.fields) == list("abcdefghijkmn")
    assert (single.fields["a"], single.fields["b"], single.fields["c"]) == ("g", "t", "TBW102")
    assert (single.fields["m"], batch.fields["m"]) == ("false", "true")
    assert single.fields["n"] == "a"


@pytest.mark.parametrize(("kind", "bits"), [("zlib", 0x301), ("lz4", 0x101), ("zstd", 0x201)])
async def test_compressed_bodies_have_the_bits_of_their_compressor(kind: str, bits: int) -> None:
    broker = SentBroker("a")
    options = {"compress_type": kind, "compress_from_bytes": 100}
    async with ScriptedCluster([broker]) as cluster, producer(cluster, **options) as sending:
        await sending.send(Message("t", b"x" * 99))
        await sending.send(Message("t", b"x" * 100))

    assert [header.sys_flag for header in broker.sends] == [0, bits]
    assert [len(command.body) < 99 for command in broker.commands] == [False, True]
