"""Messages that are delivered only if a local transaction commits.

The message is stored first, and seen by nobody; then the local part is done, and the broker is
told how it ended. Where it is not told, it asks later, any producer of the group.

Source: TransactionMQProducer, DefaultMQProducerImpl.sendMessageInTransaction and
checkTransactionState, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cometmq.client.calling import Caller, is_own_failure
from cometmq.client.config import ClientSettings, ProducerSettings
from cometmq.client.handlers import LocalState, TransactionListener
from cometmq.client.hooks import EndContext, EndTransactionHook, ForbiddenHook, SendHook
from cometmq.client.instance import ClientInstance
from cometmq.client.producer import Producer
from cometmq.client.receipt import SendReceipt, SendStatus
from cometmq.client.trace import EndTrace
from cometmq.model import property_names as names
from cometmq.model.errors import CometError, InvalidMessageError, ResponseError
from cometmq.model.flags import SysFlag
from cometmq.model.message import Message, StoredMessage
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers import CheckTransactionStateRequest, EndTransactionRequest
from cometmq.protocol.message_id import decode_offset_id
from cometmq.protocol.record import decode_messages
from cometmq.remoting import Request, Response
from cometmq.remoting.tasks import Supervisor

log = logging.getLogger(__name__)

_END_CODES = {
    LocalState.COMMIT: SysFlag.TRANSACTION_COMMIT,
    LocalState.ROLLBACK: SysFlag.TRANSACTION_ROLLBACK,
    LocalState.UNKNOWN: SysFlag.TRANSACTION_NONE,
}
REMARK_CHARS_MAX = 1_024
"""How much of an error's text a broker is told."""
LOCAL_THREADS = 16
"""Local parts of plain listeners that run at a time."""


@dataclass(frozen=True, slots=True)
class TransactionReceipt:
    """What became of a message that was sent in a transaction."""

    receipt: SendReceipt
    """Where the half message is stored."""
    state: LocalState
    """What the broker was told. UNKNOWN: it asks later, and the message waits until then."""
    error: BaseException | None = None
    """What the local part raised; the state is UNKNOWN then."""


@dataclass(frozen=True, slots=True)
class _Check:
    """A broker's question."""

    header: CheckTransactionStateRequest
    message: StoredMessage
    address: str


