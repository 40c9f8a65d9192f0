"""AsyncAPI documents."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from faststream.security import SASLPlaintext
from jsonschema import Draft7Validator  # type: ignore[import-untyped]

from cometmq.faststream import RocketAsyncAPI, RocketBroker, RocketRouter


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


def _with_everything() -> RocketBroker:
    broker = _documented()
    router = RocketRouter("eu-")

    @router.subscriber("returns", pop=True, invisible=5)
    async def take_back(body: str) -> None: ...

    @broker.subscriber("prices", sql="amount > 5", batch=True, max_records=8, max_workers=4)
    async def note_prices(body: list[int]) -> None: ...

    @broker.subscriber("news", broadcast=True, title="News", description="To every process.")
    async def show(body: dict[str, str]) -> None: ...

    for number in range(8):
        broker.publisher(f"part-{number}", key="k", batch=True, schema=int)
        broker.subscriber(f"part-{number}", group=f"reader-{number}")(show)
    broker.include_router(router)
    return broker


@pytest.mark.parametrize("version", ["3.0.0", "2.6.0"])
def test_documents_are_valid_by_the_schemas_of_asyncapi(version: str) -> None:
    packed = Path(__file__).parent / "asyncapi" / f"{version}.json.gz"
    validator = Draft7Validator(json.loads(gzip.decompress(packed.read_bytes())))
    specification = RocketAsyncAPI(_with_everything(), schema_version=version)
    document = specification.to_specification().to_jsonable()
    assert [error.message for error in validator.iter_errors(document)] == []
    channel = next(iter(document["channels"].values()))
    channel["rocketmq"] = channel["x-rocketmq"]
    assert not validator.is_valid(document), "the schema refuses names that are no extensions"


@pytest.mark.parametrize("version", ["3.0.0", "2.6.0"])
def test_channels_are_in_the_order_of_their_declarations(version: str) -> None:
    specification = RocketAsyncAPI(_with_everything(), schema_version=version)
    channels = specification.to_specification().to_jsonable()["channels"].values()
    topics = [channel["x-rocketmq"]["topic"] for channel in channels]
    parts = [f"part-{number}" for number in range(8)]
    assert topics == ["orders", "eu-returns", "prices", "news", *parts, "invoices", *parts]
