"""Messages that are delivered only if a local transaction commits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, Concatenate, Generic, TypeVar, Unpack

from faststream._internal.broker import BrokerUsecase
from faststream.exceptions import SetupError
from faststream.response.publish_type import PublishType

from cometmq import client as rocketmq
from cometmq.client import LocalState
from cometmq.faststream.connection import connected
from cometmq.faststream.options import PublishOptions
from cometmq.faststream.publisher import RocketBrokerConfig

Payload = TypeVar("Payload")
Function = Callable[Concatenate[Payload, ...], Any]  # gets the payload, and its dependencies
Local = Callable[[], Awaitable[LocalState]]


class Transaction(Generic[Payload]):
    """A function that commits to a database, and the message that is delivered if it does.

    The half message is stored first; then the function runs, with its dependencies; then the broker
    delivers the message, or drops it if the function returned False. If the process dies in
    between, the broker asks any process of the group, which calls the function of `check`.

    Example:
        @broker.transaction("orders", group="shop")
        async def place(order: Order, session: Session = Depends(session)) -> None:
            session.add(Row(order.id))
            await session.commit()

        @place.check
        async def is_placed(order: Order, session: Session = Depends(session)) -> bool:
            return await session.get(Row, order.id) is not None

        await place(Order(id="42"))
    """

    def __init__(
        self,
        broker: BrokerUsecase[Any, Any, RocketBrokerConfig],
        topic: str,
        group: str,
        options: PublishOptions,
        execute: Function[Payload],
    ) -> None:
        self.topic, self.group = topic, group
        self.producer: rocketmq.TransactionProducer[Local] | None = None
        """Sends the messages, once the broker is started."""
        self._broker = broker
        self._config = broker.config.broker_config
        self._options = options
        self._execute = execute
        self._check: Function[Payload] | None = None
        self._built: dict[Function[Payload], Callable[..., Awaitable[Any]]] = {}

    def check(self, function: Function[Payload]) -> Function[Payload]:
        """Decorate the function that says later whether the transaction has committed.

        It returns True, False, or None if that is not known yet.
        """
        self._check = function
        return function

    def checked(self) -> Function[Payload]:
        """Return the function for checks; without one it raises `SetupError`."""
        if self._check is None:
            name = getattr(self._execute, "__name__", "execute")
            reason = f"the transaction of topic {self.topic} has no function for checks"
            raise SetupError(f"{reason}: decorate one with @{name}.check")
        return self._check

    async def start(self) -> None:
        """Become a member of the group, which answers checks."""
        if self.producer is not None:
            return
        check = partial(self._state_of, self.checked(), LocalState.UNKNOWN)
        listener: Any = SimpleNamespace(execute=lambda message, local: local(), check=check)
        connection = connected(self._config.connection)
        await connection.ensure_topic(self.topic)
        options: Any = connection.producer_options | {"topics": (self.topic,)}
        self.producer = rocketmq.TransactionProducer(
            group=self.group, listener=listener, instance=connection.instance, **options
        )
        await self.producer.start()

    async def stop(self) -> None:
        """Leave the group."""
        producer, self.producer = self.producer, None
        if producer is not None:
            await producer.close()

    async def __call__(
        self, payload: Payload, **options: Unpack[PublishOptions]
    ) -> rocketmq.TransactionReceipt:
        """Store the message, run the function with it, and tell the broker the result.

        Options of this message, such as ``keys``, replace those of the decorator; ``timeout`` is
        for storing it. If the state is UNKNOWN, the broker checks it later: also after an exception
        of the function, which is raised, since its commit may have succeeded.
        """
        chosen: PublishOptions = {**self._options, **options}
        cmd = self._config.command(PublishType.PUBLISH, (payload,), self.topic, chosen)
        cmd.transaction = partial(self._send, chosen.get("timeout"))
        return await self._broker._basic_publish(cmd, producer=self._config.producer)  # type: ignore[no-any-return]

    async def _send(
        self, timeout: float | None, message: rocketmq.Message
    ) -> rocketmq.TransactionReceipt:
        if self.producer is None:
            raise SetupError(f"the broker of the transaction of topic {self.topic} is not started")
        stored = rocketmq.StoredMessage.of(message)
        local = partial(self._state_of, self._execute, LocalState.COMMIT, stored)
        return await self.producer.send_in_transaction(message, local, timeout=timeout)

    async def _state_of(
        self, function: Function[Payload], default: LocalState, message: rocketmq.StoredMessage
    ) -> LocalState:
        """Call one of the functions with a message, and return what it says."""
        config = self._config
        parsed = await config.producer._parser(message)
        parsed.set_decoder(config.producer._decoder)
        if function not in self._built:  # with its dependencies
            self._built[function] = config.fd_config.build_call(function).wrapped_call
        with config.context.scopes((("message", parsed), *config.extra_context.items())):
            result = await self._built[function](parsed)
        if result is None or isinstance(result, LocalState):
            return result or default
        return LocalState.COMMIT if result else LocalState.ROLLBACK
