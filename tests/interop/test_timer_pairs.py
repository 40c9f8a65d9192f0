"""Timer messages when the master changes between our broker and RocketMQ's 5.3.3.

The slave copies the log; the master is killed while messages are due; the slave starts as the
master. Each message is delivered once, recalled ones are not.
"""

from __future__ import annotations

import struct
from collections import Counter
from contextlib import closing
from pathlib import Path

import kit
import pytest
import timer_kit
from codes import Request
from pair_brokers import SLAVE, VERSION, WAIT_S, connect, made
from servers import RealNameServer, Settings
from wire import Connection

SETTINGS: Settings = {
    "brokerName": "pair",
    "waitTimeMillsInSendQueue": 60_000,
    "mappedFileSizeCommitLog": 4 * 1024 * 1024,
    "timerWheelEnable": True,
    "recallMessageEnable": True,
    "slaveReadEnable": True,
}
TOPIC = "later"
EACH = 30
RECALLED = 3
FIRST_S, GAP_S = 5.0, 25.0
"""When the first part is due, and how long after it the second one: a JVM starts meanwhile."""
READ_MS = struct.Struct(">q")


def send_all(broker: Connection) -> list[int]:
    """Send both parts, and recall some messages of the second one; return all times."""
    begin_ms = kit.now_ms()
    times = [
        begin_ms + int((FIRST_S + part * GAP_S) * 1000) + number * 100
        for part in range(2)
        for number in range(EACH)
    ]
    handles = []
    for number, due_ms in enumerate(times):
        properties = {"UNIQ_KEY": f"{number:032X}"}
        answer = timer_kit.timed(
            broker, TOPIC, b"%d" % number, deliver=due_ms, properties=properties
        )
        handles.append(kit.ok(answer).fields["recallHandle"])
    for handle in handles[EACH : EACH + RECALLED]:
        kit.ok(timer_kit.recall(broker, TOPIC, handle))
    return times


def passed_ms(broker: Connection) -> int:
    """GET_TIMER_CHECK_POINT: the first slot that a broker has not passed."""
    (found,) = READ_MS.unpack_from(kit.ok(broker.request(Request.GET_TIMER_CHECK_POINT)).body)
    return int(found)


@pytest.mark.parametrize(("first", "second"), [("comet", "real"), ("real", "comet")])
def test_a_new_master_delivers_what_the_one_before_has_not(
    first: str, second: str, tmp_path: Path
) -> None:
    with RealNameServer(VERSION, tmp_path / "namesrv") as namesrv:
        master = made(first, tmp_path / "master", namesrv.address, SETTINGS)
        slave = made(second, tmp_path / "slave", namesrv.address, SETTINGS | SLAVE)
        with master, slave, closing(connect(master)) as broker:
            kit.ok(kit.create_topic(broker, TOPIC, read=1, write=1))
            times = send_all(broker)
            # RocketMQ delivers again what was delivered since its copy of the checkpoint: it has to
            # have copied that of the first part. Ours finds the rest in its log.
            enough = EACH if second == "real" else EACH // 2
            kit.eventually(lambda: kit.max_offset(broker, TOPIC) >= enough, timeout=WAIT_S)
            with closing(connect(slave)) as copy:
                kit.eventually(lambda: kit.max_offset(copy, TOPIC) >= enough, timeout=WAIT_S)
                kit.eventually(
                    lambda: (
                        kit.max_offset(copy, timer_kit.TIMER_TOPIC) == 2 * EACH + RECALLED
                        and kit.topic_config(copy, TOPIC)
                    ),
                    timeout=WAIT_S,
                )
                if second == "real":
                    kit.eventually(lambda: passed_ms(copy) > times[EACH - 1], timeout=WAIT_S)
            slave.stop()
            master.kill()
        promoted = made(second, tmp_path / "slave", namesrv.address, SETTINGS)
        with promoted, closing(connect(promoted)) as broker:
            kept = 2 * EACH - RECALLED
            kit.eventually(lambda: kit.max_offset(broker, TOPIC) >= kept, timeout=WAIT_S)
            if (
                second == "comet"
            ):  # RocketMQ's slave goes on counting with the numbers of its master
                kit.eventually(lambda: timer_kit.waiting_count(broker, TOPIC) == 0, timeout=WAIT_S)
            found = kit.read_queue(broker, "readers", TOPIC, kit.max_offset(broker, TOPIC))
    bodies = Counter(int(message.body) for message in found)
    assert bodies == Counter(set(range(2 * EACH)) - set(range(EACH, EACH + RECALLED)))