class TransactionProducer(Producer):
    """A producer whose messages are delivered only if a local transaction commits.

    Args:
        name_servers: ``host:port;host:port``, or a sequence of addresses.
        group: name of the producers that share the listener's data: a broker asks any of them.
        listener: does the local part, and tells later what became of it.
        settings, client, instance, hooks, config, options: as for `Producer`; hooks may watch the
            ends of transactions as well.

    A broker asks only producers that it knows: one that has sent to it, or was started with the
    setting ``topics``.
    Example: ``TransactionProducer("127.0.0.1:9876", group="shop", listener=Orders())``
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] = "",
        *,
        group: str,
        listener: TransactionListener,
        settings: ProducerSettings | None = None,
        client: ClientSettings | None = None,
        instance: ClientInstance | None = None,
        hooks: Sequence[SendHook | ForbiddenHook | EndTransactionHook] = (),
        config: Path | None = None,
        **options: Any,
    ) -> None:
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
        self._wire_group = self._instance.namespace.wrap_group(group)
        self._end_hooks = [hook for hook in hooks if isinstance(hook, EndTransactionHook)]
        self._local = Caller(LOCAL_THREADS, f"{group}-local")
        self._checking = Caller(self._settings.check_concurrency, f"{group}-check")
        self._checks: asyncio.Queue[_Check] = asyncio.Queue(self._settings.check_waiting_max)
        self._workers = Supervisor(f"transactions {group}")

    async def start(self) -> None:
        """Make the producer ready to send, and to answer what brokers ask."""
        await super().start()
        self._instance.requests.answer(
            RequestCode.CHECK_TRANSACTION_STATE, self._wire_group, self._take_check
        )
        if self._traces is not None:
            self._end_hooks.append(EndTrace(self._traces, self._settings.trace_topic))
        for number in range(self._settings.check_concurrency):
            self._workers.spawn(self._work(), f"check-{number}")
        try:
            if self._settings.topics:
                await self._instance.heartbeat()
        except BaseException:
            await self.close()
            raise

    async def _close(self) -> None:
        # Answers no more questions, then closes as every producer does.
        self._instance.requests.forget(self._wire_group, RequestCode.CHECK_TRANSACTION_STATE)
        try:
            await self._workers.cancel()
        finally:
            self._local.close()
            self._checking.close()
            await super()._close()

    async def send_in_transaction(
        self, message: Message, argument: object = None, *, timeout: float | None = None
    ) -> TransactionReceipt:
        """Store a message, do the local part, and tell the broker how it ended.

        Args:
            message: as for `Producer.send`; its delay level is not heeded.
            argument: handed to the listener.
            timeout: seconds for storing the message; the local part takes as long as it does.

        Returns:
            Where the half message is, and what the broker was told. With a status other than
            ``SEND_OK`` the local part is not done, and the broker told to forget the message.
            What the local part raises is in ``error``; it does not raise here.

        Raises:
            InvalidMessageError: the message breaks a limit or is a timer message; nothing was sent
                and the local part was not done.
            Everything else as `Producer.send`: the local part was not done, and a message that is
                stored all the same stays unseen until the broker asks.

        Cancelling during the local part leaves the message unseen until the broker asks.
        Source: TransactionMQProducer.sendMessageInTransaction, RocketMQ 5.3.
        Example: ``sent = await producer.send_in_transaction(Message("orders", b"42"), order)``
        """
        if message.is_timed:
            raise InvalidMessageError("a message in a transaction cannot be delivered by a timer")
        reserved = {names.TRAN_MSG: "true", names.PGROUP: self._wire_group}
        half = dataclasses.replace(message, delay_level=0, properties=dict(message.properties))
        receipt = await self._sender.send_message(
            half, timeout=self._time(timeout), reserved=reserved
        )
        transaction_id = receipt.transaction_id or receipt.message_id
        half.properties[names.UNIQ_KEY] = receipt.message_id
        half.properties[names.TRANSACTION_ID] = transaction_id
        state, error = LocalState.ROLLBACK, None
        if receipt.status is SendStatus.SEND_OK:
            state, error = await self._ask(self._local, self._listener.execute, half, argument)
        await self._end(half, receipt, transaction_id, state, error)
        return TransactionReceipt(receipt, state, error)

    async def _ask(
        self, caller: Caller, question: Callable[..., Any], *arguments: Any
    ) -> tuple[LocalState, BaseException | None]:
        """Call the listener; whatever goes wrong, the answer is a state.

        A `CancelledError` that the listener raises of its own is its failure; one that is meant for
        the calling task goes through.
        """
        try:
            state = await caller.call(question, *arguments)
        except BaseException as error:
            if not is_own_failure(error):
                raise
            log.warning(
                "a transaction listener failed group=%s error=%s", self.group, type(error).__name__
            )
            return LocalState.UNKNOWN, error
        return (state if isinstance(state, LocalState) else LocalState.UNKNOWN), None

    async def _end(
        self,
        message: Message,
        receipt: SendReceipt,
        transaction_id: str,
        state: LocalState,
        error: BaseException | None,
    ) -> None:
        """Tell the broker; one that cannot be told asks later."""
        topic = self._instance.namespace.wrap_topic(message.topic)
        timeout = self._instance.settings.call_timeout_ms / 1000
        address = ""
        try:
            address, broker_name = await self._sender.destinations.master_of(receipt.queue, timeout)
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
            await self._tell(address, header, error)
        except CometError as problem:
            log.warning(
                "broker not told of a transaction's end id=%s state=%s error=%s",
                receipt.message_id,
                state.value,
                problem,
            )
        self._show_end(message, receipt.message_id, transaction_id, address, state, checked=False)

    async def _tell(
        self, address: str, header: EndTransactionRequest, error: BaseException | None
    ) -> None:
        remark = f"the listener failed: {type(error).__name__}: {error}" if error else None
        await self._instance.remoting.oneway(
            address,
            RequestCode.END_TRANSACTION,
            header,
            remark=remark and remark[:REMARK_CHARS_MAX],
        )

    # --- what brokers ask ------------------------------------------------------------------------

    def _take_check(self, request: Request) -> Response | None:
        """Put a broker's question into the queue; one too many is dropped, and comes again."""
        found = decode_messages(request.body)
        if not found:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "a check without a message")
        header = request.header(CheckTransactionStateRequest)
        message = found[0]
        message.topic = self._instance.namespace.unwrap(message.topic)
        message.broker_name = header.bname or ""
        try:
            self._checks.put_nowait(_Check(header, message, request.connection.peer_text))
        except asyncio.QueueFull:
            log.warning("a transaction check is dropped: too many wait group=%s", self.group)
        return None

    async def _work(self) -> None:
        while True:
            check = await self._checks.get()
            try:
                await self._answer(check)
            except CometError as error:
                log.warning(
                    "a transaction check is not answered id=%s error=%s",
                    check.message.message_id,
                    error,
                )
            except Exception:
                log.exception("a transaction check is not answered id=%s", check.message.message_id)

    async def _answer(self, check: _Check) -> None:
        asked, message = check.header, check.message
        state, error = await self._ask(self._checking, self._listener.check, message)
        header = EndTransactionRequest(
            producer_group=self._wire_group,
            tran_state_table_offset=asked.tran_state_table_offset,
            commit_log_offset=asked.commit_log_offset,
            commit_or_rollback=_END_CODES[state],
            from_transaction_check=True,
            msg_id=message.message_id,
            transaction_id=asked.transaction_id,
            topic=asked.topic,
            bname=asked.bname,
        )
        await self._tell(check.address, header, error)
        self._show_end(
            message,
            message.message_id,
            asked.transaction_id or message.message_id,
            check.address,
            state,
            checked=True,
        )

    def _show_end(
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
        for hook in self._end_hooks:
            try:
                hook.ended(context)
            except Exception:
                log.exception("a hook failed hook=%s call=ended", type(hook).__name__)
