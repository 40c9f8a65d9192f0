"""The handlers. Run it: ``faststream run orders.worker:app``."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from faststream import Context, Depends, FastStream
from faststream.exceptions import AckMessage, RejectMessage
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from cometmq.faststream import ConstantRetry, ExponentialRetry, RocketMessageContext
from orders.bus import broker, servers
from orders.messages import EVENTS, ORDERS, QUOTES, REMINDERS, NewOrder, OrderEvent, Quote
from orders.models import Article, History, Order, change, engine, marked, sessions
from orders.outbox import relay
from orders.settings import settings
from orders.telemetry import order_changes, start_telemetry

RETRY = ExponentialRetry(1, attempts_max=8)
"""After 1, 2, 4 seconds and so on; the eighth failure makes a dead letter."""


async def once(
    message: RocketMessageContext, group: Annotated[str, Context("handler_.group")]
) -> AsyncIterator[AsyncSession]:
    """Give a handler a session in whose transaction its message is marked for its group.

    A message that was handled before is acknowledged, and the handler is not called. ``handler_``
    is FastStream's name of the subscriber.
    """
    async with marked(group, message.keys[0]) as session:
        if session is None:
            raise AckMessage
        yield session


Session = Annotated[AsyncSession, Depends(once)]


@broker.subscriber(ORDERS, group="shop-billing", retry=RETRY)
async def bill(order: NewOrder, session: Session) -> None:
    """Bill an order, and set the timer of its reminder."""
    if not await change(session, order.id, "billed"):
        return  # it is paid already
    reminder = await broker.publish(
        order, REMINDERS, keys=[f"{order.id}-reminder"], delay=settings.remind_after_s
    )
    handle = update(Order).where(Order.id == order.id).values(reminder=reminder.recall_handle)
    await session.execute(handle)


@broker.subscriber(REMINDERS, group="shop-reminding", retry=RETRY)
async def remind(order: NewOrder, session: Session) -> None:
    """Remind of an order that is not paid. If it is, the recall came too late."""
    await change(session, order.id, "reminded")


@broker.subscriber(EVENTS, tags="paid", group="shop-shipping", retry=RETRY)
async def ship(event: OrderEvent, session: Session) -> None:
    """Take an order from the stock. Without stock a person must decide: no retry would help."""
    order = await session.get_one(Order, event.order_id)
    enough = (Article.name == order.article, Article.stock >= order.quantity)
    less = update(Article).where(*enough).values(stock=Article.stock - order.quantity)
    if (await session.execute(less.returning(Article.name))).first() is None:
        raise RejectMessage(reason=f"fewer than {order.quantity} {order.article} in stock")
    await change(session, order.id, "shipped")


@broker.subscriber(EVENTS, group="shop-tracking", ordered=True, retry=ConstantRetry(1))
async def track(event: OrderEvent, session: Session) -> None:
    """Write the history of an order; its events come in order."""
    session.add(History(order_id=event.order_id, state=event.state))
    order_changes.add(1, {"state": event.state})


@broker.subscriber(QUOTES, group="shop-quoting")
async def quote(article: str) -> Quote | None:
    """Respond to a request for price and stock."""
    async with sessions() as session:
        found = await session.get(Article, article)
    if found is None:
        return None
    return Quote(article=found.name, price=found.price, stock=found.stock)


@asynccontextmanager
async def lifespan() -> AsyncIterator[None]:
    start_telemetry("worker")
    async with servers, asyncio.TaskGroup() as tasks:
        relaying = tasks.create_task(relay())  # an error that it does not expect ends the worker
        yield
        relaying.cancel()
    await engine.dispose()


app = FastStream(broker, lifespan=lifespan)
