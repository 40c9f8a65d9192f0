"""Handle orders with FastStream: typed handlers, a publisher, a retry, a reminder by timer.

``faststream run examples.40_faststream:app`` serves it; here ``main`` starts it and sends an order.
"""

import asyncio
import sys

from faststream import FastStream
from pydantic import BaseModel

from cometmq.faststream import ConstantRetry, RocketBroker, RocketMessageContext, RocketResponse

name_servers = sys.argv[1] if __name__ == "__main__" and sys.argv[1:] else "127.0.0.1:9876"
broker = RocketBroker(name_servers, group="order-service", logger=None)
app = FastStream(broker)
done = asyncio.Event()


class Order(BaseModel):
    """What a message of the topic has as JSON."""

    id: str
    amount: int


class Invoice(BaseModel):
    order: str
    total: int


@broker.subscriber("faststream-orders", tags="placed", retry=ConstantRetry(1, attempts_max=3))
@broker.publisher("faststream-invoices")
async def bill(order: Order, message: RocketMessageContext) -> RocketResponse:
    print(f"delivery {message.attempt} of {order.id}")
    if message.attempt == 1:
        raise ConnectionError("the bank does not answer")
    return RocketResponse(Invoice(order=order.id, total=order.amount), keys=[order.id])


@broker.subscriber("faststream-invoices")
async def send_mail(invoice: Invoice) -> None:
    print(f"{invoice.order}: please pay {invoice.total} EUR")
    done.set()


async def main() -> None:
    async with broker:
        await broker.start()
        order = Order(id="order-1", amount=12)
        await broker.publish(order, "faststream-orders", tags="placed", keys=[order.id])
        await done.wait()


if __name__ == "__main__":
    asyncio.run(main())
