"""The argument of a transaction: its type is that of the listener."""

from cometmq.client import LocalState, Message, StoredMessage, TransactionProducer, blocking

MESSAGE = Message("orders", b"42")


class Orders:
    """Writes orders, which have a number."""

    async def execute(self, message: Message, order: int) -> LocalState:
        """Write the order."""
        return LocalState.COMMIT

    async def check(self, message: StoredMessage) -> LocalState:
        """Look the order up."""
        return LocalState.COMMIT


class Untyped:
    """Takes any argument, and none."""

    def execute(self, message: Message, argument: object) -> LocalState:
        """Do nothing."""
        return LocalState.COMMIT

    def check(self, message: StoredMessage) -> LocalState:
        """Say what became of it."""
        return LocalState.COMMIT


async def send(orders: TransactionProducer[int]) -> None:
    """Send with an argument of each type, and without one."""
    await orders.send_in_transaction(MESSAGE, 42)
    await orders.send_in_transaction(MESSAGE, "42")  # error
    await orders.send_in_transaction(MESSAGE)  # error
    await orders.send_in_transaction(MESSAGE, 42, order_key="42")  # error


async def send_anything(producer: TransactionProducer[object]) -> None:
    """Send with any argument."""
    await producer.send_in_transaction(MESSAGE)
    await producer.send_in_transaction(MESSAGE, "42", timeout=1, return_exceptions=True)


def make() -> None:
    """Make producers, whose type follows from the listener."""
    blocking.TransactionProducer(group="g", listener=Untyped()).send_in_transaction(MESSAGE)
    with blocking.TransactionProducer(
        group="g", listener=Untyped(), rollback_on=(KeyError, ValueError)
    ) as producer:
        producer.send_in_transaction(MESSAGE, 42)
    orders: TransactionProducer[int] = TransactionProducer(group="g", listener=Orders())
    TransactionProducer[str](group="g", listener=Orders())  # error
    TransactionProducer(group="g", listener=Orders(), rollback_on="KeyError")  # error
    print(orders)
