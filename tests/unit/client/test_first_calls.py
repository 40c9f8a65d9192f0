"""First attempts of people who know another messaging library: their errors show the right line."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import cometmq
from cometmq import client
from cometmq.client import NameServerError, StoredMessage, blocking

SEND = 'await producer.send("orders", b"hello")'
PRODUCER = 'write Producer("127.0.0.1:9876")'
CONSUMER = 'write PushConsumer("127.0.0.1:9876", topic="orders", group="billing", handler=bill)'
CONSUMERS = 'write PushConsumer("127.0.0.1:9876", subscriptions={"orders": "*", "refunds": "*"}'
NOBODY = "127.0.0.1:1"


async def bill(message: StoredMessage) -> None:
    """Handle a message."""


def handle_delivery(channel: Any, method: Any, properties: Any, body: Any) -> None:
    """Handle a message as RabbitMQ's client calls it."""


CONSTRUCTORS = [
    # (what somebody writes, the part of the error that shows the right line)
    ('Producer("shop", name_servers="127.0.0.1:9876")', PRODUCER),
    ('Producer("127.0.0.1:9876", "shop")', PRODUCER),
    ('Producer("shop")', PRODUCER),
    ('Producer("localhost")', PRODUCER),
    ('Producer(bootstrap_servers="localhost:9092")', "did you mean name_servers? " + PRODUCER),
    ('Producer(servers=["nats://localhost:4222"])', "did you mean name_servers? " + PRODUCER),
    ('Producer(url="redis://localhost")', "did you mean name_servers? " + PRODUCER),
    ('Producer(host="localhost", port=6379)', "did you mean name_servers? " + PRODUCER),
    ('Producer(topic="orders")', f"a send names its topic: write {SEND}"),
    ('Producer(grup="shop")', "did you mean group? " + PRODUCER),
    ("Producer(retrys=1)", "did you mean retries"),
    ('PushConsumer("orders", bill, group="billing")', CONSUMER),
    ('PushConsumer("orders", group="billing", handler=bill)', CONSUMER),
    ('PushConsumer(topic="orders", handler=bill)', CONSUMER),
    ('PushConsumer(topic="orders", group_id="billing", handler=bill)', "group_id is group here"),
    ('PushConsumer(group="billing", topic="orders", callback=bill)', "did you mean handler?"),
    ('PushConsumer(group="billing", topic="orders", handlr=bill)', "did you mean handler?"),
    ('PushConsumer(group="b", queue="orders", handler=bill)', "did you mean topic? " + CONSUMER),
    ('PushConsumer(group="b", topics="orders", handler=bill)', CONSUMERS),
    ('PushConsumer(group="b", topics=["orders"], handler=bill)', CONSUMERS),
    (
        'PushConsumer(group="b", subscriptions=["orders", "refunds"], handler=bill)',
        "such as subscriptions={'orders': '*', 'refunds': '*'}, or topic='orders'",
    ),
    ('PushConsumer(group="b", subscriptions="orders", handler=bill)', "or topic='orders'"),
    ('PushConsumer(group="b", topic=["orders"], handler=bill)', "expected the name of a topic"),
    ('PushConsumer(group="b", topic="orders", handler=handle_delivery)', "expected (message)"),
    (
        'PushConsumer(group="b", topic="orders", subscriptions={"orders": "*"}, handler=bill)',
        "topic='orders' is in subscriptions too",
    ),
    (
        'TransactionProducer(group="COMETMQ_PRODUCER", listener=None)',
        "give the transaction producer another group",
    ),
]


@pytest.mark.parametrize("package", [client, blocking], ids=["asyncio", "blocking"])
@pytest.mark.parametrize(("call", "shown"), CONSTRUCTORS, ids=[call for call, _ in CONSTRUCTORS])
def test_a_wrong_guess_of_a_constructor_shows_the_right_line(
    package: Any, call: str, shown: str
) -> None:
    names = {**vars(package), "bill": bill, "handle_delivery": handle_delivery}
    with pytest.raises((TypeError, client.CometError)) as raised:
        eval(call, names)

    assert shown in str(raised.value)


SENDS = [
    ('send("orders", "hello")', "write send('orders', text.encode())"),
    ('send("orders")', "write send('orders', b\"hello\")"),
    ('send("orders", {"id": 1})', "write send('orders', json.dumps(value).encode())"),
    ('send(b"orders", b"hello")', 'send("orders", b"hello")'),
    ('send("orders", value=b"hello")', "did you mean body=?"),
    ('send("orders", b"hello", key=b"42")', 'did you mean order_key="..."'),
    ('send("orders", b"hello", headers={})', "did you mean properties=?"),
    ('send("orders", b"hello", tag="paid")', "did you mean tags=?"),
    ('send("orders", b"hello", countdown=10)', "did you mean delay_level=, or delay="),
    ('send("orders", b"hello", propertys={})', "did you mean properties=?"),
    ('send("orders", b"hello", nothing_like_it=1)', "got an unexpected keyword argument"),
    ('send("orders", b"hello", topic="refunds")', "expected one topic"),
    ('send(Message("orders", b"hello"), b"hello")', "expected it in the Message"),
    ('send(Message("orders", b"hello"), tags="paid")', "expected it in the Message"),
    ("send()", 'send("orders", b"hello")'),
    ('publish("orders", b"hello")', "write " + SEND),
    ('send_and_wait("orders", b"hello")', "write " + SEND),
    ('xadd("orders", {"id": 1})', "write " + SEND),
    ("stop()", "write await producer.close()"),
    ('send("orders", b"hello")', "start it first, with `async with` or `start`"),
]


