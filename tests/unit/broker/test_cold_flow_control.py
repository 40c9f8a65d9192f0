"""Limits of cold reads: of all pulls and of each group, and the requests about them."""

from __future__ import annotations

import json

import pytest

from cometmq.broker.cold_flow_control import (
    DELAY_S_MAX,
    GROUPS_MAX,
    IDLE_S,
    LIMIT_S,
    ColdFlowControl,
    Limits,
    limits_of,
)
from cometmq.broker.config import BrokerSettings
from cometmq.broker.maintenance.cold_handler import ColdReadsHandler
from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.remoting import Request, Response
from cometmq.store.config import StoreSettings
from cometmq.system.configuration import Configuration
from support.checks.manual_clock import ManualClock
from support.wire.memory_link import link
from support.wire.recorded import answers

GROUP, TOGETHER = 1_000, 10_000


class Requests:
    """A broker with flow control, as far as requests about it need one."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.configuration = Configuration((BrokerSettings, StoreSettings))
        self.configuration.set({"coldDataFlowControlEnable": "true"})
        settings = self.configuration.reader_of(BrokerSettings)
        self.flow = ColdFlowControl(lambda: limits_of(settings()))
        self.handler = ColdReadsHandler(self.flow, self.configuration, settings, self.clock)
        self.connection, _ = link()

    def request(self, code: int, body: bytes = b"", **fields: str) -> Request:
        return Request(Command(code, body=body, fields=fields), self.connection)

    async def set_limits(self, body: bytes) -> Response:
        request = self.request(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, body)
        return await self.handler.set_limits(request)

    def remove_limit(self, group: str) -> Response:
        code = RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG
        return self.handler.remove_limit(self.request(code, group.encode()))

    def shown(self) -> dict[str, object]:
        response = self.handler.show(self.request(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO))
        assert isinstance(response.body, bytes)
        table: dict[str, object] = json.loads(response.body)
        return table

    def set_read_ahead(self, mode: int) -> Response:
        code = RequestCode.SET_COMMITLOG_READ_MODE
        return self.handler.set_read_ahead(self.request(code, READ_AHEAD_MODE=str(mode)))


def limited() -> ColdFlowControl:
    return ColdFlowControl(lambda: Limits(TOGETHER, GROUP))


def test_a_group_waits_for_what_it_has_read_and_others_do_not() -> None:
    flow = limited()

    assert flow.admit("a", GROUP, 0.0) == 0.0
    assert flow.admit("a", 100, 0.0) == LIMIT_S
    assert flow.admit("b", 100, 0.0) < LIMIT_S / 5


def test_a_group_beyond_its_limit_is_refused_and_counts_for_nobody() -> None:
    flow = limited()
    flow.admit("a", 2 * GROUP, 0.0)

    with pytest.raises(ResponseError, match="of group a are limited to 1000 bytes") as refused:
        flow.admit("a", 100, 0.0)

    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    assert flow.bytes_together() == 2 * GROUP
    assert flow.admit("a", 100, 2 * LIMIT_S - DELAY_S_MAX + 0.01) == pytest.approx(4.99)


def test_the_limit_of_all_pulls_counts_for_each_group() -> None:
    flow = ColdFlowControl(lambda: Limits(GROUP, TOGETHER))
    flow.admit("a", 2 * GROUP, 0.0)

    with pytest.raises(ResponseError, match="cold reads are limited to 1000 bytes"):
        flow.admit("b", 1, 0.0)


@pytest.mark.parametrize("group", ["CID_RMQ_SYS_x", "TOOLS_CONSUMER"])
def test_groups_of_the_system_have_no_limit_of_their_own(group: str) -> None:
    flow = limited()
    assert flow.admit(group, GROUP, 0.0) == 0.0
    assert flow.admit(group, 1, 0.0) < LIMIT_S


def test_a_group_may_have_its_own_limit() -> None:
    flow = limited()
    flow.set_limits({"a": 2 * GROUP})
    flow.admit("a", GROUP // 2, 0.0)
    assert flow.admit("a", 0, 0.0) == LIMIT_S / 4

    flow.remove_limit("a")
    flow.remove_limit("unknown")
    assert flow.admit("a", 0, 0.0) == LIMIT_S / 2


def test_groups_that_read_no_more_are_forgotten_and_their_number_has_a_bound() -> None:
    flow = limited()
    for number in range(GROUPS_MAX + 5):
        flow.admit(f"g{number}", 0, 1.0)
    assert len(flow.groups(1.0)) == GROUPS_MAX

    limits = {f"g{number}": 1 for number in range(GROUPS_MAX)}
    flow.set_limits(limits)
    with pytest.raises(ResponseError, match=f"at most {GROUPS_MAX}"):
        flow.set_limits({"g1": 2, "one more": 1})
    assert flow.own_limits == limits

    flow.admit("late", 0, 2.0 + IDLE_S)

    assert list(flow.groups(2.0 + IDLE_S)) == ["late"]


async def test_requests_set_show_and_remove_limits() -> None:
    broker = Requests()
    (recorded,) = answers("5.3.3", "mqadmin", "GET_COLD_DATA_FLOW_CTR_INFO")
    assert broker.shown() == json.loads(recorded.body)

    await broker.set_limits(b"scene-group=2048\nother=1\n")
    broker.clock.advance(1_000)
    broker.flow.admit("scene-group", 1_024, broker.clock.monotonic())
    broker.clock.advance(500)
    shown = broker.shown()

    now_ms = broker.clock.now_ms()
    times = {"createTimeMills": now_ms - 500, "lastColdReadTimeMills": now_ms - 500}
    assert shown["configTable"] == {"scene-group": 2_048, "other": 1}
    assert shown["runtimeTable"] == {"scene-group": {"coldAcc": 1_024, **times}}
    assert shown["globalAcc"] == 1_024

    broker.remove_limit("scene-group")
    assert broker.shown()["configTable"] == {"other": 1}


@pytest.mark.parametrize("value", ["0", "-1", "x", "", "1.5", str(2**63), "9" * 400])
async def test_a_limit_that_is_none_is_refused_and_nothing_is_set(value: str) -> None:
    broker = Requests()
    with pytest.raises(ResponseError, match="expected 1 to") as refused:
        await broker.set_limits(f"good=1\nbad={value}\n".encode())
    assert refused.value.code == ResponseCode.INVALID_PARAMETER
    assert broker.shown()["configTable"] == {}


@pytest.mark.parametrize("group", ["x" * 256, "x" * 100_000])
async def test_what_cannot_be_a_group_is_refused(group: str) -> None:
    broker = Requests()
    with pytest.raises(ResponseError, match="expected 1 to 255") as of_setting:
        await broker.set_limits(f"{group}=1".encode())
    with pytest.raises(ResponseError, match="expected 1 to 255") as of_removing:
        broker.remove_limit(group)
    assert of_setting.value.code == of_removing.value.code == ResponseCode.INVALID_PARAMETER


async def test_reading_ahead_is_switched_off_and_on() -> None:
    broker = Requests()
    modes = []
    for mode in (1, 0):
        response = broker.set_read_ahead(mode)
        assert response.remark == f"set commitlog readahead mode success, mode: {mode}"
        modes.append(broker.configuration[StoreSettings].read_ahead)
    assert modes == [False, True]

    with pytest.raises(ResponseError, match="param value error") as refused:
        broker.set_read_ahead(7)
    assert refused.value.code == ResponseCode.INVALID_PARAMETER
