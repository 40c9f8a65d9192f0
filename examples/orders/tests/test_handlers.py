"""Unit tests: handlers and database, without a broker, in milliseconds."""

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from orders import api, worker
from orders.bus import broker
from orders.messages import EVENTS, ORDERS, NewOrder, OrderEvent
from orders.models import Article, History, Order, change, sessions
from orders.outbox import relay_once
from sqlalchemy import select

from cometmq.client import LocalState
from cometmq.faststream import TestRocketBroker


@pytest.fixture
async def tester(database: None) -> AsyncIterator[TestRocketBroker]:
    tester = TestRocketBroker(broker)
    async with tester:
        yield tester


@pytest.fixture
async def order() -> NewOrder:
    """An order of an article that is nobody else's."""
    order = NewOrder(id=uuid4().hex, article=f"hat {uuid4().hex}", quantity=2)
    async with sessions.begin() as session:
        session.add(Article(name=order.article, price=12, stock=5))
    return order


async def placed(order: NewOrder) -> LocalState:
    return (await api.place(order, keys=[order.id])).state


async def history(order: NewOrder) -> list[str]:
    """Send what is in the outbox, and return the states that were tracked."""
    while await relay_once():
        pass
    wanted = select(History.state).where(History.order_id == order.id).order_by(History.number)
    async with sessions() as session:
        return [*await session.scalars(wanted)]


async def stock(order: NewOrder) -> int:
    async with sessions() as session:
        return (await session.get_one(Article, order.article)).stock


async def test_an_order_that_is_paid_is_shipped_and_its_reminder_recalled(tester, order):
    assert await placed(order) is LocalState.COMMIT
    assert len(tester.delayed) == 1
    await api.pay(order.id)
    assert tester.delayed == []
    assert await history(order) == ["placed", "billed", "paid", "shipped"]
    assert await stock(order) == 3


async def test_an_order_that_is_not_paid_is_reminded_once(tester, order):
    await placed(order)
    assert await tester.advance(3599) == 0
    assert await tester.advance(1) == 1
    assert await tester.advance(3600) == 0
    assert await history(order) == ["placed", "billed", "reminded"]


async def test_an_order_is_placed_once(tester, order):
    assert await placed(order) is LocalState.COMMIT
    assert await placed(order) is LocalState.ROLLBACK
    assert await history(order) == ["placed", "billed"]


async def test_an_order_that_a_check_did_not_find_is_never_placed(tester, order):
    assert not await api.is_placed(order)
    assert await placed(order) is LocalState.ROLLBACK
    assert not await api.is_placed(order)


async def test_a_reminder_of_a_paid_order_changes_nothing(tester, order):
    await placed(order)
    async with sessions.begin() as session:  # a payment whose recall did not reach the broker
        assert await change(session, order.id, "paid")
    assert await tester.advance(3600) == 1
    assert await history(order) == ["placed", "billed", "paid", "shipped"]


async def test_a_message_that_comes_twice_changes_the_rows_once(tester, order):
    await placed(order)
    await broker.publish(order, ORDERS, keys=[order.id])
    assert len(tester.delayed) == 1
    await api.pay(order.id)
    paid = OrderEvent(order_id=order.id, state="paid")
    for _ in range(2):
        await broker.publish(paid, EVENTS, tags="paid", keys=[f"{order.id}-2"], key=order.id)
    assert await stock(order) == 3


async def test_a_rejected_message_is_handled_when_it_is_sent_again(tester, order):
    async with sessions.begin() as session:
        session.add(Order(id=order.id, article=order.article, quantity=6, state="paid"))
    paid = OrderEvent(order_id=order.id, state="paid")
    for supply, left in ((5, 5), (7, 1)):
        await api.supply(order.article, api.Supply(price=12, stock=supply))
        await broker.publish(paid, EVENTS, tags="paid", keys=[f"{order.id}-2"], key=order.id)
        assert await stock(order) == left


async def test_a_worker_quotes_price_and_stock(tester, order):
    assert await api.show_article(order.article) == worker.Quote(
        article=order.article, price=12, stock=5
    )
