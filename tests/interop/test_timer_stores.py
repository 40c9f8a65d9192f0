"""Timer messages in a store of our broker, then of RocketMQ's, stopped or killed, then of ours."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import kit
import timer_kit
from servers import CometStandalone, RealBroker, RealNameServer, Settings
from wire import Connection

from cometmq.store import MessageStore, StoreSettings
from cometmq.store.timers.checkpoint import decode_checkpoint
from support.stores.small_stores import all_messages

LOG_FILE_BYTES = 4 * 1024 * 1024
SETTINGS: Settings = {
    "waitTimeMillsInSendQueue": 60_000,
    "mappedFileSizeCommitLog": LOG_FILE_BYTES,  # RocketMQ refuses log files of another size
    "timerWheelEnable": "true",
    "recallMessageEnable": "true",
}
VERSION = "5.3.3"
TOPIC = "later"
EACH = 30
WAIT_S = 120.0

Broker = CometStandalone | RealBroker


def connected(broker: Broker) -> Connection:
    return Connection(("127.0.0.1", int(broker.address.rpartition(":")[2])), timeout=30.0)


def send(broker: Broker, begin: int, after_s: float, *, recalls: int = 0) -> float:
    """Send messages that are due soon, some of which are recalled; return when all are due."""
    now_ms = int(time.time() * 1000)
    with closing(connected(broker)) as wire:
        handles = []
        for number in range(begin, begin + EACH):
            due_ms = now_ms + int(after_s * 1000) + (number - begin) * 100
            properties = {"UNIQ_KEY": f"{number:032X}"}
            answer = timer_kit.timed(
                wire, TOPIC, b"%d" % number, deliver=due_ms, properties=properties
            )
            handles.append(kit.ok(answer).fields["recallHandle"])
        for handle in handles[:recalls]:
            kit.ok(timer_kit.recall(wire, TOPIC, handle))
        kit.eventually(lambda: timer_kit.waiting_count(wire, TOPIC) > 0, timeout=WAIT_S)
    return now_ms / 1000 + after_s + EACH / 10


def delivered(broker: Broker) -> int:
    with closing(connected(broker)) as wire:
        return kit.max_offset(wire, TOPIC)


def delivered_properties(broker: Broker) -> list[dict[str, str]]:
    with closing(connected(broker)) as wire:
        found = kit.read_queue(wire, "readers", TOPIC, kit.max_offset(wire, TOPIC))
    return [message.properties for message in found]


def accounts_in(folder: Path) -> Settings:
    """Return the settings of access control that lets every request of this machine pass."""
    path = folder / "home" / "conf" / "plain_acl.yml"
    path.parent.mkdir(parents=True)
    path.write_text("globalWhiteRemoteAddresses: [127.0.0.1]\naccounts: []\n")
    path.chmod(0o600)
    return {"aclEnable": True, "rocketmqHome": str(folder / "home")}


def stored_bodies(root: Path) -> Counter[int]:
    """Return the messages of a closed store, and how often each is there."""
    store = MessageStore(StoreSettings(root=root, commit_log_file_bytes=LOG_FILE_BYTES))
    store.open()
    try:
        return Counter(int(message.body) for message in all_messages(store, TOPIC))
    finally:
        store.close()


def test_timer_messages_are_delivered_once_by_one_of_two_brokers(tmp_path: Path) -> None:
    store = tmp_path / "store"
    shared = {"store": store, "settings": SETTINGS}
    guarded = SETTINGS | accounts_in(tmp_path)
    with (
        RealNameServer(VERSION, tmp_path / "namesrv") as namesrv,
        CometStandalone(tmp_path / "comet", store=store, settings=guarded) as comet,
    ):
        with closing(connected(comet)) as wire:
            kit.create_topic(wire, TOPIC, read=1, write=1)
        send(comet, 0, 2.0)
        send(comet, EACH, 40.0, recalls=3)
        kit.eventually(lambda: delivered(comet) >= EACH, timeout=WAIT_S)
        comet.stop()

        with RealBroker(VERSION, tmp_path / "real", namesrv.address, **shared) as real:
            kit.eventually(lambda: delivered(real) >= 2 * EACH - 3, timeout=WAIT_S)
            # RocketMQ keeps the account that has sent a message; our broker has removed it.
            accounts = [properties.get("TIMER_SENDER") for properties in delivered_properties(real)]
            assert accounts == [None] * EACH + ["-"] * (EACH - 3)
            send(real, 2 * EACH, 2.0)
            send(real, 3 * EACH, 30.0, recalls=3)
            kit.eventually(lambda: delivered(real) >= 3 * EACH - 3, timeout=WAIT_S)
            real.stop()
        checkpoint = decode_checkpoint((store / "config" / "timercheck").read_bytes())
        assert checkpoint.precision_ms == 0, "RocketMQ wrote it last"

        comet.start()
        kit.eventually(lambda: delivered(comet) >= 4 * EACH - 6, timeout=WAIT_S)
        with closing(connected(comet)) as wire:
            kit.eventually(lambda: timer_kit.waiting_count(wire, TOPIC) == 0, timeout=WAIT_S)
        comet.stop()

    recalled = {*range(EACH, EACH + 3), *range(3 * EACH, 3 * EACH + 3)}
    assert stored_bodies(store) == Counter(set(range(4 * EACH)) - recalled)


def test_the_store_of_a_killed_broker_of_rocketmq_delivers_the_rest_once(tmp_path: Path) -> None:
    store = tmp_path / "store"
    shared = {"store": store, "settings": SETTINGS}
    kept = 2 * EACH - 3
    with RealNameServer(VERSION, tmp_path / "namesrv") as namesrv:
        with RealBroker(VERSION, tmp_path / "real", namesrv.address, **shared) as real:
            with closing(connected(real)) as wire:
                kit.create_topic(wire, TOPIC, read=1, write=1)
            send(real, 0, 4.0)
            send(real, EACH, 12.0, recalls=3)
            kit.eventually(lambda: delivered(real) >= EACH // 3, timeout=WAIT_S)
            real.kill()
        with CometStandalone(tmp_path / "comet", **shared) as comet:
            kit.eventually(lambda: delivered(comet) >= kept, timeout=WAIT_S)
            with closing(connected(comet)) as wire:
                kit.eventually(lambda: timer_kit.waiting_count(wire, TOPIC) == 0, timeout=WAIT_S)
            comet.stop()
    assert stored_bodies(store) == Counter(set(range(2 * EACH)) - set(range(EACH, EACH + 3)))
