"""Messages that are delivered only if a local transaction commits.

The half message is stored first, and consumers do not see it. Then the local transaction runs, and
the producer sends its state to the broker. Without a state, the broker checks later with any
producer of the group.

Source: TransactionMQProducer, DefaultMQProducerImpl.sendMessageInTransaction and
checkTransactionState, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from reprlib import repr as short
from typing import Any, Generic, Unpack, overload

from cometmq.client._callbacks import Caller, TraceTimes, call_hooks
from cometmq.client._connection.instance import ClientInstance
from cometmq.client._connection.name_servers import HasNameServers
from cometmq.client._sending.outgoing import check_fields, copy_message
from cometmq.client._sending.targets import ANY_QUEUE
from cometmq.client._supervision import class_and_text
from cometmq.client.errors import ClientError
from cometmq.client.handlers import Argument_contra, LocalState, TransactionListener
from cometmq.client.hooks import EndContext, EndTransactionHook, ForbiddenHook, SendHook
from cometmq.client.options import ProducerOptions
from cometmq.client.producer import DEFAULT_GROUP, Producer, check_message_type
from cometmq.client.receipt import SendReceipt, SendStatus
from cometmq.client.settings import ClientSettings, ProducerSettings
from cometmq.client.trace import EndTrace
from cometmq.model import property_names as names
from cometmq.model.arguments import check_parameters, check_provides, check_several
from cometmq.model.errors import (
    CometError,
    ConfigError,
    InvalidMessageError,
    InvalidNameError,
    ResponseError,
)
from cometmq.model.flags import SysFlag
from cometmq.model.message import Message, StoredMessage
from cometmq.model.topic import check_group_name
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.transaction import CheckTransactionStateRequest, EndTransactionRequest
from cometmq.protocol.message_id import decode_offset_id
from cometmq.protocol.record import decode_messages
from cometmq.remoting import Request, RequestHandler, Response
from cometmq.remoting.tasks import Supervisor, raise_unless_failure
from cometmq.system.failure_log import FailureLog

log = logging.getLogger(__name__)

_END_CODES = {
    LocalState.COMMIT: SysFlag.TRANSACTION_COMMIT,
    LocalState.ROLLBACK: SysFlag.TRANSACTION_ROLLBACK,
    LocalState.UNKNOWN: SysFlag.TRANSACTION_NONE,
}
LOCAL_THREADS = 16
"""Local transactions of plain listeners that run at a time."""
CHECK_S_MAX = 60.0
"""Timeout of a check by the listener, in seconds: others may wait for it."""

_NO_ORDER = (
    "messages of transactions have no order, because a check may decide a transaction after later "
    "ones: write the message to an outbox table, and send it from there with order_key="
)
_NO_DELAY = (
    "the commit of a transaction delivers its message at once: send a delayed message from the "
    "handler of this one"
)
_REFUSED = {
    "queue": _NO_ORDER,
    "order_key": _NO_ORDER,
    "selector": _NO_ORDER,
    "delay_level": _NO_DELAY,
    "delay": _NO_DELAY,
    "deliver_at": _NO_DELAY,
}
"""Options of `Producer.send` that a transaction cannot have, and the reasons."""


@dataclass(frozen=True, slots=True)
class TransactionReceipt:
    """The result of a message that was sent in a transaction.

    Example:
        message = Message(topic="orders", body=b"42")
        result: TransactionReceipt = await transactions.send_in_transaction(message)
        print(result.state, result.receipt.message_id)
    """

    receipt: SendReceipt
    """The receipt of the half message."""
    state: LocalState
    """The state that was sent to the broker. UNKNOWN: the broker checks the transaction later."""
    error: BaseException | None = None
    """The exception of the local transaction, or the `TypeError` for a result that is no
    `LocalState`; only with ``return_exceptions``."""


@dataclass(frozen=True, slots=True)
class _Check:
    """A broker's check of a transaction."""

    header: CheckTransactionStateRequest
    message: StoredMessage
    address: str


