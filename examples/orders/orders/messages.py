"""Topics, and what their messages contain."""

from pydantic import BaseModel

ORDERS = "shop-orders"
"""Each order that was placed: the message of a transaction."""
EVENTS = "shop-events"
"""Each change of an order, in order: from the outbox."""
REMINDERS = "shop-reminders"
"""Reminders to pay, delayed by a timer."""
QUOTES = "shop-quotes"
"""Requests for price and stock of an article."""
GROUPS = "shop-"
"""The prefix of all groups of the service."""


class NewOrder(BaseModel):
    id: str
    article: str
    quantity: int


class OrderEvent(BaseModel):
    order_id: str
    state: str


class Quote(BaseModel):
    article: str
    price: int
    stock: int
