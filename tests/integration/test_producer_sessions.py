"""Producer sessions over kills, restarts and a failover: late sends of old attempts are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.client import AdminClient, MessageQueue
from cometmq.client.library import (
    ClientConnection,
    EncodedSender,
    OpenedSession,
    ProducerSession,
    SessionFencedError,
)
from cometmq.model.errors import ResponseError
from cometmq.protocol.batch import BatchItem, encode_batch
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.properties import encode_properties
from support.brokers.pairs import SLAVE, Pairs
from support.checks.waiting import until
from support.processes.server import standalone

TOPIC = "sessions"
LIMIT_S = 60.0
ROW = encode_batch([BatchItem(0, b"row", encode_properties({"UNIQ_KEY": "A" * 32}))])


class Attempt:
    """One attempt of a task that writes queue 0 of the topic."""

    def __init__(self, connection: ClientConnection, owner: str) -> None:
        self.use(connection)
        self.session = ProducerSession("job/3", owner, 0)

    def use(self, connection: ClientConnection) -> None:
        self._sender = EncodedSender(connection, "writer")

    async def open(self, *, batch: int = 0, epoch: int = 0) -> OpenedSession:
        brokers = await self._sender.session_brokers(TOPIC, timeout=LIMIT_S)
        (address,) = brokers.values()
        opened = await self._sender.open_session(
            TOPIC,
            address,
            self.session._replace(epoch=epoch),
            batch=batch,
            brokers=sorted(brokers),
            timeout=LIMIT_S,
        )
        self.session = self.session._replace(epoch=opened.epoch)
        return opened

    async def send(self) -> int:
        """Send a row; return the code of a refusal, 0 for none."""
        (name,) = await self._sender.session_brokers(TOPIC, timeout=LIMIT_S)
        try:
            await self._sender.send(
                TOPIC,
                ROW,
                queue=MessageQueue(TOPIC, name, 0),
                session=self.session,
                timeout=LIMIT_S,
            )
        except ResponseError as refused:
            return refused.code
        return 0


async def create_topic(name_server: str) -> None:
    async with AdminClient(name_server) as admin:
        await admin.create_topic(TOPIC, queues=2)


async def test_an_old_attempt_is_refused_after_the_broker_was_killed(tmp_path: Path) -> None:
    with standalone(tmp_path) as server:
        name_server = f"127.0.0.1:{server.ports.namesrv}"
        await create_topic(name_server)
        async with ClientConnection(name_server) as connection:
            zombie, attempt = Attempt(connection, "zombie"), Attempt(connection, "attempt")
            assert (await zombie.open()).ends == (0, 0)
            assert await zombie.send() == 0
            opened = await attempt.open()
            assert (opened.begins, opened.ends, opened.is_safe) == ((0, 0), (1, 0), True)

        server.kill()
        server.start()

        async with ClientConnection(name_server) as connection:
            zombie.use(connection)
            attempt.use(connection)
            assert await zombie.send() == ResponseCode.PRODUCER_FENCED
            assert await attempt.send() == 0
            again = await attempt.open(epoch=attempt.session.epoch + 1)
            assert (again.epoch, again.begins, again.ends) == (3, (0, 0), (2, 0))
            with pytest.raises(SessionFencedError) as fenced:
                await zombie.open(epoch=2)
            assert fenced.value.newest == 3
            newer = await attempt.open(batch=1)
            assert (newer.begins, newer.ends) == ((2, 0), (2, 0))
            with pytest.raises(ResponseError, match="batch 0 is older than batch 1"):
                await zombie.open(batch=0)


async def test_a_slave_that_becomes_the_master_knows_the_sessions(pairs: Pairs) -> None:
    master = await pairs.start("master", brokerRole="SYNC_MASTER")
    slave = await pairs.start("slave", **SLAVE)
    await until(lambda: slave.core.store.written_to == master.core.store.written_to)
    name_server = pairs.name_server.address
    await create_topic(name_server)
    async with ClientConnection(name_server) as connection:
        zombie, attempt = Attempt(connection, "zombie"), Attempt(connection, "attempt")
        await zombie.open()
        assert await zombie.send() == 0
        opened = await attempt.open()
        assert (opened.begins, opened.ends, opened.is_safe) == ((0, 0), (1, 0), True)
        assert await attempt.send() == 0
        await until(lambda: slave.core.topics.get(TOPIC))
        await pairs.stop(master)
        await pairs.stop(slave)
        await pairs.start("slave")  # as the master

        assert await zombie.send() == ResponseCode.PRODUCER_FENCED
        assert await attempt.send() == 0
        last = await Attempt(connection, "last").open()
        assert (last.epoch, last.begins, last.ends) == (3, (0, 0), (3, 0))
