"""Our broker continues the transactions that RocketMQ 4.9.7 and 5.3.3 left open."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.clients.producers import ProducerRegistry
from cometmq.broker.cold_reads import ColdReads
from cometmq.broker.config import BrokerSettings
from cometmq.broker.durability.wait import DurabilityWait
from cometmq.broker.groups.table import GroupTable
from cometmq.broker.offsets.offset_store import OffsetStore
from cometmq.broker.topics.table import TopicTable
from cometmq.broker.transactions.check_service import CheckService
from cometmq.broker.transactions.half_message import HalfMessage, op_offsets, read_half
from cometmq.broker.transactions.half_queue import GROUP, HalfQueue
from cometmq.broker.transactions.handler import TransactionHandler
from cometmq.model.topic import HALF_TOPIC, OP_HALF_TOPIC
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.transaction import CheckTransactionStateRequest
from cometmq.protocol.properties import decode_properties
from cometmq.protocol.record import decode_record
from cometmq.remoting import Request
from cometmq.store import MessageStore, StoreSettings
from cometmq.store.config_files import JsonFile
from cometmq.system.files import Files
from golden.recordings import VERSIONS, recorded, values
from support.brokers.cores import core_of
from support.brokers.timers import timer_routing
from support.checks.manual_clock import ManualClock
from support.stores.small_stores import all_messages
from support.wire.memory_link import link
from support.wire.message_records import record
from support.wire.recorded import unpack_store

COMMIT = 8
OPEN_KEY, OPEN_OFFSET = "tu", 5
DECIDED = 5
"""Half messages of the recorded stores with an op message."""


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_open_transaction_of_a_recorded_store_is_checked_and_committed(
    version: str, tmp_path: Path
) -> None:
    settings = StoreSettings(
        root=unpack_store(f"{version}-main", tmp_path),
        commit_log_file_bytes=1 << 20,
        consume_queue_file_bytes=6000,
        index_slots=1000,
        index_entries=4000,
        flush_disk_type="ASYNC_FLUSH",
    )
    clock = ManualClock()
    store = MessageStore(settings, clock=clock)
    store.open()
    newest = all_messages(store, HALF_TOPIC)[-1]
    clock.set_wall(newest.born_time_ms + 60_000)
    offsets = OffsetStore(_json(tmp_path, "consumerOffset"), clock=clock)
    offsets.load(store.bounds)
    topics = TopicTable(BrokerSettings, _json(tmp_path, "topics"), clock=clock)
    topics.load()
    producers = ProducerRegistry(clock)
    cold_reads = ColdReads()
    halves = HalfQueue(store, offsets, timer_routing(clock), clock=clock, cold_reads=cold_reads)
    assert await halves.load()
    core = core_of(
        BrokerSettings,
        store,
        clock,
        topics=topics,
        groups=GroupTable(BrokerSettings, _json(tmp_path, "subscriptionGroup"), clock=clock),
        offsets=offsets,
        producers=producers,
        cold_reads=cold_reads,
    )
    checks = CheckService(core, halves, DurabilityWait(None))
    handler = TransactionHandler(core, halves, DurabilityWait(None))
    asked: asyncio.Queue[Request] = asyncio.Queue()
    server, client = link(
        {RequestCode.END_TRANSACTION: handler.end},
        {RequestCode.CHECK_TRANSACTION_STATE: asked.put_nowait},
    )
    producers.register(server, "c", newest.properties["PGROUP"])

    await checks.run()
    async with asyncio.timeout(60):
        request = await asked.get()
    header = request.header(CheckTransactionStateRequest)
    shown = decode_record(request.body)
    assert shown.properties["KEYS"] == OPEN_KEY
    assert asked.empty()
    fields = {
        "producerGroup": newest.properties["PGROUP"],
        "tranStateTableOffset": str(header.tran_state_table_offset),
        "commitLogOffset": str(header.commit_log_offset),
        "commitOrRollback": str(COMMIT),
        "fromTransactionCheck": "true",
        "msgId": shown.properties["UNIQ_KEY"],
    }
    for _ in range(2):
        end = await client.call(RequestCode.END_TRANSACTION, fields=fields, timeout=60)
        assert end.code == 0

    committed = all_messages(store, "TopicTx", 0) + all_messages(store, "TopicTx", 1)
    assert [m.properties["KEYS"] for m in committed].count(OPEN_KEY) == 1
    assert len(committed) == 4
    await checks.run()
    high, op_high = (store.bounds(topic, 0)[1] for topic in (HALF_TOPIC, OP_HALF_TOPIC))
    assert high == DECIDED + 2
    assert offsets.committed(GROUP, HALF_TOPIC, 0) == high
    assert offsets.committed(GROUP, OP_HALF_TOPIC, 0) == op_high
    store.close()


def _json(folder: Path, name: str) -> JsonFile:
    return JsonFile(folder / "store" / "config" / f"{name}.json", Files())


def _half(case: dict[str, Any], log_offset: int) -> HalfMessage:
    names = ("queue_id", "queue_offset", "sys_flag")
    fields = {name: case[name] for name in names} | {"log_offset": log_offset}
    content = case["body"].encode(), case["topic"].encode(), case["properties"]
    return read_half(record(*content, **fields))


@pytest.mark.parametrize("version", VERSIONS)
def test_op_messages_and_committed_messages_are_those_of_rocketmq(version: str) -> None:
    recorded_values = values(version, "transaction")
    assert recorded_values["system_consumer_group"] == GROUP
    committed = {
        case["properties"]["UNIQ_KEY"]: case for case in recorded_values["committed_records"]
    }
    halves = {}
    for case in recorded_values["half_records"]:
        key = case["properties"]["UNIQ_KEY"]
        log_offset = committed[key]["prepared_tx_offset"] if key in committed else 0
        halves[case["queue_offset"]] = _half(case, log_offset)
    assert committed

    named: list[int] = []
    for case in recorded_values["op_records"]:
        offsets = op_offsets(case["body"].encode())
        named += offsets
        op = halves[offsets[0]].op(0)
        assert (op.topic, op.queue_id, op.sys_flag) == (
            case["topic"],
            case["queue_id"],
            case["sys_flag"],
        )
        assert decode_properties(op.properties) == case["properties"]
        assert case["properties"]["TAGS"] == recorded_values["op_tag"]
        separator = recorded_values.get("op_offset_separator", "")
        assert case["body"] == "".join(f"{offset}{separator}" for offset in offsets)
    assert sorted(named) == list(range(DECIDED))

    decided = [halves[offset] for offset in named if halves[offset].unique_key in committed]
    assert len(decided) == len(committed)
    for half in decided:
        case = committed[half.unique_key]
        ours = half.committed(timer_routing(ManualClock()), *half.target())
        assert (ours.topic, ours.sys_flag, ours.prepared_offset) == (
            case["topic"],
            case["sys_flag"],
            case["prepared_tx_offset"],
        )
        assert decode_properties(ours.properties) == case["properties"]


@pytest.mark.parametrize("version", VERSIONS)
def test_immunity_times(version: str) -> None:
    """Release 4.9 has no function for it, so nothing is recorded there."""
    for case in values(version, "transaction")["immunity"]:
        text, timeout_ms = case["check_immunity_time_in_seconds"], case["transaction_timeout_ms"]
        properties = {} if text is None else {"CHECK_IMMUNITY_TIME_IN_SECONDS": text}
        half = _half(
            {
                "topic": HALF_TOPIC,
                "body": "b",
                "properties": properties,
                "queue_id": 0,
                "queue_offset": 0,
                "sys_flag": 0,
            },
            0,
        )
        expected = case["immunity_ms"] if text else None  # an empty value is not stored
        assert half.immunity_ms(timeout_ms) == expected, case


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_checks_have_the_fields_of_ours(version: str) -> None:
    """Release 4.9 sends neither the half topic nor the name of the broker."""
    checks = [
        frame.command()
        for frame in recorded(f"{version}/transaction.jsonl")
        if frame.row["code"] == RequestCode.CHECK_TRANSACTION_STATE
    ]
    assert checks
    for command in checks:
        header = command.header(CheckTransactionStateRequest)
        shown = decode_record(command.body, decompress=False)
        assert command.is_oneway
        assert header.msg_id == header.transaction_id == shown.properties["UNIQ_KEY"]
        assert header.offset_msg_id == shown.offset_message_id
        assert header.tran_state_table_offset == shown.queue_offset
        assert header.commit_log_offset == shown.log_offset
        assert (shown.topic, str(shown.queue_id)) == (
            shown.properties["REAL_TOPIC"],
            shown.properties["REAL_QID"],
        )
        assert shown.properties["WAIT"] == "false"
        assert int(shown.properties["TRANSACTION_CHECK_TIMES"]) >= 1
        assert header.topic in (None, HALF_TOPIC)
