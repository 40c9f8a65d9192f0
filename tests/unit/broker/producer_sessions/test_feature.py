"""The producer sessions of a broker are made when they are needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.broker.durability.feature import DurabilityFeature
from cometmq.broker.producer_sessions.feature import ProducerSessionsFeature
from cometmq.model.topic import PRODUCER_SESSION_QUEUE, PRODUCER_SESSION_TOPIC
from support.stores.small_stores import put
from unit.broker.conftest import Tables, open_store


@pytest.mark.parametrize("has_records", [False, True])
async def test_sessions_are_maintained_if_the_log_has_some(
    tmp_path: Path, has_records: bool
) -> None:
    tables = Tables(tmp_path / "config")
    store = open_store(tmp_path / "store", tables)
    try:
        feature = ProducerSessionsFeature(tables.core(store), DurabilityFeature(tables.core(store)))
        if has_records:
            put(store, b"damaged", topic=PRODUCER_SESSION_TOPIC, queue_id=PRODUCER_SESSION_QUEUE)
        feature.role_changed()
        await feature._maintain()

        assert (feature.sessions.made() is not None) == has_records
    finally:
        store.abandon()
