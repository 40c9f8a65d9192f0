"""Open transactions in one store: brokers of both kinds continue them.

A number says what becomes of its transaction, and on which broker: the first one commits it or
rolls it back, or it stays open there and is put back by checks; the next brokers check it, and then
the producer decides. In the end each message that was committed is there, exactly once where our
broker has committed it, and no other. A broker of RocketMQ commits again what it checks again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import kit
import pytest
from codes import MessageFlag, Request
from servers import (
    SMALL_FILES,
    CometStandalone,
    RealBroker,
    Server,
    Settings,
    connect,
)
from wire import Command, Connection, NoAnswerError, decode_message_id

TOPIC, GROUP, CHECKS_GROUP = "orders", "order-desk", "CID_RMQ_SYS_TRANS"
HALF_TOPIC = kit.HALF_TOPIC
EACH = 6
"""Transactions of each fate on each broker."""
SETTINGS: Settings = SMALL_FILES | {
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 1000,
    "transactionCheckMax": 1000,
}
COMMIT, ROLLBACK = MessageFlag.COMMITTED, MessageFlag.ROLLED_BACK
DONE_S, CHECKED_S = 120.0, 60.0


@dataclass(frozen=True)
class Fate:
    """What becomes of a transaction."""

    decision: int
    broker: int
    """The broker that gets the decision, counted from the one that got the half message."""


FATES = [Fate(decision, broker) for broker in range(3) for decision in (COMMIT, ROLLBACK)]


@dataclass
class Producers:
    """The producers of the group, over all brokers that the store has."""

    fates: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By body: the decision, and the number of the broker that gets it."""
    broker: int = -1
    found: Counter[str] = field(default_factory=Counter)
    """What consumers found when the last broker ended."""
    connection: Connection = field(init=False)

    def begin(self, address: str) -> None:
        """Connect to the next broker."""
        self.broker += 1
        self.connection = connect(address)
        if self.broker == 0:
            kit.ok(kit.create_topic(self.connection, TOPIC))
        self._heartbeat()

    def end(self) -> None:
        """Note what is committed, and close the connection."""
        self.found = self.committed()
        self.connection.close()

    def _heartbeat(self) -> None:
        kit.ok(kit.heartbeat(self.connection, f"producer-{self.broker}", producers=(GROUP,)))

    def transact(self) -> None:
        """Prepare transactions of every fate, and end those that this broker is to decide."""
        for number in range(EACH):
            for fate in FATES:
                body = f"{self.broker}-{fate.broker}-{fate.decision}-{number}"
                self.fates[body] = fate.decision, self.broker + fate.broker
                half = self._prepare(body)
                if fate.broker == 0:
                    kit.ok(self.connection.request(Request.END_TRANSACTION, half | of(fate)))

    def _prepare(self, body: str) -> dict[str, object]:
        """Store a half message; returns the fields of the request that ends it."""
        properties = {"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": body, "KEYS": body}
        answer = kit.ok(
            kit.send(
                self.connection, TOPIC, body.encode(), properties=properties,
                a=GROUP, f=MessageFlag.PREPARED,
            )
        )  # fmt: skip
        return {
            "producerGroup": GROUP,
            "tranStateTableOffset": answer.number("queueOffset"),
            "commitLogOffset": decode_message_id(answer.fields["msgId"])[1],
            "fromTransactionCheck": False,
            "msgId": body,
            "transactionId": body,
        }

    def open(self) -> set[str]:
        """The transactions that only later brokers are to decide."""
        return {body for body, (_, broker) in self.fates.items() if broker > self.broker}

    def answer_checks(self, *, decides_all: bool = False) -> None:
        """Answer checks until this broker has decided its part, and checked all others.

        With ``decides_all`` this broker is the last one; it goes on until no half message is open.
        """
        if decides_all:
            self.fates = {body: (d, min(b, self.broker)) for body, (d, b) in self.fates.items()}
        checked: set[str] = set()
        deadline = time.monotonic() + DONE_S
        while not self._is_done(checked, decides_all=decides_all):
            assert time.monotonic() < deadline, f"not checked: {self.open() - checked}"
            self._heartbeat()
            for check in self._checks():
                checked.add(check.fields["transactionId"])
                self._answer(check)

    def _is_done(self, checked: set[str], *, decides_all: bool) -> bool:
        if decides_all:
            return self._is_finished()
        return checked >= self.open() and set(self.committed()) >= self.to_commit()

    def _checks(self) -> Iterator[Command]:
        """The checks that come within a second."""
        deadline = time.monotonic() + 1.0
        while True:
            try:
                yield self.connection.server_request(
                    Request.CHECK_TRANSACTION_STATE, max(0.01, deadline - time.monotonic())
                )
            except NoAnswerError:
                return

    def _answer(self, check: Command) -> None:
        body = check.fields["transactionId"]
        decision, broker = self.fates[body]
        if broker > self.broker:
            return
        fields = {
            "producerGroup": GROUP,
            "tranStateTableOffset": check.fields["tranStateTableOffset"],
            "commitLogOffset": check.fields["commitLogOffset"],
            "commitOrRollback": decision,
            "fromTransactionCheck": True,
            "msgId": body,
            "transactionId": body,
        }
        self.connection.oneway(Request.END_TRANSACTION, fields)

    def to_commit(self) -> set[str]:
        """The messages that must be delivered by now."""
        return {
            body
            for body, (decision, broker) in self.fates.items()
            if decision == COMMIT and broker <= self.broker
        }

    def committed(self) -> Counter[str]:
        """What consumers find, and how often."""
        count = kit.max_offset(self.connection, TOPIC)
        found = kit.read_queue(self.connection, "readers", TOPIC, count) if count else []
        return Counter(message.body.decode() for message in found)

    def _is_finished(self) -> bool:
        """Whether the broker has committed the end of the half queue."""
        answer = kit.query_offset(self.connection, CHECKS_GROUP, HALF_TOPIC)
        return answer.code == 0 and answer.number("offset") == kit.max_offset(
            self.connection, HALF_TOPIC
        )


