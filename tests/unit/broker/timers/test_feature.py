"""The index of timer messages is made when it is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.broker.delay.feature import DelayFeature
from cometmq.broker.durability.feature import DurabilityFeature
from cometmq.broker.timers.feature import TimersFeature
from cometmq.model.topic import TIMER_TOPIC
from support.stores.small_stores import put
from unit.broker.conftest import Tables, open_store


async def test_an_index_that_the_disk_refuses_is_tried_again_and_its_messages_are_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tables = Tables(tmp_path / "config")
    store = open_store(tmp_path / "store", tables)
    try:
        core = tables.core(store)
        durability = DurabilityFeature(core)
        feature = TimersFeature(core, durability, DelayFeature(core, durability))
        refused = tmp_path / "store" / "config" / "timercheck"
        refused.mkdir(parents=True)
        put(store, b"x", topic=TIMER_TOPIC)

        for call in (feature.arrived, feature._sample, feature._sample):
            call()

        assert feature.delivery.made() is None
        assert feature.figures().queue_behind == 1
        [line] = [each.getMessage() for each in caplog.records]
        assert line.startswith("timer messages wait, retrying for=the index error=cannot read ")
        assert str(refused) in line

        refused.rmdir()
        feature._sample()
        assert feature.delivery.made() is not None
        assert feature.figures().queue_behind == 1
        feature.save()
    finally:
        store.abandon()
