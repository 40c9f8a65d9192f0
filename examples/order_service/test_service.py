"""Tests of the order service with a real broker. Run: ``pytest test_service.py``."""

import asyncio
import sqlite3
import time
from contextlib import closing

import msgspec
import pytest
import service

from cometmq.client import AdminClient, Producer


def history(path, order):
    """Return the states of an order that the tracking desk has written."""
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute("SELECT state FROM history WHERE name = ?", [order]).fetchall()
    return [state for (state,) in rows]


async def until(path, order, *states):
    """Wait until an order has had these states, for at most 30 seconds."""
    deadline = time.monotonic() + 30
    while history(path, order) != list(states):
        assert time.monotonic() < deadline, history(path, order)
        await asyncio.sleep(0.02)


def charge_nothing(card, payment):
    pass


@pytest.fixture
def where(cometmq_own_cluster, tmp_path):
    """The name servers and the database of a test."""
    asyncio.run(service.deploy(cometmq_own_cluster.name_servers))
    return cometmq_own_cluster.name_servers, str(tmp_path / "shop.db")


def test_an_order_is_paid_and_shipped_though_the_bank_is_busy(where):
    async def scenario(name_servers, path):
        async with service.running(name_servers, path, service.bank()):
            service.place(path, "order-1", "4242")
            await until(path, "order-1", "placed", "paid", "shipped")

    asyncio.run(scenario(*where))


def test_an_order_that_was_placed_while_the_relay_was_down_is_shipped(where):
    async def scenario(name_servers, path):
        async with service.running(name_servers, path, charge_nothing):
            pass
        service.place(path, "order-1", "4242")
        async with service.running(name_servers, path, charge_nothing):
            await until(path, "order-1", "placed", "paid", "shipped")

    asyncio.run(scenario(*where))


def test_an_order_is_placed_once(where):
    async def scenario(name_servers, path):
        async with service.running(name_servers, path, charge_nothing):
            service.place(path, "order-1", "4242")
            with pytest.raises(sqlite3.IntegrityError):
                service.place(path, "order-1", "4242")
            await until(path, "order-1", "placed", "paid", "shipped")

    asyncio.run(scenario(*where))


def test_an_event_that_is_delivered_twice_is_tracked_once(where):
    async def scenario(name_servers, path):
        async with (
            service.running(name_servers, path, charge_nothing),
            Producer(name_servers) as producer,
        ):
            for number, state in (("1", "packed"), ("1", "packed"), ("2", "returned")):
                event = service.Event(number, "order-1", state)
                await producer.send(
                    service.TOPIC,
                    msgspec.json.encode(event),
                    tags=state,
                    keys=[number],
                    order_key="order-1",
                )
            await until(path, "order-1", "packed", "returned")

    asyncio.run(scenario(*where))


def test_an_unknown_card_is_a_dead_letter_that_can_be_sent_again(where):
    async def scenario(name_servers, path):
        async with (
            AdminClient(name_servers) as admin,
            service.running(name_servers, path, service.bank()),
        ):
            service.place(path, "order-2", "0000")
            letters = ()
            async with asyncio.timeout(30):
                while not letters:
                    letters = (await admin.dead_letters("shop-payments", limit=10)).letters
                    await asyncio.sleep(0.02)
            with closing(sqlite3.connect(path)) as database, database:
                database.execute("UPDATE orders SET card = '4242'")
            await admin.resend_dead_letters(letters)
            await until(path, "order-2", "placed", "paid", "shipped")
        return letters[0].error

    assert "UnknownCardError: 0000" in asyncio.run(scenario(*where))
