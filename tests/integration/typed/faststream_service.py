"""A service with FastStream: options have names and types, decorators keep those of handlers."""

from typing import Annotated, assert_type

from faststream import Depends

from cometmq.client import SendReceipt, TransactionReceipt
from cometmq.faststream import (
    ConstantRetry,
    RocketBroker,
    RocketMessage,
    RocketMessageContext,
    RocketPublisher,
    RocketResponse,
    RocketRoute,
    RocketRouter,
    Transaction,
)


class Order:
    id: str


class OwnRetry:
    def delay_s(self, attempt: int) -> float | None:
        return None


class NoPolicy:
    def delay(self, attempt: int) -> float:
        return 1.0


broker = RocketBroker(["127.0.0.1:9876"], group="shop", graceful_timeout=3.0)
RocketBroker(nameservers="127.0.0.1:9876")  # error
RocketBroker(graceful_timeout="3")  # error


@broker.subscriber("orders", tags="paid", max_workers=4, retry=ConstantRetry(1, attempts_max=3))
@broker.publisher("invoices", tags="new", delay=60)
async def bill(order: Order, message: RocketMessageContext) -> int:
    assert_type(message, RocketMessage)
    await message.nack(delay=5)
    await message.nack(delay="5")  # error
    await message.reject("not ours")
    return 1


async def call(message: RocketMessage) -> None:
    assert_type(await bill(Order(), message), int)
    await bill(42, message)  # error
    await bill(Order())  # error


broker.subscriber("orders", pop=True, invisible=5, retry=OwnRetry())
broker.subscriber("orders", tag="paid")  # error
broker.subscriber("orders", max_workers="4")  # error
broker.subscriber("orders", auto_offset_reset="first")  # error
broker.subscriber("orders", retry=NoPolicy())  # error
broker.subscriber("orders", settings={"consume_minutes": 5})  # error
broker.publisher("invoices", batch=1)  # error
broker.publisher("invoices", key=b"42")  # error


def session() -> str:
    return "session"


@broker.transaction("orders", group="shop", keys=["a"])
async def place(order: Order, used: Annotated[str, Depends(session)]) -> None: ...


assert_type(place, Transaction[Order])


@place.check
async def is_placed(order: Order, used: Annotated[str, Depends(session)]) -> bool:
    return True


@place.check  # error
async def is_wrong(order: int) -> bool:
    return True


@broker.transaction("orders")  # error
async def without_a_group(order: Order) -> None: ...


async def main() -> None:
    receipt = await broker.publish(Order(), "orders", key="42", keys=["42"], delay=3)
    assert_type(receipt, SendReceipt)
    assert_type(await broker.request("EUR", "quotes", timeout=3), RocketMessage)
    assert_type(await place(Order(), keys=["42"]), TransactionReceipt)
    await broker.publish(Order(), "orders", dely=3)  # error
    await broker.publish(Order(), "orders", tags=3)  # error
    await broker.request("EUR", "quotes", timeout="3")  # error
    await broker.recall(receipt)
    await broker.recall(42)  # error
    await place(42)  # error
    RocketResponse(1, tags="new", headers={"a": 1})
    RocketResponse(1, topic="new")  # error


router = RocketRouter("shop-", [RocketRoute(main, "orders", publishers=[RocketPublisher("b")])])
broker.include_router(router, prefix="test-")
broker.include_router(router, prefixes="test-")  # error
RocketRoute(main, "orders", tag="paid")  # error
