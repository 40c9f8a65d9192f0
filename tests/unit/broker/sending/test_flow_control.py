"""When sends are refused because the store cannot keep up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cometmq.broker.role import SLAVE, Role
from cometmq.broker.sending.flow_control import MEASURE_INTERVAL_S, FlowControl, FlowLimits
from cometmq.model.errors import ResponseError
from support.checks.manual_clock import ManualClock

LIMITS = FlowLimits(waiting_max=10, append_ms_max=1000, lag_ms_max=200)


class World:
    """Flow control with everything it watches."""

    def __init__(self, limits: FlowLimits = LIMITS) -> None:
        self.clock = ManualClock()
        self.limits = limits
        self.role = Role()
        self.flow = FlowControl(lambda: self.limits, clock=self.clock, role=self.role)
        self.role.on_change(self.flow.role_changed)
        self.clock.advance(60_000)  # a start takes its time
        self.flow.measure()

    def wait(self, sends: int) -> None:
        for _ in range(sends):
            self.flow.waiting += 1

    def look(self, late_ms: int = 0) -> ResponseError | None:
        self.clock.advance(round(MEASURE_INTERVAL_S * 1000) + late_ms)
        self.flow.measure()
        return self.flow.refusal()


def refused(refusal: ResponseError | None) -> str:
    assert refusal is not None
    assert refusal.code == 2
    return refusal.remark


def test_nothing_is_refused_when_all_is_well() -> None:
    world = World()

    assert world.flow.refusal() is None
    assert world.look() is None


def test_sends_are_refused_when_too_many_wait_for_the_disk() -> None:
    world = World()
    world.wait(9)
    assert world.flow.refusal() is None

    world.wait(1)
    assert refused(world.flow.refusal()) == (
        "[OVERLOAD]system busy, start flow control for a while"
    )

    world.flow.waiting -= 1
    assert world.flow.refusal() is None


def test_a_stuck_append_refuses_until_the_next_looks() -> None:
    world = World()
    world.wait(3)
    world.flow.append_took(1500)

    assert refused(world.flow.refusal()) == (
        "[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while,"
        " period in queue: 1500ms, size of queue: 3"
    )
    assert world.look() is not None
    assert world.look() is None


def test_a_slow_append_within_the_limit_refuses_nothing() -> None:
    world = World()
    world.flow.append_took(1000)

    assert world.flow.refusal() is None


@pytest.mark.parametrize("looks", [1, 2])
def test_a_short_pause_of_the_machine_refuses_nothing(looks: int) -> None:
    world = World()

    assert [world.look(late_ms=5000) for _ in range(looks)] == [None] * looks


def test_a_loop_that_stays_late_refuses_until_it_is_in_time() -> None:
    world = World()
    for _ in range(2):
        world.look(late_ms=300)

    assert refused(world.look(late_ms=300)).startswith(
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 300ms"
    )
    assert world.look() is None


def test_slowness_refuses_nothing_when_switched_off() -> None:
    world = World(FlowLimits(waiting_max=10, append_ms_max=1000, lag_ms_max=200, enabled=False))
    world.flow.append_took(60_000)

    assert [world.look(late_ms=5000) for _ in range(5)] == [None] * 5


def test_changed_limits_hold_from_the_next_look() -> None:
    world = World()
    world.limits = FlowLimits(waiting_max=1, append_ms_max=1000, lag_ms_max=200)
    world.wait(1)
    assert world.flow.refusal() is None

    assert refused(world.look()).startswith("[OVERLOAD]")


def test_a_broker_that_stops_refuses_sends_for_good() -> None:
    """With the code that lets producers try another broker, whatever the flow is like."""
    world = World()
    world.flow.stop()
    world.flow.append_took(LIMITS.append_ms_max + 1)
    for _ in range(5):
        refusal = world.look()

    assert refusal is not None
    assert refusal.code == 14
    assert "the broker is stopping" in refusal.remark


def test_a_slave_refuses_all_sends_until_it_becomes_a_master() -> None:
    world = World()
    world.role.change(SLAVE, 1)
    refused = world.look()
    assert refused is not None
    assert (refused.code, "slave" in refused.remark) == (14, True)
    world.flow.append_took(5000)
    assert world.look() is refused
    world.role.change("ASYNC_MASTER", 0)
    assert world.look() is None


def test_a_change_of_the_role_does_not_open_a_stopping_broker() -> None:
    world = World()
    world.flow.stop()
    world.role.change(SLAVE, 1)
    world.role.change("ASYNC_MASTER", 0)
    refused = world.look()
    assert refused is not None
    assert "stopping" in refused.remark


def test_sends_are_refused_while_there_are_too_few_replicas() -> None:
    world = World()
    lack = ResponseError(1, "in-sync replicas not enough")
    world.flow.replicas_changed(lack)
    assert world.flow.refusal() is world.flow.lack_of_replicas is lack
    assert world.look() is lack
    world.role.change(SLAVE, 1)
    refusal = world.flow.refusal()
    assert refusal is not None
    assert refusal.code == 14
    world.role.change("SYNC_MASTER", 0)
    assert world.flow.refusal() is lack
    world.flow.replicas_changed(None)
    assert world.flow.refusal() is None
    world.flow.stop()
    world.flow.replicas_changed(lack)
    refusal = world.flow.refusal()
    assert refusal is not None
    assert refusal.code == 14


@pytest.mark.parametrize(("logged_ms", "count"), [(0, 0), (5_000, 0), (1_000, 1)])
def test_a_loop_that_was_blocked_for_long_is_logged(
    caplog: pytest.LogCaptureFixture, logged_ms: int, count: int
) -> None:
    world = World()
    world.flow.late_ms_logged = logged_ms

    world.look(late_ms=2_000)

    expected = ["the event loop was blocked: all requests waited ms=2000"]
    assert caplog.messages == expected * count


def close_as_slave(world: World) -> None:
    world.role.change(SLAVE, 1)


def close_for_lack_of_replicas(world: World) -> None:
    world.flow.replicas_changed(ResponseError(1, "in-sync replicas not enough"))


@pytest.mark.parametrize("close", [close_as_slave, close_for_lack_of_replicas])
def test_a_time_in_which_sends_were_refused_is_no_time_in_which_the_loop_was_blocked(
    caplog: pytest.LogCaptureFixture, close: Callable[[World], None]
) -> None:
    world = World()
    world.flow.late_ms_logged = 1_000
    close(world)
    for _ in range(50):
        world.look()
    world.role.change("ASYNC_MASTER", 0)
    world.flow.replicas_changed(None)
    assert world.look() is None
    assert caplog.messages == []


def test_a_blocked_loop_of_a_slave_is_logged_and_refuses_no_send_of_the_next_master(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.flow.late_ms_logged = 1_000
    close_as_slave(world)
    for _ in range(5):
        world.look(late_ms=2_000)
    world.role.change("ASYNC_MASTER", 0)
    assert world.look() is None
    assert caplog.messages == ["the event loop was blocked: all requests waited ms=2000"] * 5
