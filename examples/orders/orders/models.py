"""Tables, and the changes of an order. ``python -m orders.models`` creates the tables."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from opentelemetry.propagate import inject
from sqlalchemy import JSON, DateTime, text, update
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from cometmq.client.idempotent.sqlalchemy import TABLE, AsyncSqlTransaction, SqlAlchemyMarks
from orders.settings import settings

engine = create_async_engine(settings.database_url)
sessions = async_sessionmaker(engine, expire_on_commit=False)

BEFORE = {
    "billed": ("placed",),
    "reminded": ("billed",),
    "paid": ("placed", "billed", "reminded"),
    "shipped": ("paid",),
}
"""For each state of an order, those from which it is reached."""
KEEP_MARKS_S = 4 * 24 * 3600
"""Longer than the broker keeps messages: three days."""


class Base(DeclarativeBase):
    pass


TABLE.to_metadata(Base.metadata)


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[str] = mapped_column(primary_key=True)
    article: Mapped[str]
    quantity: Mapped[int]
    state: Mapped[str] = mapped_column(default="placed")
    reminder: Mapped[str | None]
    """The handle by which the reminder is recalled."""


class Article(Base):
    __tablename__ = "articles"
    name: Mapped[str] = mapped_column(primary_key=True)
    price: Mapped[int]
    stock: Mapped[int]


class Event(Base):
    """An event that is not sent yet."""

    __tablename__ = "outbox"
    number: Mapped[int] = mapped_column(primary_key=True)
    id: Mapped[str] = mapped_column(default=lambda: uuid.uuid4().hex)
    order_id: Mapped[str]
    state: Mapped[str]
    trace: Mapped[dict[str, str]] = mapped_column(JSON)
    """The trace to which the change belongs."""


class History(Base):
    __tablename__ = "history"
    number: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str] = mapped_column(index=True)
    state: Mapped[str]
    at: Mapped[datetime] = mapped_column(DateTime(timezone=True), default=lambda: datetime.now(UTC))


class Decision(Base):
    """What a person has decided over a dead letter."""

    __tablename__ = "decisions"
    letter: Mapped[str] = mapped_column(primary_key=True)
    decision: Mapped[str]
    at: Mapped[datetime] = mapped_column(DateTime(timezone=True), default=lambda: datetime.now(UTC))


def event_of(order_id: str, state: str) -> Event:
    """Return the event of a change; add it to the session of the change."""
    trace: dict[str, str] = {}
    inject(trace)
    return Event(order_id=order_id, state=state, trace=trace)


async def change(session: AsyncSession, order_id: str, state: str) -> bool:
    """Change the state of an order and write the event, in the transaction of the session.

    False if the order is not in a state before this one. The update locks the order, so its events
    have growing numbers.
    """
    of = (Order.id == order_id, Order.state.in_(BEFORE[state]))
    changed = await session.execute(
        update(Order).where(*of).values(state=state).returning(Order.id)
    )
    if changed.first() is None:
        return False
    session.add(event_of(order_id, state))
    return True


@asynccontextmanager
async def marked(group: str, key: str) -> AsyncIterator[AsyncSession | None]:
    """Mark a key for a group, and commit what the block does in the same transaction.

    The block gets None if the key is marked already. If it raises, nothing is committed.
    """
    async with sessions() as session:
        is_new = await AsyncSqlTransaction(await session.connection()).mark(group, key)
        yield session if is_new else None
        if is_new:
            await session.commit()


async def create_tables() -> None:
    async with engine.begin() as connection:
        if connection.dialect.name == "sqlite":  # readers and the writer do not wait for each other
            await connection.execute(text("PRAGMA journal_mode=WAL"))
        await connection.run_sync(Base.metadata.create_all)
        await connection.execute(SqlAlchemyMarks.forgetting(KEEP_MARKS_S))
    async with sessions.begin() as session:
        for name, price, stock in (("hat", 12, 100), ("coat", 80, 0)):
            if await session.get(Article, name) is None:
                session.add(Article(name=name, price=price, stock=stock))


if __name__ == "__main__":
    asyncio.run(create_tables())
