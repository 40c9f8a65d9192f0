"""Transactions: the decision after the local transaction, and checks by the broker."""

from __future__ import annotations

import asyncio
import logging
import re
import runpy
import sqlite3
import threading
from typing import Any

import pytest

from cometmq.client import (
    AdminClient,
    ClientError,
    ClientInstance,
    CometError,
    ConfigError,
    InvalidMessageError,
    LocalState,
    Message,
    Producer,
    PullConsumer,
    ResponseError,
    SendFailedError,
    SendStatus,
    StartFrom,
    StoredMessage,
    TransactionProducer,
    TransactionReceipt,
    transactions,
)
from cometmq.client.hooks import EndContext, EndTransactionHook
from cometmq.client.settings import ClientSettings
from cometmq.model.errors import InvalidNameError
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.transaction import EndTransactionRequest
from cometmq.protocol.properties import decode_properties
from support.brokers.scripted import Act, ScriptedCluster, route
from support.brokers.transaction_broker import LOG_OFFSET, QUEUE_OFFSET, TransactionBroker
from support.checks.cancellation import cancel_at_every_await
from support.processes.examples import FOLDER as EXAMPLES

MESSAGE = Message(topic="t", body=b"paid", keys=["order-1"])
BITS = {LocalState.COMMIT: 8, LocalState.ROLLBACK: 12, LocalState.UNKNOWN: 0}
STORED = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}
"""The answers to a half message that say it is stored."""


class Listener:
    """Does as it is told, and remembers what it was asked; both methods are ``async def``."""

    def __init__(self, local: Any = LocalState.COMMIT, checked: Any = LocalState.COMMIT) -> None:
        self.local, self.checked = local, checked
        self.executed: list[tuple[Message, object]] = []
        self.asked: list[StoredMessage] = []

    async def execute(self, message: Message, argument: object) -> Any:
        self.executed.append((message, argument))
        return _said(self.local)

    async def check(self, message: StoredMessage) -> Any:
        self.asked.append(message)
        return _said(self.checked)


class PlainListener(Listener):
    """The same with plain functions, which run in threads."""

    def execute(self, message: Message, argument: object) -> Any:  # type: ignore[override]
        self.executed.append((message, argument))
        return _said(self.local)

    def check(self, message: StoredMessage) -> Any:  # type: ignore[override]
        self.asked.append(message)
        return _said(self.checked)


def _said(what: Any) -> Any:
    if isinstance(what, BaseException):
        raise what
    return what


def producer(cluster: ScriptedCluster, listener: Listener, **options: Any) -> TransactionProducer:
    return TransactionProducer(cluster.address, group="shop", listener=listener, **options)


def end_of(end: EndTransactionRequest) -> tuple[int, bool | None]:
    return end.commit_or_rollback, end.from_transaction_check


# --- the local part -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Listener, PlainListener])
@pytest.mark.parametrize("state", list(LocalState))
async def test_the_broker_is_told_what_the_local_part_said(
    kind: type[Listener], state: LocalState
) -> None:
    broker, listener = TransactionBroker(), kind(state)
    async with ScriptedCluster([broker]) as cluster, producer(cluster, listener) as sending:
        sent = await sending.send_in_transaction(MESSAGE, "an argument")
        end = await broker.until_ended(1)

    assert sent.state is state
    assert sent.error is None
    assert end_of(end) == (BITS[state], False)
    assert (end.producer_group, end.bname, end.topic) == ("shop", "a", "t")
    assert (end.commit_log_offset, end.tran_state_table_offset) == (LOG_OFFSET, QUEUE_OFFSET)
    assert end.msg_id == sent.receipt.message_id == end.transaction_id
    assert [argument for _, argument in listener.executed] == ["an argument"]
    assert broker.end_commands[0].is_oneway


