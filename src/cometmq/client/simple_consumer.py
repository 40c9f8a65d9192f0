"""Receives, acknowledges and puts off single messages in the application's own loop.

Source: SimpleConsumer of RocketMQ's gRPC clients, over the remoting requests of RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Unpack

from cometmq.client._connection.instance import ClientInstance, acquire_instance
from cometmq.client._connection.name_servers import HasNameServers
from cometmq.client._consuming.consumer import SubscribingConsumer, resolve, subscriptions_of
from cometmq.client._consuming.handler_calls import ConsumeHookCalls
from cometmq.client._consuming.retries import DeadLetterRule, DeadLetters, Retries, pop_delay_s
from cometmq.client._pop.calls import Deliveries, Delivery, PopRequests
from cometmq.client._pop.receiver import Receiver
from cometmq.client._supervision import is_transient
from cometmq.client.errors import ClientClosedError, ReceiptExpiredError, SendFailedError
from cometmq.client.filters import Filter
from cometmq.client.offsets import StartFrom, check_start
from cometmq.client.options import SimpleOptions
from cometmq.client.settings import ClientSettings, SimpleSettings
from cometmq.model.arguments import checks_arguments
from cometmq.model.errors import CometError, ConfigError, ResponseError
from cometmq.model.message import StoredMessage
from cometmq.model.queue import MessageQueue
from cometmq.model.times import milliseconds, timeout_s
from cometmq.protocol.bodies.heartbeat import ConsumeType
from cometmq.protocol.codes import ResponseCode
from cometmq.remoting.slices import batched
from cometmq.remoting.tasks import raise_unless_failure, shielded
from cometmq.system.failure_log import FailureLog

MESSAGES_MAX = 32
"""Messages of one pop, by the broker's limit; also the acks of one call that run at a time."""
INVISIBLE_S_MAX = 43_200.0
RELEASE_S = 5.0
"""How long a close waits for brokers that release messages."""
RENEW_CHECK_S = 0.25
"""Interval at which `SimpleConsumer` looks for invisible times to renew; the shortest is 1 s."""

_NOT_SUPPORTED = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
_RESPONDED = ResponseError, ReceiptExpiredError
"""Errors of one message, after which its broker may still take others."""

_FINAL = (ResponseCode.NO_MESSAGE, ResponseCode.MESSAGE_ILLEGAL)
"""Refusals of a settlement that no retry cures."""

log = logging.getLogger(__name__)


