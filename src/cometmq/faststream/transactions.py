"""Messages that are delivered only if a local transaction commits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from faststream._internal.broker import BrokerUsecase
from faststream.exceptions import SetupError
from faststream.response.publish_type import PublishType

from cometmq.client import (
    LocalState,
    Message,
    StoredMessage,
    TransactionProducer,
    TransactionReceipt,
)
from cometmq.faststream.config import RocketBrokerConfig
from cometmq.faststream.connection import Connection, connected
from cometmq.faststream.message import as_stored
from cometmq.faststream.options import PublishOptions
from cometmq.faststream.publisher import command_of


class Transaction:
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
        broker: BrokerUsecase[Any, Connection, RocketBrokerConfig],
        topic: str,
        group: str,
        options: PublishOptions,
        execute: Callable[..., Any],
    ) -> None:
        self.topic = topic
        self.group = group
        self._broker = broker
        self._options = options
        self._execute = execute
        self._check: Callable[..., Any] | None = None
        self._run: Callable[..., Any] | None = None
        self._look: Callable[..., Any] | None = None
        self._producer: TransactionProducer[Any] | None = None

    def check(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate the function that says later whether the transaction has committed.

        It returns True, False, or None if that is not known yet.
        """
        self._check = function
        return function

    async def start(self) -> None:
        """Become a member of the group, which answers checks.

        Raises:
            SetupError: there is no function for checks.
        """
        connection = connected(self._broker.config.broker_config.connection)
        self.prepare()
        await connection.ensure_topic(self.topic)
        self._producer = TransactionProducer(
            group=self.group,
            listener=_Listener(self),
            instance=connection.instance,
            topics=(self.topic,),
        )
        await self._producer.start()

    def prepare(self) -> None:
        """Resolve the dependencies of the functions.

        Raises:
            SetupError: there is no function for checks.
        """
        if self._check is None:
            raise SetupError(
                f"the transaction of topic {self.topic} has no function for checks: decorate one"
                f" with @{getattr(self._execute, '__name__', 'execute')}.check"
            )
        config = self._broker.config.fd_config
        self._run = config.build_call(self._execute).wrapped_call
        self._look = config.build_call(self._check).wrapped_call

    async def stop(self) -> None:
        """Leave the group."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close()

    async def __call__(
        self,
        payload: Any,
        timeout: float | None = None,
        **options: Unpack[PublishOptions],
    ) -> TransactionReceipt:
        """Store the message, run the function, and tell the broker its result.

        Args:
            payload: the body of the message, and the first argument of the functions.
            timeout: seconds for storing the message; None for the client's setting.
            options: of this message, such as ``keys``; they replace those of the decorator.

        Returns:
            The receipt of the message and the state: if it is UNKNOWN, the broker checks it later.

        Raises:
            Exception: that of the function: the state is UNKNOWN, since its commit may have
                succeeded.
        """
        ids = self._broker.config.id_generator
        chosen: PublishOptions = {**self._options, **options}
        cmd = command_of(PublishType.PUBLISH, (payload,), self.topic, chosen, ids, timeout=timeout)
        cmd.transaction = self
        receipt: TransactionReceipt = await self._broker._basic_publish(
            cmd, producer=self._broker.config.broker_config.producer
        )
        return receipt

    async def send(self, message: Message, timeout: float | None) -> TransactionReceipt:
        """Store a half message, and run the transaction."""
        if self._producer is None:
            raise SetupError(f"the broker of the transaction of topic {self.topic} is not started")
        return await self._producer.send_in_transaction(message, message, timeout=timeout)

    async def state_of(self, message: StoredMessage | Message, *, is_check: bool) -> LocalState:
        """Call one of the functions with a message, and return what it says."""
        call = self._look if is_check else self._run
        assert call is not None
        context = self._broker.config.context
        raw = message if isinstance(message, StoredMessage) else as_stored(message)
        parsed = await self._broker.config.producer._parser(raw)
        parsed.set_decoder(self._broker.config.producer._decoder)
        with context.scopes((("message", parsed), ("broker", self._broker))):
            result = await call(parsed)
        if result is None:
            return LocalState.UNKNOWN if is_check else LocalState.COMMIT
        if isinstance(result, LocalState):
            return result
        return LocalState.COMMIT if result else LocalState.ROLLBACK


class _Listener:
    """Calls the functions of a transaction."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def execute(self, message: Message, argument: Message) -> LocalState:
        """Run the local transaction."""
        return await self._transaction.state_of(argument, is_check=False)

    async def check(self, message: StoredMessage) -> LocalState:
        """Say whether it has committed."""
        return await self._transaction.state_of(message, is_check=True)
