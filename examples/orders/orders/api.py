"""The HTTP interface. Run it: ``uvicorn orders.api:app``."""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI, HTTPException, Response
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, Field
from sqlalchemy import select

from cometmq.client import CometError
from orders import dead_letters
from orders.bus import broker, servers
from orders.messages import ORDERS, QUOTES, REMINDERS, NewOrder, Quote
from orders.models import Article, History, Order, change, engine, event_of, marked, sessions
from orders.telemetry import start_telemetry

GROUP = "shop-api"


@broker.transaction(ORDERS, group=GROUP)
async def place(order: NewOrder) -> bool:
    """Write an order. Its message is delivered if, and only if, this commits."""
    async with marked(GROUP, order.id) as session:
        if session is None:
            return False  # a check was faster
        session.add(Order(id=order.id, article=order.article, quantity=order.quantity))
        session.add(event_of(order.id, "placed"))
    return True


@place.check
async def is_placed(order: NewOrder) -> bool:
    """Tell the broker whether an order was written. From now on `place` cannot write it."""
    async with marked(GROUP, order.id):
        pass
    async with sessions() as session:
        return await session.get(Order, order.id) is not None


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    start_telemetry("api")
    async with servers, broker:
        await broker.start()
        yield
    await engine.dispose()


app = FastAPI(title="Orders", lifespan=lifespan)
app.include_router(dead_letters.router)


class Wish(BaseModel):
    article: str = Field(min_length=1, max_length=100)
    quantity: int = Field(ge=1, le=1000)


class Supply(BaseModel):
    price: int = Field(ge=0)
    stock: int = Field(ge=0)


@app.get("/", include_in_schema=False)
async def start() -> RedirectResponse:
    return RedirectResponse("/docs")


@app.get("/health")
async def health() -> Response:
    return Response(status_code=200 if await broker.ping(timeout=2) else 503)


@app.post("/orders", status_code=201)
async def place_order(wish: Wish) -> NewOrder:
    order = NewOrder(id=uuid.uuid4().hex, article=wish.article, quantity=wish.quantity)
    try:
        receipt = await place(order, keys=[order.id])
    except CometError as error:  # the half message was not stored: nothing was written
        raise HTTPException(503, f"the broker does not respond: {error}") from error
    if receipt.state.name != "COMMIT":
        raise HTTPException(503, "the order took too long; place it again")
    return order


@app.get("/orders/{order_id}")
async def show_order(order_id: str) -> dict[str, Any]:
    events = select(History.state).where(History.order_id == order_id).order_by(History.number)
    async with sessions() as session:
        if (order := await session.get(Order, order_id)) is None:
            raise HTTPException(404, "there is no such order")
        history = (await session.scalars(events)).all()
    return {"article": order.article, "state": order.state, "history": history}


@app.post("/orders/{order_id}/payment")
async def pay(order_id: str) -> dict[str, str]:
    async with sessions.begin() as session:
        if not await change(session, order_id, "paid"):
            raise HTTPException(409, "there is no such order, or it is paid")
        reminder = await session.scalar(select(Order.reminder).where(Order.id == order_id))
    if reminder is not None:
        with suppress(CometError):  # it is due, or the broker is down: `remind` looks again
            await broker.recall(reminder, REMINDERS)
    return {"state": "paid"}


@app.get("/articles/{name}")
async def show_article(name: str) -> Quote:
    try:
        reply = await broker.request(name, QUOTES, timeout=3)
    except (TimeoutError, CometError) as error:
        raise HTTPException(503, "no worker responds") from error
    if not (quote := await reply.decode()):
        raise HTTPException(404, "there is no such article")
    return Quote.model_validate(quote)


@app.put("/articles/{name}", status_code=204)
async def supply(name: str, supply: Supply) -> None:
    async with sessions.begin() as session:
        await session.merge(Article(name=name, price=supply.price, stock=supply.stock))