def of(fate: Fate) -> dict[str, object]:
    return {"commitOrRollback": int(fate.decision)}


def ours(folder: Path, store: Path) -> CometStandalone:
    return CometStandalone(folder, store=store, settings=SETTINGS)


def theirs(version: str, folder: Path, namesrv: str, store: Path) -> RealBroker:
    return RealBroker(version, folder, namesrv, store=store, settings=SETTINGS)


@contextmanager
def running(server: Server, producers: Producers, *, killed: bool) -> Iterator[None]:
    """Run a broker for the producers, then stop or kill it."""
    try:
        server.start()
        producers.begin(server.address)
        yield
        producers.end()
        if not killed:
            server.stop()
    finally:
        server.kill()


def finish(server: CometStandalone, producers: Producers) -> None:
    """Let our broker decide the rest; it stops, starts again, and delivers nothing more."""
    with running(server, producers, killed=False):
        before = producers.found
        producers.answer_checks(decides_all=True)
        expected = dict.fromkeys(producers.to_commit(), 1) | before
        assert producers.committed() == expected
    with running(server, producers, killed=False):
        time.sleep(3 * SETTINGS["transactionCheckInterval"] / 1000)
        assert list(producers._checks()) == []
        assert producers.committed() == expected


@pytest.mark.long
@pytest.mark.parametrize(("version", "killed"), [("4.9.7", True), ("5.3.3", False)])
def test_a_real_broker_goes_on_with_our_transactions_and_ours_with_the_rest(
    version: str, killed: bool, namesrv: str, tmp_path: Path
) -> None:
    store, producers = tmp_path / "store", Producers()
    real = theirs(version, tmp_path / "real", namesrv, store)
    with running(ours(tmp_path / "first", store), producers, killed=killed):
        producers.transact()
        producers.answer_checks()
    with running(real, producers, killed=not killed):
        assert producers.committed() == producers.found
        producers.transact()
        producers.answer_checks()
        assert producers.committed().keys() == producers.to_commit()
    finish(ours(tmp_path / "last", store), producers)


@pytest.mark.parametrize(
    ("version", "killed"), [pytest.param("4.9.7", True, marks=pytest.mark.long), ("5.3.3", True)]
)
def test_our_broker_goes_on_with_the_transactions_of_a_real_one(
    version: str, killed: bool, namesrv: str, tmp_path: Path
) -> None:
    store, producers = tmp_path / "store", Producers()
    real = theirs(version, tmp_path / "real", namesrv, store)
    with running(real, producers, killed=killed):
        producers.transact()
        producers.answer_checks()
    finish(ours(tmp_path / "ours", store), producers)
