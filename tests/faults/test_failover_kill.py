"""Kills and stops of masters that a controller elected, under load: no acknowledgement is lost."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import kit
import pytest
from codes import Request
from servers import connect
from wire import Connection

from cometmq.protocol.codes import ResponseCode
from support.controllers.elected_processes import (
    COMET,
    ElectedBroker,
    ElectedCluster,
    running_elected,
)
from support.controllers.failover_load import LIMIT_S, TOPIC, Load, create_topic, read_all
from support.runner.tiers import rounds

pytestmark = [pytest.mark.needs("etcd"), pytest.mark.promise]

ROUNDS = rounds(test=2, long=20)
BETWEEN = 200
"""Messages that are acknowledged before each kill."""
TOPIC_ROUNDS = 10
FAILOVER_S = 5.0
REFUSALS = (ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SERVICE_NOT_AVAILABLE)


class Outcome(NamedTuple):
    """What a run has found."""

    seconds: list[float]
    acknowledged: int
    failed: int
    lost: int
    twice: int


async def run(cluster: ElectedCluster) -> Outcome:
    """Kill the master in turn, under load."""
    seconds = []
    await asyncio.to_thread(create_topic, cluster)
    async with Load(cluster.namesrv) as load:
        for _ in range(ROUNDS):
            await load.until_acknowledged(BETWEEN)
            master = cluster.master()
            assert master is not None
            seconds.append(await load.time_after(master.kill))
            await load.until_acknowledged(BETWEEN)
            await asyncio.to_thread(master.start)
            await asyncio.to_thread(cluster.await_in_sync, len(cluster.brokers))
    return await outcome_of(load, seconds, cluster.namesrv)


async def outcome_of(load: Load, seconds: list[float], name_server: str) -> Outcome:
    found = [int(message.body) for message in await read_all(name_server, len(load.acknowledged))]
    numbers = set(found)
    return Outcome(
        seconds,
        len(load.acknowledged),
        load.failed,
        len(load.acknowledged - numbers),
        len(found) - len(numbers),
    )


@pytest.mark.timeout(900)
async def test_nothing_acknowledged_is_lost_and_sends_go_on_within_seconds(
    tmp_path: Path,
) -> None:
    with running_elected(COMET, (COMET, COMET), tmp_path, allAckInSyncStateSet=True) as cluster:
        await asyncio.to_thread(cluster.await_in_sync, 2)
        outcome = await run(cluster)
    print(outcome)
    assert outcome.lost == 0, outcome
    assert outcome.acknowledged >= 2 * ROUNDS * BETWEEN, outcome
    assert max(outcome.seconds) <= FAILOVER_S, outcome


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_three_brokers_keep_two_copies_of_all_when_masters_are_killed(tmp_path: Path) -> None:
    with running_elected(
        COMET, (COMET,) * 3, tmp_path, allAckInSyncStateSet=True, minInSyncReplicas=2
    ) as cluster:
        await asyncio.to_thread(cluster.await_in_sync, 3)
        outcome = await run(cluster)
    print(outcome)
    assert outcome.lost == 0, outcome
    assert max(outcome.seconds) <= FAILOVER_S, outcome


async def test_a_master_that_was_stopped_acknowledges_nothing_when_it_goes_on(
    tmp_path: Path,
) -> None:
    with running_elected(
        COMET,
        (COMET, COMET),
        tmp_path,
        allAckInSyncStateSet=True,
        controllerHeartBeatTimeoutMills=2_000,
    ) as cluster:
        await asyncio.to_thread(cluster.await_in_sync, 2)
        await asyncio.to_thread(create_topic, cluster)
        old = cluster.master()
        assert old is not None
        async with Load(cluster.namesrv) as load:
            await load.until_acknowledged(BETWEEN)
            os.kill(old.process.pid, signal.SIGSTOP)
            try:
                new = await asyncio.to_thread(cluster.await_master, other_than=old)
                await load.until_acknowledged(BETWEEN)
            finally:
                os.kill(old.process.pid, signal.SIGCONT)
            await asyncio.to_thread(cluster.await_in_sync, 2)
            assert cluster.master() is new
            await load.until_acknowledged(BETWEEN)
        outcome = await outcome_of(load, [], cluster.namesrv)
    assert outcome.lost == 0, outcome


def await_copies(cluster: ElectedCluster) -> None:
    """Wait until all brokers have the same log."""
    kit.eventually(lambda: len(set(map(log_end, cluster.brokers))) == 1, timeout=LIMIT_S)


def log_end(broker: ElectedBroker) -> int:
    with closing(connect(broker.address)) as connection:
        response = kit.ok(connection.request(Request.GET_BROKER_RUNTIME_INFO))
        return int(response.json()["table"]["commitLogMaxOffset"])


async def test_a_master_that_stood_still_asks_before_it_acknowledges(tmp_path: Path) -> None:
    """By default a send waits for no slave, so only the epoch shows that it would be lost."""
    with running_elected(
        COMET,
        (COMET, COMET),
        tmp_path,
        controllerHeartBeatTimeoutMills=2_000,
        flushDiskType="ASYNC_FLUSH",
    ) as cluster:
        await asyncio.to_thread(cluster.await_in_sync, 2)
        await asyncio.to_thread(create_topic, cluster)
        old = cluster.master()
        assert old is not None
        connection = connect(old.address)
        kit.store(connection, TOPIC, b"before")
        await asyncio.to_thread(await_copies, cluster)
        os.kill(old.process.pid, signal.SIGSTOP)
        try:
            late = connection.send(Request.SEND_MESSAGE_V2, kit.send_fields(TOPIC), b"late")
            await asyncio.to_thread(cluster.await_master, other_than=old)
        finally:
            os.kill(old.process.pid, signal.SIGCONT)
        answer = await asyncio.to_thread(connection.response, late, LIMIT_S)
        connection.close()
        assert answer.code in (ResponseCode.SUCCESS, *REFUSALS), answer  # a slave forwards it
        await asyncio.to_thread(cluster.await_in_sync, 2)
        stored = [b"before", b"late"] if answer.code == ResponseCode.SUCCESS else [b"before"]
        found = await read_all(cluster.namesrv, len(stored))
        assert [each.body for each in found] == stored


@pytest.mark.long
@pytest.mark.timeout(900)
def test_topics_that_were_created_just_before_a_kill_exist_on_the_new_master(
    tmp_path: Path,
) -> None:
    """Slaves copy topics up to a second after the first message of a new one."""
    with running_elected(COMET, (COMET, COMET), tmp_path, allAckInSyncStateSet=True) as cluster:
        for number in range(TOPIC_ROUNDS):
            cluster.await_in_sync(2)
            old = cluster.master()
            assert old is not None
            now, later = f"now-{number}", f"later-{number}"
            connection = connect(old.address)
            kit.store(connection, now, b"1")
            kit.store(connection, later, b"2", properties={"DELAY": "1"})
            old.kill()
            connection.close()

            new = cluster.await_master(other_than=old)
            with closing(connect(new.address)) as connection:
                assert kit.topic_config(connection, now) is not None
                check_stored(connection, now, b"1")
                check_stored(connection, later, b"2")
            old.start()


def check_stored(connection: Connection, topic: str, body: bytes) -> None:
    """Check that consumers can read the one message of a topic, now or soon."""
    kit.wait_for_queue(connection, topic, 1, timeout=LIMIT_S)
    kit.eventually(lambda: kit.topic_config(connection, topic), timeout=LIMIT_S)
    (found,) = kit.read_queue(connection, "g", topic, 1, timeout=LIMIT_S)
    assert found.body == body