@checks_arguments(unchecked=("ack", "nack", "dead_letter", "extend"))
class SimpleConsumer(SubscribingConsumer):
    """Receives messages one batch at a time; the application settles each of them.

    It works with CometMQ's brokers and with those of RocketMQ 5.

    Args:
        name_servers: ``host:port;host:port``, or a sequence of addresses. If empty, the setting
            ``name_servers`` is used.
        group: the consumer group. All members share the messages of all queues; the others may be
            pop consumers.
        topic: a topic to subscribe to, with all its messages.
        subscriptions: topic to tags such as ``a || b``, or to a `Filter`.
        invisible: seconds, or a timedelta, in which other members do not see a received message.
            It overrides the setting ``invisible_ms``.
        start_from: where a new group starts. On a young store LAST delivers the whole backlog,
            see `StartFrom`.
        settings: the settings of the consumer.
        client: the settings of its connections.
        instance: a shared instance to use. The caller starts and closes it.
        config: a TOML file with settings.
        options: single settings of either kind, by name. They override all others.

    Delivery is at least once: what is not acknowledged within its invisible time is redelivered
    within a few seconds after it. With ``renew=True`` this time starts again until the message is
    settled, or the process ends. `StoredMessage.reconsume_times` counts the redeliveries; a message
    with more than ``retries_max`` of them is dead-lettered. Any number of tasks may call any method
    at once.

    Raises:
        ConfigError: a setting is invalid.
        InvalidNameError: the group name is invalid.

    Example:
        async with SimpleConsumer(
            name_server, group="billing", subscriptions={"orders": "*"}
        ) as consumer:
            for message in await consumer.receive(wait=1.0):
                print(message.body)
                await consumer.ack(message)
    """

    _consume_type = ConsumeType.CONSUME_ACTIVELY

    def __init__(
        self,
        name_servers: str | Sequence[str] | HasNameServers = "",
        *,
        group: str,
        topic: str | None = None,
        subscriptions: Mapping[str, str | Filter] | None = None,
        invisible: float | timedelta | None = None,
        start_from: StartFrom = StartFrom.LAST,
        settings: SimpleSettings | None = None,
        client: ClientSettings | None = None,
        instance: ClientInstance | None = None,
        config: Path | None = None,
        **options: Unpack[SimpleOptions],
    ) -> None:
        check_start(group, start_from, times=False)
        named = dict(options)
        if invisible is not None:
            if "invisible_ms" in named:
                raise ConfigError(f"consumer {group}: give either invisible or invisible_ms")
            named["invisible_ms"] = _invisible_ms("invisible", invisible)
        self._settings, connecting, tables = resolve(
            SimpleSettings, named, settings=settings, client=client, config=config
        )
        lease = acquire_instance(name_servers, settings=connecting, instance=instance)
        super().__init__(
            group,
            lease,
            self._settings,
            tables,
            subscriptions=subscriptions_of(group, topic, subscriptions),
            start_from=start_from,
        )
        rule = DeadLetterRule.of(self._settings.retries_max)
        retries = Retries(
            self._instance,
            self._wire_group,
            rule=rule,
            wrap_topic=self._instance.namespace.wrap_topic,
            on_failed=ConsumeHookCalls(
                (), group=group, client_id=self._instance.client_id, ordered=False
            ).failed,
        )
        self._requests = PopRequests(
            self._instance,
            self._wire_group,
            start=start_from,
            timeout=self._settings.ack_ms / 1000,
        )
        self._give_up = retries.give_up
        self._renewing = FailureLog(
            log,
            fails="cannot renew invisible times, retrying",
            works="invisible times are renewed again",
            name="topic",
        )
        self._renewals: dict[str, asyncio.Task[None]] = {}
        """The task of each broker that renews what was due when it began."""
        self._deliveries = Deliveries(self._settings)
        self._single_acks: set[str] = set()
        """Brokers that know no acknowledgement of several messages, as before RocketMQ 5.1.3."""
        self._receiver = Receiver(
            self._instance,
            self._requests,
            self._deliveries,
            subscriptions=self._subscriptions,
            settings=self._settings,
            dead_letters=DeadLetters(rule, retries.give_up),
            name=self._owner,
            on_permanent=self._tasks.end,
        )

    @property
    def settings(self) -> SimpleSettings:
        """The settings that are in effect."""
        return self._settings

    @property
    def in_flight(self) -> int:
        """The number of received messages without ack or nack. Expired ones may be among them."""
        return len(self._deliveries)

    async def start(self) -> None:
        """Join the group, and let each broker fix where the group starts if it is new.

        A topic that does not exist yet is received from once it does; see `ready`.

        Raises:
            ClientError: the client already has a consumer of this group. The consumer is closed,
                as after all other errors.
            ClientClosedError: the consumer was closed before, or during the start.
            ConfigError: a broker does not support the filter of a subscription.
            ResponseError: a broker is older than RocketMQ 5.0 or does not serve pop, or refuses
                the account.
        """
        await super().start()

    async def _start(self) -> None:
        await self._connect()
        await self._join()
        for topic, each in self._subscriptions.announced().items():
            await self._prepare(topic, each)
        self._check.start(self._tasks)
        if self._settings.renew:
            self._tasks.repeat(RENEW_CHECK_S, self._renew, "renew")

    async def _until_assigned(self) -> None:
        await self._receiver.ready()

    def _missing(self) -> str:
        return self._receiver.failures()

    async def close(self) -> None:
        """Leave the group. Further calls only wait for the end.

        Calls of `receive` that wait raise `ClientClosedError`. Received messages that are not
        settled are redelivered when their invisible time is over; with ``renew``, at once.
        Cancelling stops the waiting, not the closing.
        """
        await super().close()

    async def _close(self) -> None:
        try:
            for renewing in self._renewals.values():
                renewing.cancel()
            await self._receiver.stop()
            if self._settings.renew:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RELEASE_S):
                        brokers = self._deliveries.of_brokers().values()
                        await asyncio.gather(*map(self._release_at, brokers))
        finally:
            await self._release()

    async def _release_at(self, deliveries: Sequence[Delivery]) -> None:
        """Let a broker redeliver what is not settled; without a response it does so later."""
        for some in batched(deliveries, MESSAGES_MAX):
            changes = [self._change(each.message, 0, is_settled=True) for each in some]
            ended = await asyncio.gather(*changes, return_exceptions=True)
            if not all(error is None or isinstance(error, _RESPONDED) for error in ended):
                return

    async def _prepare(self, topic: str, filter: Filter) -> None:
        for queue in self._receiver.queues_of(topic):
            await self._receiver.prepare(queue, filter)

    def _subscriptions_changed(self) -> None:
        self._receiver.notify()

    def queues(self) -> list[MessageQueue]:
        """Return what is received from: one queue -1, for all queues, of each topic and broker."""
        unwrap = self._instance.namespace.unwrap_queue
        return [unwrap(queue) for queue in self._receiver.queues()]

    # --- messages -----------------------------------------------------------------------------

    async def receive(
        self,
        max_messages: int = 16,
        wait: float | timedelta = 10.0,
        *,
        invisible: float | timedelta | None = None,
    ) -> list[StoredMessage]:
        """Receive messages as soon as there are any; none after ``wait`` seconds without one.

        Brokers and topics take turns. No message is lost if it is cancelled: what a broker has
        already handed out goes to the next call, or is redelivered.

        Args:
            max_messages: the limit, at most 32.
            wait: seconds, or a timedelta, to wait for a message. A broker that does not respond can
                add the setting ``ack_ms``.
            invisible: the invisible time of these messages; None for the setting of the consumer.

        Raises:
            ClientClosedError: the consumer is not started, or was closed.
            BackPressureError: as many messages as ``in_flight_max`` are not settled.
            ConfigError: an argument is out of its range.
            CometError: no broker responded until ``wait`` was over.
            Exception: the consumer has failed, and cannot go on.
        """
        self._check_running()
        if not 1 <= max_messages <= MESSAGES_MAX:
            raise ConfigError(f"max_messages={max_messages}: expected 1 to {MESSAGES_MAX}")
        wait_s = timeout_s(wait, "wait")
        if wait_s < 0:
            raise ConfigError(f"wait={wait!r}: expected 0 seconds or more")
        invisible_ms = self._settings.invisible_ms
        if invisible is not None:
            invisible_ms = _invisible_ms("invisible", invisible)
        if self.failure is not None:
            raise self.failure
        return await self._receiver.receive(max_messages, wait_s, invisible_ms)

    async def ack(self, *messages: StoredMessage) -> None:
        """Acknowledge received messages: they are not redelivered.

        Messages of one broker are acknowledged by one request. Each message is tried. If several
        fail, the first error is raised, with a note. Cancelling stops the waiting, not the request.

        Raises:
            ClientClosedError: the consumer is not started, or was closed.
            ReceiptExpiredError: a message is not in flight: it was settled before, or expired.
            ResponseError: the broker refused.
            RemotingError: no response. The message may be acknowledged; it can be tried again.
        """
        self._check_running()
        for message in messages:
            _check_received("ack", message)
        await self._to_its_end(self._ack_all(messages), "ack")

    async def nack(self, message: StoredMessage, delay: float | timedelta | None = None) -> None:
        """Negatively acknowledge a message: it is redelivered, and counted, after a delay.

        The broker adds a few seconds to the delay.

        Args:
            message: the message.
            delay: seconds, or a timedelta, up to 12 hours; None for 10 s, and more each time.

        Raises:
            ClientClosedError: the consumer is not started, or was closed.
            ReceiptExpiredError: the message is not in flight: it was settled before, or expired.
            ConfigError: the delay is out of its range.
            ResponseError: the broker refused.
            RemotingError: no response. The message is redelivered, sooner or later.
        """
        self._check_running()
        _check_received("nack", message)
        later = pop_delay_s(message.reconsume_times) if delay is None else delay
        later_ms = _invisible_ms("delay", later, least_s=0.0)
        await self._settle(lambda: self._change(message, later_ms, is_settled=True), message)

    async def dead_letter(self, message: StoredMessage, error: BaseException | None = None) -> None:
        """Dead-letter a message, as one is after too many redeliveries.

        Args:
            message: the message.
            error: why; stored with the dead letter as ``CONSUME_ERROR``.

        Raises:
            ClientClosedError: the consumer is not started, or was closed.
            ReceiptExpiredError: the message is not in flight: it was settled before, or expired.
            SendFailedError: no broker has stored the dead letter; the message is redelivered.
            ResponseError: the broker refused the acknowledgement; the message may be redelivered.
            RemotingError: no response to it; likewise.
        """
        self._check_running()
        _check_received("dead_letter", message)
        self._deliveries.of(message)
        if not await self._give_up(message, error):
            reason = f"no broker has stored the dead letter of message {message.message_id}"
            raise SendFailedError(message.topic, (), reason)
        await self.ack(message)

    async def extend(self, message: StoredMessage, invisible: float | timedelta) -> None:
        """Extend the invisible time of a received message: it starts again, now.

        Args:
            message: the message. It can be acknowledged until the new time is over.
            invisible: seconds, or a timedelta, from 1 second to 12 hours.

        Raises:
            ClientClosedError: the consumer is not started, or was closed.
            ReceiptExpiredError: the message is not in flight: it was settled before, or expired.
            ConfigError: the time is out of its range.
            ResponseError: the broker refused.
            RemotingError: no response. It is unknown whether the time has changed; if it has, an
                acknowledgement has no effect, and the message is redelivered.
        """
        self._check_running()
        _check_received("extend", message)
        invisible_ms = _invisible_ms("invisible", invisible)
        await self._change(message, invisible_ms, is_settled=False)

    async def _change(self, message: StoredMessage, invisible_ms: int, *, is_settled: bool) -> None:
        async def change(delivery: Delivery) -> None:
            began = time.monotonic()
            delivery.handle = await self._requests.change_invisible_time(
                delivery.topic, delivery.handle, invisible_ms
            )
            delivery.expires_at = began + invisible_ms / 1000
            if is_settled:
                self._deliveries.remove(message)

        await self._to_its_end(self._with_receipt(message, change), "change-invisible-time")

    async def _ack_all(self, messages: Sequence[StoredMessage]) -> None:
        errors: list[BaseException] = []
        for some in batched(messages, MESSAGES_MAX):
            left = await self._ack_together(some) if len(some) > 1 else some
            ended = await asyncio.gather(*map(self._ack, left), return_exceptions=True)
            errors += [error for error in ended if error is not None]
        if errors:
            if len(errors) > 1:
                errors[0].add_note(f"{len(errors)} of {len(messages)} messages failed")
            raise errors[0]

    async def _ack_together(self, messages: Sequence[StoredMessage]) -> list[StoredMessage]:
        """Acknowledge messages by one request for each broker; return those that it did not.

        What fails is left to single requests, which say why, and may be tried again.
        """
        of_brokers: dict[tuple[str, str], dict[Delivery, None]] = defaultdict(dict)
        for message in messages:
            with contextlib.suppress(ReceiptExpiredError):
                delivery = self._deliveries.of(message)
                broker = delivery.topic, delivery.handle.broker_name
                if broker[1] not in self._single_acks and not delivery.lock.locked():
                    of_brokers[broker][delivery] = None
        groups = [(topic, each) for (topic, _), each in of_brokers.items() if len(each) > 1]
        async with contextlib.AsyncExitStack() as locks:
            # In one order, so that two tasks with the same messages do not wait for each other.
            for each in sorted((each for _, found in groups for each in found), key=id):
                await locks.enter_async_context(each.lock)
            joined = [
                (t, [each for each in found if each.handle.may_join()]) for t, found in groups
            ]
            acks = [self._ack_joined(topic, deliveries) for topic, deliveries in joined]
            done = {id(each.message) for found in await asyncio.gather(*acks) for each in found}
        return [message for message in messages if id(message) not in done]

    async def _ack_joined(self, topic: str, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Return the deliveries that are acknowledged: all or none."""
        handles = [each.handle for each in deliveries]
        if not handles:
            return ()
        try:
            await self._requests.ack_together(topic, handles)
        except CometError as error:
            if isinstance(error, ResponseError) and error.code == _NOT_SUPPORTED:
                self._single_acks.add(handles[0].broker_name)
            return ()
        for each in deliveries:
            self._deliveries.remove(each.message)
        return deliveries

    async def _ack(self, message: StoredMessage) -> None:
        async def ack(delivery: Delivery) -> None:
            await self._requests.ack(delivery.topic, delivery.handle)
            self._deliveries.remove(message)

        await self._settle(lambda: self._with_receipt(message, ack), message)

    async def _settle(
        self, act: Callable[[], Coroutine[Any, Any, None]], message: StoredMessage
    ) -> None:
        """Settle a message; with ``settle_again`` more than once, if a retry may help."""
        until = time.monotonic() + self._deliveries.of(message).handle.invisible_ms / 1000
        while True:
            try:
                return await act()
            except CometError as error:
                is_final = isinstance(error, ReceiptExpiredError | ClientClosedError) or (
                    isinstance(error, ResponseError) and error.code in _FINAL
                )
                is_again = self._settings.settle_again and is_transient(error) and not is_final
                if not is_again or time.monotonic() >= until:
                    if self._settings.settle_again:
                        self._deliveries.remove(message)  # not renewed: it is redelivered
                    raise
                if await self._closes():
                    raise

    async def _closes(self) -> bool:
        """Wait for the pause before a retry; return whether the consumer closes within it."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), self._settings.retry_ms / 1000)
        return self._closing.is_set()

    async def _renew(self) -> None:
        """Begin to renew at each broker what is due: one that fails holds up no other."""
        if self._closing.is_set():
            return
        for broker, due in self._deliveries.of_brokers(to_renew=True).items():
            if broker not in self._renewals or self._renewals[broker].done():
                work = self._renew_at(due)
                self._renewals[broker] = self._tasks.spawn(work, f"renew-{broker}")

    async def _renew_at(self, due: Sequence[Delivery]) -> None:
        """Renew messages of a broker, the first to expire first; without a response, pause."""
        for some in batched(sorted(due, key=lambda each: each.expires_at), MESSAGES_MAX):
            if not all(await asyncio.gather(*map(self._renew_one, some))):
                await asyncio.sleep(self._settings.retry_ms / 1000)
                return

    async def _renew_one(self, delivery: Delivery) -> bool:
        """Renew one message; return whether the broker responded."""
        message = delivery.message
        try:
            await self._change(message, delivery.handle.invisible_ms, is_settled=False)
        except ReceiptExpiredError:  # the call that settles it raises this
            return True
        except CometError as error:
            delivery.retry_at = time.monotonic() + self._settings.retry_ms / 1000
            self._renewing.failed(message.topic, error)
            return isinstance(error, _RESPONDED)
        self._renewing.succeeded(message.topic)
        return True

    async def _with_receipt(
        self, message: StoredMessage, use: Callable[[Delivery], Coroutine[Any, Any, None]]
    ) -> None:
        """Use the receipt of a message while no other task may replace or settle it."""
        async with self._deliveries.of(message).lock:
            await use(self._deliveries.of(message))

    async def _to_its_end(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run in a task of its own: a request whose caller is cancelled still ends.

        Otherwise it would be unknown which receipt is valid.

        Raises:
            ClientClosedError: the close of the consumer has ended it.
        """
        try:
            await shielded(self._receiver.work.spawn(work, name, awaited=True))
        except asyncio.CancelledError as error:
            raise_unless_failure(error)
            raise ClientClosedError(
                f"{self._owner} was closed during the {name}: the message may be redelivered"
            ) from None


def _check_received(call: str, message: object) -> None:
    """Check that an argument is one message: `receive` returns a list of them.

    Raises:
        ConfigError: it is something else.
    """
    if not isinstance(message, StoredMessage):
        raise ConfigError(
            f"{call} was given a {type(message).__name__}: expected a message; await "
            f"{call}(message) for each message of a list"
        )


def _invisible_ms(name: str, given: float | timedelta, *, least_s: float = 1.0) -> int:
    """Return an invisible time in ms.

    Raises:
        ConfigError: it is out of its range.
    """
    found = milliseconds(given, name)
    if not least_s <= found / 1000 <= INVISIBLE_S_MAX:
        raise ConfigError(f"{name}={given!r}: expected {least_s:g} to {INVISIBLE_S_MAX:g} seconds")
    return found