@pytest.mark.parametrize(("call", "shown"), SENDS, ids=[call for call, _ in SENDS])
async def test_a_wrong_guess_of_a_send_shows_the_right_line(call: str, shown: str) -> None:
    producer = client.Producer(NOBODY)
    with pytest.raises((TypeError, AttributeError, client.CometError)) as raised:
        await eval(f"producer.{call}", {"producer": producer, "Message": client.Message})

    assert shown in str(raised.value)


@pytest.mark.parametrize("method", ["send_soon", "send_nowait", "send_oneway", "request"])
async def test_each_way_to_send_shows_the_right_line(method: str) -> None:
    producer = client.Producer(NOBODY)
    with pytest.raises(client.InvalidMessageError, match=rf"write {method}\('orders', text"):
        await getattr(producer, method)("orders", "hello")


def test_a_method_of_another_library_shows_the_right_line_of_the_blocking_client() -> None:
    with pytest.raises(AttributeError, match=r'write producer\.send\("orders", b"hello"\)$'):
        blocking.Producer(NOBODY).publish("orders", b"hello")  # type: ignore[attr-defined]
    consumer = blocking.PushConsumer(NOBODY, group="g", handler=print)
    reader = client.PullConsumer(NOBODY, group="g")
    with pytest.raises(AttributeError, match=r"write async for message in consumer:$"):
        reader.consume()  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"write consumer\.run\(\)$"):
        consumer.start_consuming()  # type: ignore[attr-defined]
    assert not hasattr(consumer, "nothing_like_it")


async def test_a_with_of_the_other_kind_names_the_right_one() -> None:
    with (
        pytest.raises(TypeError, match=r"write `async with`, or use cometmq\.client\.blocking"),
        client.Producer(NOBODY),  # type: ignore[attr-defined]
    ):
        pass
    with pytest.raises(TypeError, match=r"write `with`, or use cometmq\.client\.Producer"):
        async with blocking.Producer(NOBODY):  # type: ignore[attr-defined]
            pass


READS = [
    ("data", "write message.body"),
    ("value", "write message.body"),
    ("headers", "write message.properties"),
    ("ack", "write return, since a handler that returns acknowledges the message"),
]


@pytest.mark.parametrize(("name", "shown"), READS, ids=[name for name, _ in READS])
def test_a_wrong_guess_of_a_field_shows_the_right_one(name: str, shown: str) -> None:
    message = StoredMessage.__new__(StoredMessage)
    with pytest.raises(AttributeError) as raised:
        getattr(message, name)

    assert str(raised.value).endswith(shown)


def test_the_package_has_the_names_of_a_first_program() -> None:
    assert cometmq.Producer is client.Producer
    assert cometmq.PushConsumer is client.PushConsumer
    assert not hasattr(cometmq, "Produser")


def test_an_error_in_a_constructor_is_not_taken_for_a_wrong_call() -> None:
    class Hooks:
        def __len__(self) -> int:
            raise TypeError("from within")

        def __iter__(self) -> Any:
            raise TypeError("from within")

        def __contains__(self, item: object) -> bool:
            return False

    with pytest.raises(TypeError, match=r"^from within$"):
        client.Producer(NOBODY, hooks=Hooks())  # type: ignore[arg-type]


async def test_without_an_address_the_error_says_where_the_client_looked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    monkeypatch.setattr("cometmq.client._connection.instance.DEFAULT_ADDRESS", NOBODY)
    async with client.Producer() as producer:
        with pytest.raises(NameServerError) as raised:
            await asyncio.wait_for(producer.send("orders", b"hello"), 10)

    for expected in (NOBODY, "argument", "COMETMQ_CLIENT_NAME_SERVERS", "NAMESRV_ADDR", "standal"):
        assert expected in str(raised.value)


def test_an_object_that_knows_its_name_servers_is_an_address() -> None:
    class Cluster:
        name_servers = "127.0.0.1:1;127.0.0.1:2"

    producer = client.Producer(Cluster())

    assert set(producer._instance.name_servers.addresses) == {"127.0.0.1:1", "127.0.0.1:2"}


async def test_producers_without_a_group_share_a_client() -> None:
    async with client.ClientInstance(NOBODY) as instance:
        one, other = client.Producer(instance=instance), client.Producer(instance=instance)
        async with one, other:
            assert (one.group, other.group) == ("COMETMQ_PRODUCER", "COMETMQ_PRODUCER-2")