class TransactionProducer(Producer, Generic[Argument_contra]):
    """Sends messages that are delivered only if a local transaction commits.

    Args:
        name_servers: ``host:port;host:port``, or a sequence of addresses.
        group: the producer group. The broker checks a transaction with any member of the group,
            so all members share the listener's data.
        listener: runs the local transaction, and returns its state later. The type of its argument
            is the type of the producer: ``TransactionProducer[Order]``.
        rollback_on: exceptions of ``execute`` that prove that the local transaction rolled back,
            such as a violated constraint. The broker drops the message at once. After any other
            exception the state is UNKNOWN, because the commit may have succeeded before it.
        settings, client, instance, hooks, config, options: as for `Producer`. Hooks may also be
            `EndTransactionHook`.

    A broker sends checks only to producers that are registered at it: those that have sent to it,
    or that were started with the setting ``topics``.

    Example:
        class Orders:
            async def execute(self, message: Message, order: int) -> LocalState:
                return LocalState.COMMIT

            async def check(self, message: StoredMessage) -> LocalState:
                return LocalState.COMMIT

        async with TransactionProducer(name_server, group="books", listener=Orders()) as producer:
            await producer.send_in_transaction(Message(topic="orders", body=b"42"), 42)
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | HasNameServers = "",
        *,
        group: str,
        listener: TransactionListener[Argument_contra],
        rollback_on: type[Exception] | tuple[type[Exception], ...] = (),
        settings: ProducerSettings | None = None,
        client: ClientSettings | None = None,
        instance: ClientInstance | None = None,
        hooks: Sequence[SendHook | ForbiddenHook | EndTransactionHook] = (),
        config: Path | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        check_group_name(group)
        if group.partition("-")[0] == DEFAULT_GROUP:
            raise InvalidNameError(
                f"the group {group} has producers without a listener, to which brokers would send "
                "checks: give the transaction producer another group"
            )
        check_several(
            f"producer {group}", "hooks", hooks, SendHook, ForbiddenHook, EndTransactionHook
        )
        check_provides(f"producer {group}", "listener", listener, TransactionListener)
        owner = f"producer {group}: listener"
        check_parameters(f"{owner}.execute", listener.execute, ("message", "argument"))
        check_parameters(f"{owner}.check", listener.check, ("message",))
        _check_exceptions(f"producer {group}", rollback_on)
        super().__init__(
            name_servers,
            group=group,
            settings=settings,
            client=client,
            instance=instance,
            hooks=[hook for hook in hooks if isinstance(hook, SendHook | ForbiddenHook)],
            config=config,
            **options,
        )
        self._listener = listener
        self._rollback_on = rollback_on
        self._handlers: dict[int, RequestHandler] = {
            RequestCode.CHECK_TRANSACTION_STATE: self._take_check
        }
        self._wire_group = self._instance.namespace.wrap_group(group)
        self._end_hooks = [hook for hook in hooks if isinstance(hook, EndTransactionHook)]
        self._traceback_times = TraceTimes()
        self._local = Caller(LOCAL_THREADS, f"{group}-local")
        self._checking = Caller(self._settings.check_concurrency, f"{group}-check")
        self._checks: asyncio.Queue[_Check] = asyncio.Queue(self._settings.check_waiting_max)
        self._drops = FailureLog(
            log,
            fails="transaction checks are dropped, the broker repeats them",
            works="transaction checks are handled again",
            name="group",
        )
        self._workers = Supervisor(f"transactions {group}")
        self._unsettled: dict[asyncio.Future[None], asyncio.Task[Any] | None] = {}
        """The calls of `send_in_transaction` that run, and their tasks; each is done when its
        state is sent."""

    async def start(self) -> None:
        """Connect, and make the producer ready to send and to serve transaction checks."""
        await super().start()

    async def close(self) -> None:
        """Wait for the sends and transactions in flight, and close, as `Producer.close` does.

        Called by the listener in the task of its call, it begins the close and returns at once: the
        close waits for the local transaction, whose state is still sent. A check is cancelled
        instead, and the broker checks with another producer of the group.
        """
        task = asyncio.current_task()
        if task in self._workers or task in self._unsettled.values():
            self._check_loop_to_close()
            self._begin_close()
        else:
            await super().close()

    def _runs_here(self) -> bool:
        """Return whether this is a thread in which the listener runs."""
        return self._local.is_calling() or self._checking.is_calling()

    async def _start(self) -> None:
        await super()._start()
        self._instance.requests.register(self._wire_group, self._handlers)
        if self._traces is not None:
            self._end_hooks.append(EndTrace(self._traces, self._settings.trace_topic))
        for number in range(self._settings.check_concurrency):
            self._workers.spawn(self._work(), f"check-{number}")
        if self._settings.topics:
            await self._instance.heartbeat()

    async def _close(self) -> None:
        self._instance.requests.unregister(self._wire_group, self._handlers)
        try:
            await self._workers.cancel()
        finally:
            try:
                await super()._close()
            finally:
                self._local.close()
                self._checking.close()

    async def _end_sends(self, timeout: float) -> None:
        """Wait for the transactions as well, whose states are sent over the open connections."""
        await super()._end_sends(timeout)
        if self._unsettled:
            await asyncio.wait(set(self._unsettled), timeout=timeout)

    @overload
    async def send_in_transaction(
        self: TransactionProducer[None],
        message: Message,
        *,
        timeout: float | timedelta | None = None,
        return_exceptions: bool = False,
    ) -> TransactionReceipt: ...

    @overload
    async def send_in_transaction(
        self,
        message: Message,
        argument: Argument_contra,
        *,
        timeout: float | timedelta | None = None,
        return_exceptions: bool = False,
    ) -> TransactionReceipt: ...

    async def send_in_transaction(
        self,
        message: Message,
        argument: Any = None,
        *,
        timeout: float | timedelta | None = None,
        return_exceptions: bool = False,
        **options: object,
    ) -> TransactionReceipt:
        """Store a half message, run the local transaction, and send its state to the broker.

        Args:
            message: as for `Producer.send`, without a delay.
            argument: passed to the listener.
            timeout: seconds for storing the message. The local transaction has no time limit.
            return_exceptions: return an exception of the local transaction in the result, instead
                of raising it.
            options: none. The other options of `Producer.send` raise a TypeError with the reason.

        Returns:
            The receipt of the half message and the state. If the status is not ``SEND_OK``, the
            local transaction does not run and the state is ROLLBACK.

        Raises:
            The exception of the local transaction: the broker has the state ROLLBACK if it is one
                of ``rollback_on``. Otherwise the state is UNKNOWN, and a check decides.
            TypeError: ``execute`` returned something else than a `LocalState`; the state is
                UNKNOWN. Or an option is not for transactions; nothing was done.
            InvalidMessageError: the message breaks a limit, has a delay or a sharding key; it is
                not sent, and the local transaction does not run.
            Other errors as for `Producer.send`: the local transaction does not run. If the half
                message is stored all the same, consumers do not see it, and the broker checks it.

        If the call is cancelled during the local transaction, consumers do not see the message
        until the broker has checked the transaction. The same holds if the transaction still runs
        when the producer is closed and the setting ``timeout_ms`` is over.
        Source: TransactionMQProducer.sendMessageInTransaction, RocketMQ 5.3. Unlike RocketMQ, it
        raises exceptions of the local transaction, and refuses a delay level instead of removing
        it.
        Example: ``sent = await producer.send_in_transaction(Message("orders", b"42"), order)``
        """
        for option in options:
            reason = f": {_REFUSED[option]}" if option in _REFUSED else ""
            raise TypeError(
                f"send_in_transaction() got an unexpected keyword argument {option!r}{reason}"
            )
        if not isinstance(return_exceptions, bool):
            raise TypeError(f"return_exceptions={return_exceptions!r}: expected True or False")
        check_message_type(message)
        check_fields(message)
        if message.is_delayed or names.DELAY in message.properties:
            raise InvalidMessageError(f"a message of a transaction with a delay: {_NO_DELAY}")
        if names.SHARDING_KEY in message.properties:
            raise InvalidMessageError(
                f"a message of a transaction with the property {names.SHARDING_KEY}: {_NO_ORDER}"
            )
        self._check_loop()
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unsettled[settled] = asyncio.current_task()
        try:
            result = await self._send_and_settle(message, argument, self._time(timeout))
        finally:
            del self._unsettled[settled]
            settled.set_result(None)
        if result.error is not None and not return_exceptions:
            raise result.error
        return result

    async def _send_and_settle(
        self, message: Message, argument: object, timeout: float
    ) -> TransactionReceipt:
        reserved = {names.TRAN_MSG: "true", names.PGROUP: self._wire_group}
        half = copy_message(message)
        receipt = await self._pending.send(half, ANY_QUEUE, timeout, reserved)
        transaction_id = receipt.transaction_id or receipt.message_id
        half.properties[names.UNIQ_KEY] = receipt.message_id
        half.properties[names.TRANSACTION_ID] = transaction_id
        state, error = LocalState.ROLLBACK, None
        if receipt.status is SendStatus.SEND_OK:
            state, error = await self._run("execute", half, argument)
        await self._end(half, receipt, transaction_id, state, error)
        return TransactionReceipt(receipt, state, error)

    async def _run(
        self,
        call: str,
        message: Message | StoredMessage,
        *arguments: object,
        limit_s: float | None = None,
    ) -> tuple[LocalState, BaseException | None]:
        """Call the listener; the result is a state, also if the listener fails or takes too long.

        A `CancelledError` that the listener raises of its own is its failure; one that is meant for
        the calling task goes through.
        """
        is_check = call == "check"
        try:
            caller = self._checking if is_check else self._local
            async with asyncio.timeout(limit_s):
                state = await caller.call(getattr(self._listener, call), message, *arguments)
            if isinstance(state, LocalState):
                return state, None
            failure: BaseException = TypeError(
                f"{call} returned {short(state)}: expected LocalState.COMMIT, ROLLBACK or UNKNOWN"
            )
        except asyncio.CancelledError as error:
            raise_unless_failure(error)
            failure = ClientError(f"{call} raised CancelledError")
            failure.__cause__ = error
        except BaseException as error:
            raise_unless_failure(error)
            failure = error
        rolled_back = not is_check and isinstance(failure, self._rollback_on)
        state = LocalState.ROLLBACK if rolled_back else LocalState.UNKNOWN
        # The caller of a send gets the exception itself; a check has no caller.
        is_traced = is_check and failure.__traceback__ is not None
        log.warning(
            "a transaction listener failed call=%s id=%s group=%s state=%s error=%s",
            call,
            message.properties.get(names.UNIQ_KEY),
            self.group,
            state.value,
            class_and_text(failure),
            exc_info=failure if is_traced and self._traceback_times.is_due(failure) else None,
        )
        return state, failure

    async def _end(
        self,
        message: Message,
        receipt: SendReceipt,
        transaction_id: str,
        state: LocalState,
        error: BaseException | None,
    ) -> None:
        """Send the state to the broker; if that fails, the broker checks later."""
        topic = self._instance.namespace.wrap_topic(message.topic)
        timeout = self._instance.settings.call_timeout_ms / 1000
        address = ""
        try:
            address, broker_name = await self._sender.targets.master_of(receipt.queue, timeout)
            header = EndTransactionRequest(
                producer_group=self._wire_group,
                tran_state_table_offset=receipt.queue_offset,
                commit_log_offset=decode_offset_id(receipt.offset_message_id).log_offset,
                commit_or_rollback=_END_CODES[state],
                from_transaction_check=False,
                msg_id=receipt.message_id,
                transaction_id=transaction_id,
                topic=topic,
                bname=broker_name,
            )
            await self._send_state(address, header, error)
        except CometError as problem:
            log.warning(
                "cannot send a transaction state id=%s state=%s error=%s",
                receipt.message_id,
                state.value,
                problem,
            )
        self._call_end_hooks(
            message, receipt.message_id, transaction_id, address, state, checked=False
        )

    async def _send_state(
        self, address: str, header: EndTransactionRequest, error: BaseException | None
    ) -> None:
        remark = f"the listener failed: {class_and_text(error)}" if error else None
        await self._instance.remoting.oneway(
            address, RequestCode.END_TRANSACTION, header, remark=remark
        )

    # --- checks ------------------------------------------------------------------------

    def _take_check(self, request: Request) -> Response | None:
        """Queue a check; above the limit it is dropped, and the broker repeats it."""
        found = decode_messages(request.body)
        if not found:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "a check without a message")
        header = request.header(CheckTransactionStateRequest)
        message = found[0]
        self._instance.namespace.unwrap_topics(found)
        message.broker_name = header.bname or ""
        # The peer of the socket may be a proxy, or have no certificate for its bare address.
        address = self._instance.remoting.address_of(request.connection)
        try:
            self._checks.put_nowait(
                _Check(header, message, address or request.connection.peer_text)
            )
        except asyncio.QueueFull:
            full = ClientError(f"{self._checks.qsize()} checks wait for the listener")
            self._drops.failed(self.group, full)
        else:
            if self._checks.qsize() == 1:
                self._drops.succeeded(self.group)
        return None

    async def _work(self) -> None:
        while True:
            check = await self._checks.get()
            try:
                await self._check(check)
            except CometError as error:
                log.warning(
                    "cannot send the result of a transaction check id=%s error=%s",
                    check.message.message_id,
                    error,
                )
            except BaseException as error:
                raise_unless_failure(error)
                log.exception(
                    "cannot send the result of a transaction check id=%s", check.message.message_id
                )

    async def _check(self, check: _Check) -> None:
        request, message = check.header, check.message
        state, error = await self._run("check", message, limit_s=CHECK_S_MAX)
        header = EndTransactionRequest(
            producer_group=self._wire_group,
            tran_state_table_offset=request.tran_state_table_offset,
            commit_log_offset=request.commit_log_offset,
            commit_or_rollback=_END_CODES[state],
            from_transaction_check=True,
            msg_id=message.message_id,
            transaction_id=request.transaction_id,
            # The check names the half topic, for which RocketMQ 5.3 would need a right.
            topic=self._instance.namespace.wrap_topic(message.topic),
            bname=request.bname,
        )
        await self._send_state(check.address, header, error)
        self._call_end_hooks(
            message,
            message.message_id,
            request.transaction_id or message.message_id,
            check.address,
            state,
            checked=True,
        )

    def _call_end_hooks(
        self,
        message: Message | StoredMessage,
        message_id: str,
        transaction_id: str,
        address: str,
        state: LocalState,
        *,
        checked: bool,
    ) -> None:
        if not self._end_hooks:
            return
        context = EndContext(
            group=self.group,
            message=message,
            message_id=message_id,
            transaction_id=transaction_id,
            address=address,
            state=state,
            from_check=checked,
            namespace=self._instance.namespace.name,
        )
        call_hooks(self._end_hooks, EndTransactionHook.ended, context)


def _check_exceptions(owner: str, given: object) -> None:
    several = given if isinstance(given, tuple) else (given,)
    for each in several:
        if not isinstance(each, type) or not issubclass(each, Exception):
            raise ConfigError(
                f"{owner}: rollback_on={given!r}: expected a class of exceptions, or a tuple of "
                "classes"
            )