class MuteError(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise LookupError("no text")


@pytest.mark.parametrize("local", [RuntimeError("no money"), MuteError(), None, "COMMIT_MESSAGE"])
async def test_a_local_part_that_fails_or_says_no_state_counts_as_unknown(local: object) -> None:
    broker, listener = TransactionBroker(), Listener(local)
    async with ScriptedCluster([broker]) as cluster, producer(cluster, listener) as sending:
        sent = await sending.send_in_transaction(MESSAGE, return_exceptions=True)
        end = await broker.until_ended(1)

    assert sent.state is LocalState.UNKNOWN
    assert end_of(end) == (0, False)
    if isinstance(local, Exception):
        assert sent.error is local
        text = str(local) if isinstance(local, RuntimeError) else "(str() raised LookupError)"
        remark = broker.end_commands[0].remark or ""
        assert remark.startswith("the listener failed: ")
        assert remark.endswith(f".{type(local).__name__}: {text}")
    else:
        expected = f"execute returned {local!r}: expected LocalState.COMMIT, ROLLBACK or UNKNOWN"
        assert (type(sent.error), str(sent.error)) == (TypeError, expected)


class SoldOutError(Exception):
    """The local transaction rolled back."""


@pytest.mark.parametrize("kind", [Listener, PlainListener])
@pytest.mark.parametrize(
    ("local", "state"),
    [
        (RuntimeError("the connection broke during the commit"), LocalState.UNKNOWN),
        (SoldOutError("no hats"), LocalState.ROLLBACK),
    ],
)
async def test_an_exception_of_the_local_part_is_raised_after_its_state_is_sent(
    kind: type[Listener], local: Exception, state: LocalState
) -> None:
    """Only an exception that proves a rollback is one: the commit may come before another."""
    broker, listener = TransactionBroker(), kind(local)
    async with (
        ScriptedCluster([broker]) as cluster,
        producer(cluster, listener, rollback_on=(KeyError, SoldOutError)) as sending,
    ):
        with pytest.raises(type(local)) as raised:
            await sending.send_in_transaction(MESSAGE)
        end = await broker.until_ended(1)
        returned = await sending.send_in_transaction(MESSAGE, return_exceptions=True)

    assert raised.value is local
    assert end_of(end) == (BITS[state], False)
    assert (returned.state, returned.error) == (state, local)


async def test_a_check_that_raises_what_means_a_rollback_keeps_the_half_message() -> None:
    """A query that fails says nothing about the local transaction."""
    broker, listener = TransactionBroker(), Listener(LocalState.UNKNOWN, SoldOutError())
    async with (
        ScriptedCluster([broker]) as cluster,
        producer(cluster, listener, rollback_on=SoldOutError) as sending,
    ):
        await sending.send_in_transaction(MESSAGE)
        broker.ask()
        end = await broker.until_ended(2)

    assert end_of(end) == (0, True)


@pytest.mark.parametrize(
    "wrong", [None, "KeyError", KeyError("k"), (KeyError, 5), KeyboardInterrupt]
)
def test_classes_that_mean_a_rollback_are_classes_of_exceptions(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"rollback_on=.*: expected a class of exceptions"):
        TransactionProducer("127.0.0.1:1", group="g", listener=Listener(), rollback_on=wrong)


@pytest.mark.parametrize("call", ["execute", "check"])
async def test_the_log_says_what_a_listener_raised_and_what_else_it_returned(
    call: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The traceback of a check follows once a minute for each kind of error.

    The exception of `execute` is the caller's, with its traceback.
    """
    broker, listener = TransactionBroker(), Listener()
    async with ScriptedCluster([broker]) as cluster, producer(cluster, listener) as sending:
        await sending.send_in_transaction(MESSAGE)
        for number, said in enumerate((LookupError("no order"), LookupError("gone"), True)):
            listener.local = listener.checked = said
            if call == "execute":
                await sending.send_in_transaction(MESSAGE, return_exceptions=True)
            else:
                broker.ask()
            await broker.until_ended(number + 2)

    found = [each for each in caplog.records if "listener failed" in each.getMessage()]
    head = f"a transaction listener failed call={call} id= group=shop state=UNKNOW error=builtins."
    wrong = f"{call} returned True: expected LocalState.COMMIT, ROLLBACK or UNKNOWN"
    assert [re.sub("id=[0-9A-F]+", "id=", each.getMessage()) for each in found] == [
        head + text
        for text in ("LookupError: no order", "LookupError: gone", f"TypeError: {wrong}")
    ]
    assert [bool(each.exc_info) for each in found] == [call == "check", False, False]


@pytest.mark.parametrize("code", [code for code in STORED if code])
@pytest.mark.parametrize("local", list(LocalState))
async def test_a_half_message_stored_less_safely_is_rolled_back_without_the_local_part(
    code: int, local: LocalState
) -> None:
    broker, listener = TransactionBroker("a", code), Listener(local)
    async with ScriptedCluster([broker]) as cluster, producer(cluster, listener) as sending:
        sent = await sending.send_in_transaction(MESSAGE)
        end = await broker.until_ended(1)

    assert sent.receipt.status is STORED[ResponseCode(code)]
    assert sent.state is LocalState.ROLLBACK
    assert end_of(end) == (12, False)
    assert listener.executed == []


@pytest.mark.parametrize("act", [ResponseCode.MESSAGE_ILLEGAL, Act.HANG_UP])
async def test_a_half_message_that_is_not_stored_raises_without_the_local_part(
    act: int | Act,
) -> None:
    broker, listener = TransactionBroker("a", *[act] * 3), Listener()
    async with ScriptedCluster([broker]) as cluster, producer(cluster, listener) as sending:
        with pytest.raises((ResponseError, SendFailedError)):
            await sending.send_in_transaction(MESSAGE)

    assert listener.executed == []
    assert broker.ends == []


async def test_a_half_message_says_that_it_is_one() -> None:
    broker, listener = TransactionBroker(), Listener()
    async with ScriptedCluster([broker]) as cluster, producer(cluster, listener) as sending:
        await sending.send_in_transaction(MESSAGE)

    properties = decode_properties(broker.sends[0].properties or "")
    assert (properties["TRAN_MSG"], properties["PGROUP"]) == ("true", "shop")
    assert broker.sends[0].sys_flag == 0x4


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"delay_level": 3}, "with a delay: the commit"),
        ({"delay": 0.5}, "with a delay: the commit"),
        ({"deliver_at": 1}, "with a delay: the commit"),
        ({"properties": {"TIMER_DELAY_SEC": "5"}}, "with a delay: the commit"),
        ({"properties": {"DELAY": "3"}}, "with a delay: the commit"),
        ({"properties": {"__SHARDINGKEY": "order-1"}}, "have no order"),
    ],
)
async def test_what_a_transaction_cannot_do_is_refused_before_anything_is_done(
    fields: dict[str, Any], reason: str
) -> None:
    broker, listener = TransactionBroker(), Listener()
    message = Message(topic="t", body=b"x", **fields)
    async with ScriptedCluster([broker]) as cluster, producer(cluster, listener) as sending:
        with pytest.raises(InvalidMessageError, match=reason):
            await sending.send_in_transaction(message)

    assert (broker.sends, listener.executed) == ([], [])


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("order_key", r"'order_key': messages of transactions have no order, .* outbox table"),
        ("queue", r"'queue': messages of transactions have no order"),
        ("selector", r"'selector': messages of transactions have no order"),
        ("delay_level", r"'delay_level': the commit of a transaction delivers its message at once"),
        ("nothing_like_it", r"'nothing_like_it'$"),
    ],
)
async def test_an_option_of_a_send_that_a_transaction_cannot_have_is_refused_with_the_reason(
    option: str, reason: str
) -> None:
    sending: Any = TransactionProducer("127.0.0.1:1", group="g", listener=Listener())
    with pytest.raises(TypeError, match=f"unexpected keyword argument {reason}"):
        await sending.send_in_transaction(MESSAGE, **{option: 1})


@pytest.mark.parametrize("wrong", [{"properties": None}, {"properties": [1]}, {"topic": 5}])
async def test_fields_of_a_wrong_type_are_refused_before_anything_is_done(
    wrong: dict[str, Any],
) -> None:
    broker, listener = TransactionBroker(), Listener()
    message = Message(**{"topic": "t", "body": b"x"} | wrong)
    async with ScriptedCluster([broker]) as cluster, producer(cluster, listener) as sending:
        with pytest.raises((InvalidMessageError, InvalidNameError), match="is expected"):
            await sending.send_in_transaction(message)

    assert (broker.sends, listener.executed) == ([], [])


@pytest.mark.parametrize("kind", [Listener, PlainListener])
async def test_a_transaction_can_be_cancelled_wherever_it_waits(kind: type[Listener]) -> None:
    broker = TransactionBroker()
    async with ScriptedCluster([broker]) as cluster, producer(cluster, kind()) as sending:

        async def check() -> None:
            async with asyncio.timeout(60):
                assert (await sending.send_in_transaction(MESSAGE)).state is LocalState.COMMIT
                await sending.flush()
            assert not sending._unsettled  # else closing would wait for it

        count = await cancel_at_every_await(lambda: sending.send_in_transaction(MESSAGE), check)

    assert count >= 2


@pytest.mark.parametrize("kind", [Listener, PlainListener])
async def test_closing_waits_for_a_local_part_and_sends_its_state(kind: type[Listener]) -> None:
    started, go_on = threading.Event(), threading.Event()

    class Slow(kind):  # type: ignore[valid-type,misc]
        def execute(self, message: Message, argument: object) -> Any:
            started.set()
            return _wait(go_on) if kind is Listener else go_on.wait(60) and LocalState.COMMIT

    async def _wait(event: threading.Event) -> LocalState:
        while not event.is_set():
            await asyncio.sleep(0.001)
        return LocalState.COMMIT

    broker = TransactionBroker()
    async with ScriptedCluster([broker]) as cluster:
        async with producer(cluster, Slow(), timeout_ms=60_000) as sending:
            transaction = asyncio.create_task(sending.send_in_transaction(MESSAGE))
            while not started.is_set():
                await asyncio.sleep(0.001)
            asyncio.get_running_loop().call_later(0.1, go_on.set)
        sent = await transaction
        end = await broker.until_ended(1)

    assert sent.state is LocalState.COMMIT
    assert end_of(end) == (BITS[LocalState.COMMIT], False)


async def test_closing_does_not_wait_for_ever_for_a_local_part() -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    class Slow(Listener):
        async def execute(self, message: Message, argument: object) -> LocalState:
            started.set()
            await go_on.wait()
            return LocalState.COMMIT

    broker = TransactionBroker()
    async with ScriptedCluster([broker]) as cluster:
        async with producer(cluster, Slow(), timeout_ms=500) as sending:
            transaction = asyncio.create_task(sending.send_in_transaction(MESSAGE))
            await started.wait()
        go_on.set()
        sent = await transaction

    assert (sent.state, broker.ends) == (LocalState.COMMIT, [])


async def test_the_local_part_learns_the_ids_of_its_message() -> None:
    broker, listener = TransactionBroker(), Listener()
    async with ScriptedCluster([broker]) as cluster, producer(cluster, listener) as sending:
        sent = await sending.send_in_transaction(MESSAGE)

    shown = listener.executed[0][0].properties
    assert shown["UNIQ_KEY"] == shown["__transactionId__"] == sent.receipt.message_id
    assert MESSAGE.properties == {}


async def test_hooks_see_the_end_and_one_that_fails_changes_nothing() -> None:
    class Failing(EndTransactionHook):
        def ended(self, context: EndContext) -> None:
            raise ValueError("a bad hook")

    class Watching(EndTransactionHook):
        def __init__(self) -> None:
            self.seen: list[EndContext] = []

        def ended(self, context: EndContext) -> None:
            self.seen.append(context)

    watching, broker = Watching(), TransactionBroker()
    async with (
        ScriptedCluster([broker]) as cluster,
        producer(cluster, Listener(), hooks=[Failing(), watching]) as sending,
    ):
        await sending.send_in_transaction(MESSAGE)
        broker.ask()
        await broker.until_ended(2)

    assert [(end.state, end.from_check) for end in watching.seen] == [
        (LocalState.COMMIT, False),
        (LocalState.COMMIT, True),
    ]
    assert watching.seen[0].address == broker.address


# --- what the broker asks -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Listener, PlainListener])
@pytest.mark.parametrize("checked", list(LocalState))
async def test_a_check_is_answered_with_what_the_listener_says(
    kind: type[Listener], checked: LocalState
) -> None:
    broker, listener = TransactionBroker(), kind(LocalState.UNKNOWN, checked)
    async with ScriptedCluster([broker]) as cluster, producer(cluster, listener) as sending:
        await sending.send_in_transaction(MESSAGE)
        message_id = broker.ask()
        end = await broker.until_ended(2)

    assert end_of(end) == (BITS[checked], True)
    assert (end.msg_id, end.transaction_id) == (message_id, message_id)
    assert (end.tran_state_table_offset, end.commit_log_offset) == (
        QUEUE_OFFSET + 10,
        LOG_OFFSET + 10,
    )
    assert end.topic == "t"
    asked = listener.asked[0]
    assert (asked.topic, asked.body, asked.keys) == ("t", b"paid", ["order-1"])


@pytest.mark.parametrize("checked", [KeyError("gone"), None, 8])
async def test_a_check_that_fails_or_says_no_state_keeps_the_half_message(checked: object) -> None:
    broker, listener = TransactionBroker(), Listener(LocalState.UNKNOWN, checked)
    async with ScriptedCluster([broker]) as cluster, producer(cluster, listener) as sending:
        await sending.send_in_transaction(MESSAGE)
        broker.ask()
        assert end_of(await broker.until_ended(2)) == (0, True)

        listener.checked = LocalState.COMMIT
        broker.ask()
        assert end_of(await broker.until_ended(3)) == (8, True)


async def test_a_check_is_answered_over_the_connection_that_it_came_by() -> None:
    """The address that the client connected to is a name, which a certificate may contain."""
    broker = TransactionBroker()
    async with ScriptedCluster([broker]) as cluster:
        named = broker.address.replace("127.0.0.1", "localhost")
        cluster.name_server.routes["t"] = route({"a": named})
        async with producer(cluster, Listener(LocalState.UNKNOWN)) as sending:
            await sending.send_in_transaction(MESSAGE)
            broker.ask()
            await broker.until_ended(2)

    assert [peer is broker.half_from for peer in broker.ended_by] == [True, True]


async def test_names_are_wrapped_for_the_broker_and_not_for_the_listener() -> None:
    broker, listener = TransactionBroker(), Listener(LocalState.UNKNOWN)
    async with ScriptedCluster([broker]) as cluster:
        cluster.name_server.routes["ns%t"] = cluster.name_server.routes["t"]
        async with producer(cluster, listener, namespace="ns") as sending:
            await sending.send_in_transaction(MESSAGE)
            broker.ask()
            end = await broker.until_ended(2)

    assert (end.producer_group, broker.ends[0].topic, end.topic) == ("ns%shop", "ns%t", "ns%t")
    assert decode_properties(broker.sends[0].properties or "")["PGROUP"] == "ns%shop"
    assert (listener.asked[0].topic, listener.executed[0][0].topic) == ("t", "t")


async def test_brokers_of_topics_named_ahead_can_ask_before_anything_is_sent() -> None:
    """A producer that started anew answers for what it sent in its former life."""
    broker = TransactionBroker()
    async with (
        ScriptedCluster([broker]) as cluster,
        producer(cluster, Listener(), topics=("t",)),
    ):
        assert [one.group_name for one in broker.heartbeats[0].producer_data_set] == ["shop"]


async def test_only_so_many_checks_wait_and_the_others_come_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One is being answered and one waits; the others find no room."""
    started, go_on = asyncio.Event(), asyncio.Event()

    class Slow(Listener):
        async def check(self, message: StoredMessage) -> LocalState:
            self.asked.append(message)
            started.set()
            await go_on.wait()
            return LocalState.COMMIT

    broker, listener = TransactionBroker(), Slow(LocalState.UNKNOWN)
    async with (
        ScriptedCluster([broker]) as cluster,
        producer(cluster, listener, check_waiting_max=1) as sending,
    ):
        await sending.send_in_transaction(MESSAGE)
        broker.ask(body=b"first")
        async with asyncio.timeout(60):
            await started.wait()
        broker.ask(body=b"second")
        for _ in range(5):
            broker.ask(body=b"third")
        await sending.send_in_transaction(Message(topic="t", body=b"the checks have arrived"))
        go_on.set()
        await broker.until_ended(4)

    assert [message.body for message in listener.asked] == [b"first", b"second"]
    dropped = [each for each in caplog.records if "are dropped" in each.getMessage()]
    assert [each.levelname for each in dropped if each.levelno > logging.DEBUG] == ["WARNING"]


async def test_a_listener_that_cancels_itself_has_failed_and_is_asked_again() -> None:
    """As one does that awaits a task which somebody cancelled."""
    broker = TransactionBroker()
    listener = Listener(asyncio.CancelledError(), asyncio.CancelledError())
    async with ScriptedCluster([broker]) as cluster, producer(cluster, listener) as sending:
        sent = await sending.send_in_transaction(MESSAGE, return_exceptions=True)
        broker.ask(body=b"first")
        await broker.until_ended(2)
        listener.checked = LocalState.COMMIT
        broker.ask(body=b"second")
        end = await broker.until_ended(3)

    assert (sent.state, type(sent.error)) == (LocalState.UNKNOWN, ClientError)
    assert isinstance(sent.error.__cause__, asyncio.CancelledError)
    assert [end_of(told) for told in broker.ends] == [(0, False), (0, True), (8, True)]
    assert end is broker.ends[-1]


async def test_a_check_that_hangs_counts_as_unknown_and_lets_the_next_one_go(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(transactions, "CHECK_S_MAX", 0.2)

    class Hanging(Listener):
        async def check(self, message: StoredMessage) -> LocalState:
            self.asked.append(message)
            if message.body == b"hangs":
                await asyncio.Event().wait()
            return LocalState.COMMIT

    broker = TransactionBroker()
    async with (
        ScriptedCluster([broker]) as cluster,
        producer(cluster, Hanging(LocalState.UNKNOWN)) as sending,
    ):
        await sending.send_in_transaction(MESSAGE)
        broker.ask(body=b"hangs")
        broker.ask(body=b"responds")
        await broker.until_ended(3)

    assert [end_of(told) for told in broker.ends] == [(0, False), (0, True), (8, True)]
    assert "TimeoutError" in caplog.text


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_no_more_checks_are_answered_at_a_time_than_allowed(concurrency: int) -> None:
    go_on = asyncio.Event()

    class Slow(Listener):
        async def check(self, message: StoredMessage) -> LocalState:
            self.asked.append(message)
            await go_on.wait()
            return LocalState.COMMIT

    broker, listener = TransactionBroker(), Slow(LocalState.UNKNOWN)
    async with (
        ScriptedCluster([broker]) as cluster,
        producer(cluster, listener, check_concurrency=concurrency) as sending,
    ):
        await sending.send_in_transaction(MESSAGE)
        for number in range(3):
            broker.ask(body=b"%d" % number)
        await sending.send_in_transaction(Message(topic="t", body=b"the checks have arrived"))
        assert len(listener.asked) == concurrency
        go_on.set()
        await broker.until_ended(5)

    assert sorted(message.body for message in listener.asked) == [b"0", b"1", b"2"]


class ClosingListener(Listener):
    """Closes its producer in the local part or in a check."""

    def __init__(self, *, in_check: bool) -> None:
        super().__init__(LocalState.UNKNOWN if in_check else LocalState.COMMIT)
        self.in_check = in_check
        self.closed = asyncio.Event()
        self.producer: TransactionProducer

    async def execute(self, message: Message, argument: object) -> Any:
        if not self.in_check:
            await self._close()
        return await super().execute(message, argument)

    async def check(self, message: StoredMessage) -> Any:
        await self._close()
        return await super().check(message)

    async def _close(self) -> None:
        await self.producer.close()
        self.closed.set()


@pytest.mark.parametrize("in_check", [False, True])
async def test_a_listener_may_close_its_producer(in_check: bool) -> None:
    """The close waits for the local part, which therefore must not wait for the close."""
    broker, listener = TransactionBroker(), ClosingListener(in_check=in_check)
    async with (
        ScriptedCluster([broker]) as cluster,
        producer(cluster, listener, timeout_ms=600_000) as sending,
    ):
        listener.producer = sending
        async with asyncio.timeout(20):
            sent = await sending.send_in_transaction(MESSAGE)
            if in_check:
                broker.ask()
            await listener.closed.wait()
            end = await broker.until_ended(1)
            await sending.close()

    assert not sending.running
    assert (sent.state, end_of(end)) == (listener.local, (BITS[listener.local], False))


async def test_a_producer_that_is_closed_answers_no_more() -> None:
    """The connection lives on with another producer; the broker will ask somebody else."""
    broker, listener = TransactionBroker(), Listener(LocalState.UNKNOWN)
    async with (
        ScriptedCluster([broker]) as cluster,
        ClientInstance(cluster.address) as client,
        Producer(instance=client, group="other") as other,
    ):
        async with TransactionProducer(instance=client, group="shop", listener=listener) as sending:
            await sending.send_in_transaction(MESSAGE)
            broker.ask(body=b"asked in time")
            await broker.until_ended(2)
        broker.ask(body=b"asked too late")
        await other.send(Message(topic="t", body=b"the check has arrived"))
        await asyncio.sleep(0)

    assert [message.body for message in listener.asked] == [b"asked in time"]
    assert len(broker.ends) == 2


# --- a whole cluster ----------------------------------------------------------------------------


class Table:
    """Keeps what became of each local part, by the message's key."""

    def __init__(self, local: dict[str, LocalState], checked: dict[str, LocalState]) -> None:
        self.local, self.checked = local, checked
        self.asked: list[str] = []

    async def execute(self, message: Message, argument: object) -> LocalState:
        return self.local[str(argument)]

    async def check(self, message: StoredMessage) -> LocalState:
        self.asked.append(message.body.decode())
        return self.checked[message.body.decode()]


async def test_messages_are_delivered_when_their_transaction_commits(make_cluster: Any) -> None:
    """Committed at once or by a check, each is delivered; the others never are."""
    cluster = make_cluster({"transactionTimeOut": 1000, "transactionCheckInterval": 1000})
    async with AdminClient(cluster.namesrv) as admin:
        queues = await admin.create_topic("tx", queues=4)
    commit, rollback, unknown = LocalState.COMMIT, LocalState.ROLLBACK, LocalState.UNKNOWN
    local = {"now": commit, "never": rollback, "later": unknown, "undone": unknown, "last": commit}
    table = Table(local, {"later": commit, "undone": rollback})
    settings = ClientSettings(heartbeat_ms=1000)
    async with (
        TransactionProducer(
            cluster.namesrv, group="shop", listener=table, client=settings
        ) as sending,
        PullConsumer(cluster.namesrv, group="readers", start_from=StartFrom.FIRST) as reading,
    ):
        sent: list[TransactionReceipt] = []
        for body in ("now", "never", "later", "undone"):
            message = Message(topic="tx", body=body.encode())
            sent.append(await sending.send_in_transaction(message, body))
        await reading.assign(queues)
        got: set[str] = set()
        async with asyncio.timeout(60):
            while len(got) < 2 or "undone" not in table.asked:
                got |= {message.body.decode() for message in await reading.poll(1.0)}
            await sending.send_in_transaction(Message(topic="tx", body=b"last"), "last")
            while "last" not in got:
                got |= {message.body.decode() for message in await reading.poll(1.0)}

    assert got == {"now", "later", "last"}
    assert [one.state for one in sent] == [local[body] for body in list(local)[:4]]


class Checked(EndTransactionHook):
    """Waits for the state that a check returns."""

    def __init__(self) -> None:
        self.states: dict[bytes, LocalState] = {}
        self.changed = asyncio.Event()

    def ended(self, context: EndContext) -> None:
        if context.from_check:
            self.states[bytes(context.message.body)] = context.state
            self.changed.set()

    async def state_of(self, body: bytes) -> LocalState:
        async with asyncio.timeout(60):
            while body not in self.states:
                self.changed.clear()
                await self.changed.wait()
        return self.states[body]


async def test_a_check_of_the_example_delivers_no_transaction_that_failed(
    make_cluster: Any,
) -> None:
    """An order of this name exists, of another transaction; or the check comes before the insert.

    The broker does not learn at once that the insert failed: only a check decides.
    """
    example = runpy.run_path(str(EXAMPLES / "19_transaction.py"))
    checked = Checked()

    class Orders(example["Orders"]):  # type: ignore[misc]
        async def execute(self, message: Message, order: str) -> LocalState:
            if message.body == b"late":
                await checked.state_of(b"late")
            state: LocalState = await super().execute(message, order)
            return LocalState.UNKNOWN if message.body == b"lost state" else state

    def message(body: bytes) -> Message:
        return Message("confirmed", body, keys=["order-1"], properties={example["ID"]: body.hex()})

    cluster = make_cluster({"transactionTimeOut": 100, "transactionCheckInterval": 200})
    orders = Orders()
    async with (
        AdminClient(cluster.namesrv) as admin,
        TransactionProducer(
            cluster.namesrv, group="order-desk", listener=orders, hooks=[checked], heartbeat_ms=1000
        ) as sending,
        PullConsumer(cluster.namesrv, group="readers", start_from=StartFrom.FIRST) as reading,
    ):
        queues = await admin.create_topic("confirmed", queues=1)
        await sending.send_in_transaction(message(b"lost state"), "order-1")
        for body, order in ((b"exists", "order-1"), (b"late", "order-2")):
            with pytest.raises(sqlite3.IntegrityError):
                await sending.send_in_transaction(message(body), order)
        states = [await checked.state_of(body) for body in (b"lost state", b"exists", b"late")]
        await sending.send_in_transaction(message(b"last"), "order-3")
        await reading.assign(queues)
        got: list[bytes] = []
        async with asyncio.timeout(60):
            while b"last" not in got:
                got += [each.body for each in await reading.poll(1.0)]
    orders.database.close()

    assert states == [LocalState.COMMIT, LocalState.ROLLBACK, LocalState.ROLLBACK]
    assert set(got) == {b"lost state", b"last"}


@pytest.mark.long_elsewhere
async def test_a_transaction_that_was_discarded_is_checked_again_on_request(
    make_cluster: Any,
) -> None:
    often = {"transactionTimeOut": 100, "transactionCheckInterval": 200, "transactionCheckMax": 1}
    cluster = make_cluster(often)
    table = Table({"paid": LocalState.UNKNOWN}, {"paid": LocalState.UNKNOWN})
    async with (
        AdminClient(cluster.namesrv) as admin,
        TransactionProducer(
            cluster.namesrv,
            group="shop",
            listener=table,
            client=ClientSettings(heartbeat_ms=1000),
        ) as sending,
        PullConsumer(cluster.namesrv, group="readers", start_from=StartFrom.FIRST) as reading,
    ):
        queues = await admin.create_topic("tx", queues=1)
        sent = await sending.send_in_transaction(Message(topic="tx", body=b"paid"), "paid")
        with pytest.raises(ResponseError):
            await admin.resume_checks(sent.receipt.offset_message_id[:-8] + "00FFFFFF")
        async with asyncio.timeout(60):
            discarded = None
            while discarded is None:
                await asyncio.sleep(0.05)
                discarded = await first_of(admin, "TRANS_CHECK_MAX_TIME_TOPIC")
            table.checked["paid"] = LocalState.COMMIT
            await admin.resume_checks(discarded.offset_message_id)
            await reading.assign(queues)
            while not (got := await reading.poll(1.0)):
                pass

    assert [message.body for message in got] == [b"paid"]


async def first_of(admin: AdminClient, topic: str) -> StoredMessage | None:
    """The first message of a topic that may not exist yet."""
    try:
        (queue,) = await admin.topic_stats(topic)
        return await admin.message_in_queue(queue, 0)
    except CometError:
        return None
