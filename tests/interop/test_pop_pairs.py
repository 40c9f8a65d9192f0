"""What is in flight when the master changes between our broker and RocketMQ's 5.3.3.

The slave copies the log; then the master is killed and the slave starts as the master.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import kit
import pop_kit
import pytest
from pair_brokers import SLAVE, VERSION, WAIT_S, Broker, connect, made
from servers import RealNameServer, Settings

SETTINGS: Settings = {
    "brokerName": "pair",
    "waitTimeMillsInSendQueue": 60_000,
    "mappedFileSizeCommitLog": 4 * 1024 * 1024,
    "timerWheelEnable": True,
}
TOPIC, GROUP = "tickets", "counter"
SHORT_MS = 45_000


def has_copied(slave: Broker, master: Broker) -> bool:
    """Whether the slave has the log and the tables of its master."""
    with closing(connect(slave)) as copy, closing(connect(master)) as original:
        topics = (TOPIC, "rmq_sys_wheel_timer")
        ends = [[kit.max_offset(each, of, 0) for of in topics] for each in (copy, original)]
        tables = kit.topic_config(copy, TOPIC) and kit.group_config(copy, GROUP)
        revive = "rmq_sys_REVIVE_LOG_DefaultCluster"
        logs = [[kit.max_offset(each, revive, n) for n in range(8)] for each in (copy, original)]
    return ends[0] == ends[1] and bool(tables) and logs[0] == logs[1]


@pytest.mark.parametrize(("first", "second"), [("comet", "real"), ("real", "comet")])
def test_pending_pops_go_over_to_the_new_master(first: str, second: str, tmp_path: Path) -> None:
    with RealNameServer(VERSION, tmp_path / "namesrv") as namesrv:
        master = made(first, tmp_path / "master", namesrv.address, SETTINGS)
        slave = made(second, tmp_path / "slave", namesrv.address, SETTINGS | SLAVE)
        with master, slave, closing(connect(master)) as broker:
            kit.ok(kit.create_topic(broker, TOPIC, read=1, write=1))
            kit.ok(kit.create_group(broker, GROUP))
            kit.store_many(broker, TOPIC, 5)
            # A busy slave may need longer for this than the messages are invisible.
            kit.eventually(lambda: has_copied(slave, master), timeout=WAIT_S, pause=0.3)
            popped = pop_kit.pop(broker, GROUP, TOPIC, count=4, invisible_ms=SHORT_MS)
            assert popped.bodies == [b"0", b"1", b"2", b"3"]
            kit.ok(pop_kit.ack(broker, GROUP, TOPIC, popped.receipts[0]))
            kit.eventually(lambda: has_copied(slave, master), timeout=WAIT_S, pause=0.3)
            slave.stop()
            master.kill()
        promoted = made(second, tmp_path / "slave", namesrv.address, SETTINGS)
        with promoted, closing(connect(promoted)) as broker:
            kit.ok(pop_kit.ack(broker, GROUP, TOPIC, popped.receipts[1]))
            seen: set[bytes] = set()

            def has_come() -> bool:
                found = pop_kit.pop(broker, GROUP, TOPIC, invisible_ms=3_600_000)
                seen.update(found.bodies)
                return {b"2", b"3", b"4"} <= seen

            kit.eventually(has_come, timeout=WAIT_S, pause=0.2)
