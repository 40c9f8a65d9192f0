"""Integration tests: the service with a real broker and the database."""

import asyncio
import re
import signal
import subprocess
import sys
import time
from uuid import uuid4

import httpx
import pytest
from orders import api
from orders.bus import broker, servers
from orders.messages import EVENTS, ORDERS, REMINDERS, OrderEvent
from orders.settings import settings

from cometmq.client import AdminClient

SOON_S = 60
pytestmark = pytest.mark.usefixtures("service")


@pytest.fixture(scope="module")
async def http(service):
    transport = httpx.ASGITransport(api.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        yield client


async def supplied(http, stock=100):
    """Supply an article, and return its name."""
    name = f"hat-{uuid4().hex}"
    await http.put(f"/articles/{name}", json={"price": 12, "stock": stock})
    return name


async def ordered(http, article):
    """Place an order, again if a busy machine has let the broker check it too early."""
    while (response := await place(http, article)).status_code == 503:
        pass
    assert response.status_code == 201, response.text
    return response.json()["id"]


async def place(http, article):
    return await http.post("/orders", json={"article": article, "quantity": 1})


async def until(http, order, *history):
    """Wait until an order has this history, and return the order."""
    async with asyncio.timeout(SOON_S):
        while (found := (await http.get(f"/orders/{order}")).json())["history"] != list(history):
            assert found["history"] == list(history)[: len(found["history"])], found
            await asyncio.sleep(0.02)
    return found


async def stored(topic, key):
    """Return how many messages of a topic have a key."""
    async with AdminClient(servers) as admin:
        return len(await admin.messages_by_key(topic, key))


async def test_events_of_each_order_come_in_order(http):
    article = await supplied(http)
    orders = await asyncio.gather(*(ordered(http, article) for _ in range(10)))
    for order in orders:
        await until(http, order, "placed", "billed")
        assert (await http.post(f"/orders/{order}/payment")).status_code == 200
        assert (await http.post(f"/orders/{order}/payment")).status_code == 409
    for order in orders:
        await until(http, order, "placed", "billed", "paid", "shipped")
    assert (await http.get(f"/articles/{article}")).json()["stock"] == 90


async def test_the_reminder_comes_if_an_order_is_not_paid_and_not_if_it_is(http, monkeypatch):
    monkeypatch.setattr(settings, "remind_after_s", 2)
    article = await supplied(http)
    begun_s = -SOON_S
    while time.monotonic() - begun_s > 1:  # on a busy machine the reminder may be faster
        begun_s = time.monotonic()
        paid = await ordered(http, article)
        await until(http, paid, "placed", "billed")
        await http.post(f"/orders/{paid}/payment")
    waiting = await ordered(http, article)
    await until(http, waiting, "placed", "billed", "reminded")
    assert await stored(REMINDERS, f"{waiting}-reminder") == 1
    assert await stored(REMINDERS, f"{paid}-reminder") == 0  # due earlier: it was recalled


async def test_an_order_that_is_rolled_back_is_not_sent(http, monkeypatch):
    made = []

    def fail(order_id, state):
        made.append(order_id)
        raise RuntimeError("the process has a bug")

    with monkeypatch.context() as patched:
        patched.setattr(api, "event_of", fail)
        with pytest.raises(RuntimeError):
            await place(http, "hat")
    await checked(made[0])
    assert (await http.get(f"/orders/{made[0]}")).status_code == 404
    assert await stored(ORDERS, made[0]) == 0


async def checked(order):
    """Wait until the broker has asked whether an order was placed."""
    async with asyncio.timeout(SOON_S):
        while not await is_marked(order):
            await asyncio.sleep(0.02)


async def is_marked(order):
    async with api.marked(api.GROUP, order) as session:
        if session is not None:
            await session.rollback()
        return session is None


KILLED = """
import asyncio, os, signal
from contextlib import asynccontextmanager
from orders import api

marked = api.marked

@asynccontextmanager
async def killing(group, key):
    print(key, flush=True)
    async with marked(group, key) as session:
        yield session
        if {before}:
            os.kill(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    api.marked = killing
    async with api.servers, api.broker:
        await api.broker.start()
        await api.place_order(api.Wish(article="hat", quantity=1))

asyncio.run(main())
"""


async def killed(*, before):
    """Place an order in a process that is killed before or after its commit."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED.format(before=before), stdout=subprocess.PIPE
    )
    printed, _ = await process.communicate()
    assert process.returncode == -signal.SIGKILL
    return printed.decode().strip()


async def killed_after_commit(http):
    """Place an order, again if a busy machine has let the broker check it before the commit."""
    while (await http.get(f"/orders/{(order := await killed(before=False))}")).status_code == 404:
        pass
    return order


async def test_an_order_is_sent_if_and_only_if_it_was_committed_before_its_process_was_killed(http):
    after, before = await asyncio.gather(killed_after_commit(http), killed(before=True))
    await until(http, after, "placed", "billed")
    await checked(before)
    assert (await http.get(f"/orders/{before}")).status_code == 404
    assert await stored(ORDERS, after) == 1
    assert await stored(ORDERS, before) == 0


async def test_an_event_that_is_delivered_twice_changes_the_rows_once(http):
    order = await ordered(http, await supplied(http))
    await until(http, order, "placed", "billed")
    message = OrderEvent(order_id=order, state="seen")
    for _ in range(2):
        await broker.publish(message, EVENTS, keys=[f"{order}-1"], key=order)
    message = OrderEvent(order_id=order, state="seen again")
    await broker.publish(message, EVENTS, keys=[f"{order}-2"], key=order)
    await until(http, order, "placed", "billed", "seen", "seen again")


async def test_a_worker_responds_to_requests(http):
    article = await supplied(http, stock=3)
    quote = {"article": article, "price": 12, "stock": 3}
    assert (await http.get(f"/articles/{article}")).json() == quote
    assert (await http.get("/articles/nothing")).status_code == 404


async def dead_letter(http, order):
    """Wait for the dead letter of an order, and return the path of its buttons."""
    async with asyncio.timeout(SOON_S):
        while True:
            page = (await http.get("/dead-letters")).text
            for row in page.split("<tr>"):
                if order in row:
                    assert "in stock" in row
                    return re.search(r'action="(\S+)/resend"', row)[1]
            await asyncio.sleep(0.05)


async def test_a_person_sends_a_dead_letter_again_when_its_cause_is_fixed(http):
    article = await supplied(http, stock=0)
    order = await ordered(http, article)
    await http.post(f"/orders/{order}/payment")
    path = await dead_letter(http, order)
    await http.put(f"/articles/{article}", json={"price": 12, "stock": 1})
    assert (await http.post(f"{path}/resend")).status_code == 303
    await until_shipped(http, order)
    assert order not in (await http.get("/dead-letters")).text


async def until_shipped(http, order):
    async with asyncio.timeout(SOON_S):
        while (await http.get(f"/orders/{order}")).json()["state"] != "shipped":
            await asyncio.sleep(0.02)


async def test_a_person_drops_a_dead_letter(http):
    order = await ordered(http, await supplied(http, stock=0))
    await http.post(f"/orders/{order}/payment")
    path = await dead_letter(http, order)
    assert (await http.post(f"{path}/drop")).status_code == 303
    assert order not in (await http.get("/dead-letters")).text
    assert (await http.post("/dead-letters/other-group/x/drop")).status_code == 404
