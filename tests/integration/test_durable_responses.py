"""A response with code 0 means that the result is as durable as a send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from cometmq.broker.app import Broker
from cometmq.broker.replication.wire import HEADER, REPORT
from cometmq.model.flags import SysFlag
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers.base import Header
from cometmq.protocol.headers.consumer import ConsumerSendMsgBackRequest
from cometmq.protocol.headers.send import SendMessageRequest
from cometmq.protocol.headers.transaction import (
    EndTransactionRequest,
    ResumeCheckHalfMessageRequest,
)
from cometmq.protocol.message_id import decode_offset_id
from cometmq.protocol.properties import encode_properties
from cometmq.remoting import RemotingClient
from support.brokers.pairs import LIMIT_S, SLAVE, Pairs
from support.brokers.replication_peer import Peer, listening
from support.checks.waiting import until
from support.stores.small_stores import put
from support.wire.request_headers import send_header

SILENT_MS = 200


class Master:
    """A synchronous master, and a slave that acknowledges when the test wants it."""

    def __init__(self, pairs: Pairs, broker: Broker, client: RemotingClient) -> None:
        self.pairs = pairs
        self.broker = broker
        self.store = broker.core.store
        self._client = client
        self._peer: Peer | None = None
        self._following: asyncio.Task[None] | None = None

    async def call(self, code: int, header: Header, body: bytes = b"") -> Command:
        return await self._client.call(self.broker.address, code, header, body, timeout=LIMIT_S)

    async def send(self, *, sys_flag: int = 0, properties: dict[str, str] | None = None) -> Command:
        text = encode_properties(properties or {}).decode()
        fields = {"topic": "TBW102", "sys_flag": sys_flag, "properties": text}
        header = send_header(SendMessageRequest, **fields)
        return await self.call(RequestCode.SEND_MESSAGE, header, b"x")

    async def half(self) -> Command:
        """Send the first part of a transaction."""
        return await self.send(
            sys_flag=SysFlag.TRANSACTION_PREPARED,
            properties={"TRAN_MSG": "true", "PGROUP": "p"},
        )

    async def decide(self, half: Command, decision: int) -> Command:
        header = EndTransactionRequest(
            producer_group="p",
            tran_state_table_offset=int(half.fields["queueOffset"]),
            commit_log_offset=decode_offset_id(half.fields["msgId"]).log_offset,
            commit_or_rollback=decision,
            msg_id="",
        )
        return await self.call(RequestCode.END_TRANSACTION, header)

    async def send_back(self, log_offset: int) -> Command:
        header = ConsumerSendMsgBackRequest(group="g", offset=log_offset, delay_level=1)
        return await self.call(RequestCode.CONSUMER_SEND_MSG_BACK, header)

    async def resume(self, half: Command) -> Command:
        header = ResumeCheckHalfMessageRequest(topic="TBW102", msg_id=half.fields["msgId"])
        return await self.call(RequestCode.RESUME_CHECK_HALF_MESSAGE, header)

    async def connect(self) -> None:
        """Let the slave connect, with all of the log so far."""
        self._peer = await Peer.connect(self.broker.features.replication.master.port)
        self.acknowledge()
        await until(lambda: self.broker.features.replication.master.slaves)

    def acknowledge(self) -> None:
        """Let the slave report all of the log so far."""
        assert self._peer is not None
        self._peer.write(REPORT.pack(self.store.written_to))

    async def follow(self) -> None:
        """Let the slave acknowledge from now on what it gets."""

        async def follow(peer: Peer) -> None:
            while True:
                offset, data = await peer.chunk()
                peer.write(REPORT.pack(offset + len(data)))

        assert self._peer is not None
        self.acknowledge()
        self._following = asyncio.create_task(follow(self._peer))

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        if self._peer is not None:
            self._peer.close()


@pytest.fixture
async def master(pairs: Pairs) -> AsyncIterator[Master]:
    broker = await pairs.start(
        "master",
        brokerRole="SYNC_MASTER",
        slaveTimeout=str(SILENT_MS),
        messageDelayLevel="1h",
        transactionCheckInterval="3600000",
    )
    await broker.core.groups.get_or_create("g")
    client = RemotingClient(name="test")
    made = Master(pairs, broker, client)
    yield made
    await made.close()
    await client.close()


Stores = Callable[[], Awaitable[Command]]


async def requests_of(master: Master) -> dict[str, Stores]:
    """Each request that stores a record, ready to be sent."""
    committed, rolled_back, resumed = [await master.half() for _ in range(3)]
    failed = (await master.send()).fields["msgId"]
    return {
        "send": master.send,
        "half message": master.half,
        "commit": lambda: master.decide(committed, SysFlag.TRANSACTION_COMMIT),
        "commit, repeated": lambda: master.decide(committed, SysFlag.TRANSACTION_COMMIT),
        "rollback": lambda: master.decide(rolled_back, SysFlag.TRANSACTION_ROLLBACK),
        "resume": lambda: master.resume(resumed),
        "send back": lambda: master.send_back(decode_offset_id(failed).log_offset),
    }


async def test_no_success_before_the_slave_has_it(master: Master) -> None:
    requests = await requests_of(master)
    await master.connect()
    codes = {name: (await request()).code for name, request in requests.items()}
    assert codes == dict.fromkeys(requests, int(ResponseCode.FLUSH_SLAVE_TIMEOUT))


async def test_success_when_the_slave_has_it(master: Master) -> None:
    requests = await requests_of(master)
    await master.connect()
    await master.follow()
    codes = {name: (await request()).code for name, request in requests.items()}
    assert codes == dict.fromkeys(requests, 0)


@pytest.mark.parametrize(
    "changes", [{}, {"inSyncReplicas": "3"}, {"haSlaveFallbehindMax": "1"}], ids=str
)
async def test_without_the_slaves_that_it_needs_a_message_is_not_taken_back(
    master: Master, changes: dict[str, str]
) -> None:
    """The consumer sends a copy to the retry topic then; each retry would double it."""
    log_offset = decode_offset_id((await master.send()).fields["msgId"]).log_offset
    master.broker.configuration.set(changes)
    if changes:
        await master.connect()
    end = master.store.written_to
    refused = await master.send_back(log_offset)
    assert (refused.code, master.store.written_to) == (ResponseCode.SLAVE_NOT_AVAILABLE, end)
    assert "not stored" in (refused.remark or "")


async def test_offsets_are_copied_when_the_log_here_covers_them(pairs: Pairs) -> None:
    """A commit counts a failed message as consumed, whose retry is in the log before it."""
    master = await pairs.start("master")
    data = put(master.core.store, b"x", topic="TBW102")
    await until(lambda: master.core.store.bounds("TBW102", 0) == (0, 1))
    master.core.offsets.commit("g", "TBW102", 0, 1)
    async with listening() as logs:
        slave = await pairs.start("slave", **SLAVE, haMasterAddress=logs.address)
        log = await logs.accept()
        assert await log.report() == 0
        await until(lambda: slave.core.role.master_address)
        metadata = slave.features.replication.metadata.get()
        metadata.hurry()
        await metadata.run()
        assert slave.core.offsets.committed("g", "TBW102", 0) is None
        start, size = data.log_offset, data.size_bytes
        record = master.core.store.log_bytes(start, size)
        assert record is not None
        log.write(HEADER.pack(start, size) + bytes(record))
        await until(lambda: slave.core.offsets.committed("g", "TBW102", 0) == 1)
