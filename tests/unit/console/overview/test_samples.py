"""Figures of brokers as states and alarms."""

from __future__ import annotations

from cometmq.console.overview.samples import alarms_of, state_of
from cometmq.model.errors import CometError
from cometmq.protocol.bodies.route import RegisteredBroker

MASTER = RegisteredBroker("c", "a", 0, "127.0.0.1:10911")
SLAVE = RegisteredBroker("c", "b", 1, "127.0.0.1:10921")
FIGURES = {
    "brokerVersionDesc": "V5_3_3",
    "putTps": "12.5 10.0 9.0",
    "getTransferedTps": "3.0 2.0 1.0",  # as 4.9 spells it
    "msgPutTotalTodayNow": "120",
    "msgPutTotalTodayMorning": "20",
    "msgGetTotalTodayNow": "30",
    "msgGetTotalTodayMorning": "10",
    "commitLogDiskRatio": "0.5",
    "earliestMessageTimeStamp": "-1",
}


def test_the_state_of_a_broker_is_made_of_its_figures() -> None:
    state = state_of(MASTER, FIGURES)
    assert (state.role, state.version, state.error) == ("master", "V5_3_3", "")
    assert (state.in_per_s, state.out_per_s) == (12.5, 3.0)
    assert (state.in_today, state.out_today, state.disk_ratio) == (100, 20, 0.5)
    assert alarms_of([state]) == []


def test_figures_that_are_no_numbers_are_left_out() -> None:
    state = state_of(
        SLAVE,
        {
            "putTps": "much", "commitLogDiskRatio": "nan", "msgPutTotalTodayNow": "",
            "earliestMessageTimeStamp": "9" * 5_000,
        },
    )  # fmt: skip
    assert (state.role, state.in_per_s, state.disk_ratio) == ("slave", None, None)
    assert state.oldest_time_ms is None


def test_alarms_name_the_broker_and_what_to_do() -> None:
    wait = {"sendThreadPoolQueueHeadWaitTimeMills": "350"}
    full = state_of(MASTER, FIGURES | {"commitLogDiskRatio": "0.91"} | wait)
    silent = state_of(SLAVE, CometError("no response from 127.0.0.1:10921"))
    assert alarms_of([full, silent]) == [
        "b 1 (127.0.0.1:10921) does not respond: no response from 127.0.0.1:10921",
        "a 0: the disk is 91% full, expected less than 85%: make room, or keep messages for a"
        " shorter time",
        "a 0 is overloaded: a send waits 350 ms in its queue, expected less than 200: send less, or"
        " add brokers",
        "b has no master: nothing can be sent to it",
    ]
    assert alarms_of([]) == ["0 brokers registered with the name servers"]
