"""The life of features of which one fails: the others are called all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from cometmq.broker.cold_reads import ColdReads
from cometmq.broker.life import BrokerFeature, Life
from cometmq.model.errors import StoreError
from cometmq.remoting import Connection

STEPS = ["refuse", "end", "drain", "leave", "close"]


class Fragile(BrokerFeature):
    """Fails in one hook, and notes all that are called."""

    def __init__(self, fails_in: str = "") -> None:
        self._fails_in = fails_in
        self.called: list[str] = []

    def _call(self, hook: str) -> None:
        self.called.append(hook)
        if hook == self._fails_in:
            raise StoreError("the disk refuses")

    def role_changed(self) -> None:
        self._call("role_changed")

    async def before_sends(self) -> None:
        self._call("before_sends")

    async def take_over(self) -> None:
        self._call("take_over")

    async def settings_changed(self, changes: Mapping[str, str]) -> None:
        self._call("settings_changed")

    def connection_closed(self, connection: Connection) -> None:
        self._call("connection_closed")

    def refuse(self) -> None:
        self._call("refuse")

    async def end(self) -> None:
        self._call("end")

    async def drain(self) -> None:
        self._call("drain")

    async def leave(self) -> None:
        self._call("leave")

    async def close(self) -> None:
        self._call("close")

    def save(self) -> None:
        self._call("save")


class Outside:
    """The ports, or what follows the role."""

    is_accepting = is_open = True

    def stop_accepting(self) -> None:
        self.is_accepting = False

    async def stop(self) -> None:
        self.is_open = False


def some(fails_in: str) -> list[Fragile]:
    return [Fragile(), Fragile(fails_in), Fragile()]


def cold_reads() -> ColdReads:
    return ColdReads(None, lambda: False)


async def stop(life: Life, ports: Outside) -> None:
    reads = cold_reads()
    try:
        await life.stop(ports, Outside(), reads)
    finally:
        reads.close()
        reads.join()


@pytest.mark.parametrize("step", STEPS)
async def test_a_step_of_the_stop_that_fails_skips_none_behind_it(step: str) -> None:
    """Else threads, ports and the role of a master would stay."""
    features, ports = some(step), Outside()
    await stop(Life(features), ports)
    assert [feature.called for feature in features] == [STEPS] * 3
    assert not ports.is_accepting
    assert not ports.is_open


async def test_a_stop_that_is_cancelled_ends_at_once() -> None:
    class Slow(Fragile):
        async def end(self) -> None:
            began.set()
            await asyncio.Event().wait()

    began, behind = asyncio.Event(), Fragile()
    stopping = asyncio.ensure_future(stop(Life([behind, Slow()]), Outside()))
    await began.wait()
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert behind.called == ["refuse"]


@pytest.mark.parametrize(
    ("hook", "call"),
    [
        ("role_changed", lambda life: life.role_changed()),
        ("connection_closed", lambda life: life.connection_closed(None)),
        ("save", lambda life: life.save()),
    ],
)
def test_what_happens_is_told_to_all_features(hook: str, call: Callable[[Life], object]) -> None:
    features = some(hook)
    call(Life(features))
    assert [feature.called for feature in features] == [[hook]] * 3


async def test_a_new_master_takes_over_what_it_can() -> None:
    """Transactions would be refused until the restart if the delivery could not be started."""
    features = some("take_over")
    await Life(features).take_over()
    assert [feature.called for feature in features] == [["take_over"]] * 3


async def test_changed_settings_are_in_force_everywhere_though_a_file_cannot_be_written() -> None:
    """The request fails, and the settings are changed nevertheless."""
    features = some("settings_changed")
    with pytest.raises(StoreError, match="the disk refuses"):
        await Life(features).settings_changed({"brokerPermission": "4"})
    assert [feature.called for feature in features] == [["settings_changed"]] * 3


async def test_a_new_master_that_cannot_correct_what_it_has_accepts_no_sends() -> None:
    features = some("before_sends")
    with pytest.raises(StoreError, match="the disk refuses"):
        await Life(features).before_sends()
    assert features[2].called == []
