"""Sends the events of the outbox, oldest first, and deletes those that a broker has stored."""

import asyncio
import logging

from faststream.exceptions import FastStreamException
from opentelemetry import context
from opentelemetry.propagate import extract
from sqlalchemy import delete, func, select
from sqlalchemy.exc import SQLAlchemyError

from cometmq.client import CometError
from orders.bus import broker
from orders.messages import EVENTS, OrderEvent
from orders.models import Event, sessions
from orders.telemetry import outbox_events

BATCH, PAUSE_S, RETRY_S = 100, 0.2, 1.0
log = logging.getLogger(__name__)


async def relay_once() -> int:
    """Send the oldest events, and return how many there were.

    PostgreSQL lets one worker at a time send: others wait for its rows. SQLite has no such locks;
    two workers may send an event twice there, and its key tells the consumers.
    """
    async with sessions.begin() as session:
        oldest = select(Event).order_by(Event.number).limit(BATCH).with_for_update()
        events = (await session.scalars(oldest)).all()
        for event in events:
            token = context.attach(extract(event.trace))
            try:
                message = OrderEvent(order_id=event.order_id, state=event.state)
                await broker.publish(
                    message, EVENTS, tags=event.state, keys=[event.id], key=event.order_id
                )
            finally:
                context.detach(token)
        sent = [event.number for event in events]
        await session.execute(delete(Event).where(Event.number.in_(sent)))
        outbox_events.set(await session.scalar(select(func.count()).select_from(Event)) or 0)
    return len(sent)


async def relay() -> None:
    """Send events until it is cancelled. While the broker or the database is down, they wait."""
    while True:
        try:
            if not await relay_once():
                await asyncio.sleep(PAUSE_S)
        except (CometError, FastStreamException, SQLAlchemyError, OSError) as error:
            log.warning("the outbox waits: %s", error)
            await asyncio.sleep(RETRY_S)
