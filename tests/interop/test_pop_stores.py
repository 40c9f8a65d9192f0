"""What is in flight in one store: popped from one broker, ours or 5.3.3, redelivered by another."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import kit
import pop_kit
from servers import CometStandalone, RealBroker, RealNameServer, Settings
from wire import Connection

SETTINGS: Settings = {
    "brokerName": "broker-a",
    "waitTimeMillsInSendQueue": 60_000,
    "mappedFileSizeCommitLog": 4 * 1024 * 1024,  # RocketMQ refuses log files of another size
}
VERSION = "5.3.3"
TOPIC, GROUP = "tickets", "counter"
LONG_MS, SHORT_MS = 3_600_000, 20_000
WAIT_S = 120.0


def connect(broker: CometStandalone | RealBroker) -> Connection:
    return Connection(("127.0.0.1", int(broker.address.rpartition(":")[2])), timeout=WAIT_S)


def test_what_our_broker_has_popped_is_in_flight_on_rocketmqs_and_on_ours_again(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    with (
        RealNameServer(VERSION, tmp_path / "namesrv") as namesrv,
        CometStandalone(tmp_path / "comet", store=store, settings=SETTINGS) as comet,
    ):
        with closing(connect(comet)) as broker:
            kit.ok(kit.create_topic(broker, TOPIC, read=1, write=1))
            kit.ok(kit.create_group(broker, GROUP))
            kit.store_many(broker, TOPIC, 8)
            kept = pop_kit.pop(broker, GROUP, TOPIC, count=2, invisible_ms=LONG_MS)
            popped = pop_kit.pop(broker, GROUP, TOPIC, count=4, invisible_ms=SHORT_MS)
            assert popped.bodies == [b"2", b"3", b"4", b"5"]
            kit.ok(pop_kit.ack(broker, GROUP, TOPIC, popped.receipts[0]))
        comet.stop()

        real = RealBroker(
            VERSION,
            tmp_path / "real",
            namesrv.address,
            store=store,
            settings=SETTINGS | {"timerWheelEnable": True},
        )
        with real, closing(connect(real)) as broker:
            kit.ok(pop_kit.ack(broker, GROUP, TOPIC, popped.receipts[1]))
            again = pop_kit.collect(broker, GROUP, TOPIC, 4, timeout=WAIT_S, invisible_ms=LONG_MS)
            assert sorted(one.body for one in again) == [b"4", b"5", b"6", b"7"]
            assert {one.record.reconsume_times for one in again if one.body < b"6"} == {1}
            for one in again:
                kit.ok(pop_kit.ack(broker, GROUP, TOPIC, one.receipt))
            real.stop()

        comet.start()
        with closing(connect(comet)) as broker:
            kit.ok(pop_kit.ack(broker, GROUP, TOPIC, kept.receipts[0]))
            kit.ok(pop_kit.change_invisible(broker, GROUP, TOPIC, kept.receipts[1], 1_000))
            last = pop_kit.comes_again(broker, GROUP, TOPIC)
            assert [one.body for one in last] == [b"1"]


def test_what_rocketmqs_broker_has_popped_is_in_flight_on_ours(tmp_path: Path) -> None:
    """Its check points and acknowledgements are timer messages until they are due."""
    store = tmp_path / "store"
    with (
        RealNameServer(VERSION, tmp_path / "namesrv") as namesrv,
        RealBroker(
            VERSION,
            tmp_path / "real",
            namesrv.address,
            store=store,
            settings=SETTINGS | {"timerWheelEnable": True},
        ) as real,
    ):
        with closing(connect(real)) as broker:
            kit.ok(kit.create_topic(broker, TOPIC, read=1, write=1))
            kit.ok(kit.create_group(broker, GROUP))
            kit.store_many(broker, TOPIC, 5)
            popped = pop_kit.pop(broker, GROUP, TOPIC, count=4, invisible_ms=SHORT_MS)
            assert popped.bodies == [b"0", b"1", b"2", b"3"]
            kit.ok(pop_kit.ack(broker, GROUP, TOPIC, popped.receipts[0]))
        real.stop()

    with (
        CometStandalone(tmp_path / "comet", store=store, settings=SETTINGS) as comet,
        closing(connect(comet)) as broker,
    ):
        kit.ok(pop_kit.ack(broker, GROUP, TOPIC, popped.receipts[1]))
        again = pop_kit.collect(broker, GROUP, TOPIC, 3, timeout=WAIT_S, invisible_ms=LONG_MS)
        assert sorted(one.body for one in again) == [b"2", b"3", b"4"]
        assert pop_kit.pop(broker, GROUP, TOPIC).taken == []
