"""Extension units of consume queues as the real store writes them."""

from __future__ import annotations

import pytest

from cometmq.store.queues.consume_queue_ext import (
    ADDRESS_MAX,
    ExtUnit,
    address_of,
    is_address,
    real_offset_of,
)
from golden.recordings import VERSIONS, values

for_each_version = pytest.mark.parametrize("version", VERSIONS)


@for_each_version
def test_extension_units_are_equal_byte_for_byte(version: str) -> None:
    for case in values(version, "cq_ext")["units"]:
        bitmap = bytes.fromhex(case["bitmap_hex"] or "")
        unit = ExtUnit(case["tags_code"], case["store_time"], bitmap)

        assert unit.encode().hex() == case["hex"]
        assert len(unit.encode()) == case["size"]


@for_each_version
def test_addresses_of_extension_units(version: str) -> None:
    recorded = values(version, "cq_ext")
    for case in recorded["addresses"]:
        assert is_address(case["address"]) == case["is_ext"]
        if "real_offset" in case:
            assert address_of(case["real_offset"]) == case["address"]
            assert real_offset_of(case["address"]) == case["back"]
    assert recorded["max_addr"] == ADDRESS_MAX
    assert address_of(recorded["max_real_offset"]) == ADDRESS_MAX
