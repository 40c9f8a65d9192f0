"""Scheduled messages in one store: our broker, then RocketMQ's, then ours again deliver them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import kit
import pytest
from servers import CometStandalone, RealBroker, RealNameServer, Settings

from cometmq.store.config_files import JsonFile
from cometmq.system.files import Files
from support.stores.scheduled_messages import Wire, frames_of

SETTINGS: Settings = {
    "messageDelayLevel": "1s 15s",
    "waitTimeMillsInSendQueue": 60_000,
    "mappedFileSizeCommitLog": 4 * 1024 * 1024,  # RocketMQ refuses log files of another size
}
TOPIC, QUEUES, EACH = "later", 2, 50
"""Messages of each level."""
WAIT_S = 120.0


def address_of(broker: CometStandalone | RealBroker) -> tuple[str, int]:
    return "127.0.0.1", int(broker.address.rpartition(":")[2])


def delivered(broker: CometStandalone | RealBroker) -> int:
    with closing(Wire(address_of(broker))) as wire:
        return wire.delivered(TOPIC, QUEUES)


def stored(store: Path) -> dict[str, Any]:
    """The file of offsets; empty before it exists."""
    return JsonFile(store / "config" / "delayOffset.json", Files()).load() or {}


def first_level_is_stored(store: Path) -> bool:
    content = stored(store)
    return content.get("offsetTable") == {"1": EACH} and "logOffset" in content


@pytest.mark.parametrize("version", [pytest.param("4.9.7", marks=pytest.mark.long), "5.3.3"])
def test_each_scheduled_message_is_delivered_once_by_one_of_two_brokers(
    version: str, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    shared = {"store": store, "settings": SETTINGS}
    with (
        RealNameServer(version, tmp_path / "namesrv") as namesrv,
        CometStandalone(tmp_path / "comet", **shared) as comet,
    ):
        with closing(Wire(address_of(comet))) as wire:
            wire.create_topic(TOPIC, QUEUES)
            wire.send(frames_of(TOPIC, range(2 * EACH), queues=QUEUES, levels=2))
        kit.eventually(lambda: first_level_is_stored(store), timeout=WAIT_S)
        comet.kill()

        with RealBroker(version, tmp_path / "real", namesrv.address, **shared) as real:
            kit.eventually(lambda: delivered(real) >= 2 * EACH, timeout=WAIT_S)
            real.stop()
        assert stored(store)["offsetTable"] == {"1": EACH, "2": EACH}
        assert "logOffset" not in stored(store)

        comet.start()
        with closing(Wire(address_of(comet))) as wire:
            assert wire.waiting() == 0
            assert wire.delivered(TOPIC, QUEUES) == 2 * EACH
