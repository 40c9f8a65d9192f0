"""AsyncAPI documents."""

from __future__ import annotations

import json

import pytest
from faststream.security import SASLPlaintext

from cometmq.faststream import RocketAsyncAPI, RocketBroker


def _documented() -> RocketBroker:
    broker = RocketBroker("ns-1:9876;ns-2:9876", group="shop", security=SASLPlaintext("k", "s"))

    @broker.subscriber("orders", tags="paid", ordered=True)
    @broker.publisher("invoices", tags="new")
    async def bill(body: dict[str, int]) -> int:
        return 1

    return broker


@pytest.mark.parametrize("version", ["3.0.0", "2.6.0"])
def test_a_document_has_rocketmqs_settings(version: str) -> None:
    document = RocketAsyncAPI(_documented(), schema_version=version).to_specification()
    found = document.to_jsonable()
    assert json.loads(document.to_json()) == found
    assert "x-rocketmq" in document.to_yaml()
    settings = [channel["x-rocketmq"] for channel in found["channels"].values()]
    assert {
        "topic": "orders",
        "group": "shop-orders-bill",
        "tags": "paid",
        "ordered": True,
    } in settings
    assert {"topic": "invoices", "tags": "new"} in settings
    assert all(server["protocol"] == "rocketmq" for server in found["servers"].values())
