"""First attempts of people who know another messaging library: their errors show the right line."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cometmq
from cometmq import client, embedded
from cometmq.client import NameServerError, StoredMessage, blocking, settings

SEND = 'await producer.send("orders", b"hello")'
PRODUCER = 'write Producer("127.0.0.1:9876")'
CONSUMER = 'write PushConsumer("127.0.0.1:9876", topic="orders", group="billing", handler=bill)'
CONSUMERS = 'write PushConsumer("127.0.0.1:9876", subscriptions={"orders": "*", "refunds": "*"}'
OPEN = "async with cometmq.embedded.open('data') as broker:"
OPEN_CALL = 'async with cometmq.embedded.open("data") as broker:'
OPENED = 'async with embedded.open("data") as broker:'
ON_BROKER = 'PushConsumer(broker, topic="orders", group="billing"'
NOBODY = "127.0.0.1:1"


async def bill(message: StoredMessage) -> None:
    """Handle a message."""


def handle_delivery(channel: Any, method: Any, properties: Any, body: Any) -> None:
    """Handle a message as RabbitMQ's client calls it."""


CONSTRUCTORS = [
    # (what somebody writes, the part of the error that shows the right line)
    ('Producer("shop", name_servers="127.0.0.1:9876")', PRODUCER),
    (
        'Producer("127.0.0.1:9876", "shop")',
        'write Producer("127.0.0.1:9876", group=\'shop\'), or Producer("127.0.0.1:9876") and ',
    ),
    ('Producer(broker, "shop")', "write Producer(broker, group='shop'), or Producer(broker) and"),
    ('Producer(embedded.open("data"), "g")', "write Producer(broker, group='g'), or Producer(b"),
    ('Producer("data")', f"expected host:port: {PRODUCER}, or open a folder: {OPEN} Producer("),
    ('Producer(name_servers="data")', f"{PRODUCER}, or open a folder: {OPEN} Producer(broker)"),
    ('AdminClient("data")', f"or open a folder: {OPEN} AdminClient(broker)"),
    ('AdminClient(broker, "data")', "AdminClient.__init__() takes from 1 to 2 positional"),
    ('Producer("./data")', "open a folder: write async with cometmq.embedded.open('./data') as"),
    (r'Producer("C:\\data")', r"open a folder: write async with cometmq.embedded.open('C:\\data'"),
    ('Producer(Path("data"))', f"open a folder: write {OPEN} Producer(broker)"),
    ("Producer(embedded)", f"open a folder: write {OPEN} Producer(broker)"),
    ("Producer(embedded.Broker)", f"open a folder: write {OPEN} Producer(broker)"),
    ('Producer("mq.example.com")', 'write Producer("mq.example.com:9876")'),
    ('Producer("redis://localhost")', PRODUCER),
    ("Producer(9876)", PRODUCER),
    ("Producer(None)", PRODUCER),
    ('Producer(group="COMETMQ_PRODUCER-2")', "leave the group out, or give another one"),
    ('PushConsumer(broker, "orders", "billing", bill)', f"write {ON_BROKER}, handler=bill)"),
    ('PushConsumer(broker, group="g", topic="t")', "no handler, expected handler= or batch_h"),
    ('PushConsumer(broker, group="g", topic="t")', f"write {ON_BROKER}, handler=bill)"),
    ('PopConsumer(group="g", topic="t")', "no handler, expected handler= or batch_handler=: wri"),
    ('PullConsumer(broker, group_id="g")', "write PullConsumer(broker, "),
    ('Producer("shop")', PRODUCER),
    ('Producer("localhost")', 'write Producer("localhost:9876")'),
    ('Producer(bootstrap_servers="localhost:9092")', "did you mean name_servers? " + PRODUCER),
    ('Producer(servers=["nats://localhost:4222"])', "did you mean name_servers? " + PRODUCER),
    ('Producer(url="redis://localhost")', "did you mean name_servers? " + PRODUCER),
    ('Producer(host="localhost", port=6379)', "did you mean name_servers? " + PRODUCER),
    ('Producer(topic="orders")', f"a send names its topic: write {SEND}"),
    (
        'Producer(grup="shop")',
        'did you mean group? write Producer("127.0.0.1:9876", group=...)',
    ),
    (
        "Producer(broker, retris=3)",
        "did you mean retries? write Producer(broker, retries=3)",
    ),
    (
        'Producer(secret_kye="top")',
        'did you mean secret_key? write Producer("127.0.0.1:9876", secret_key=...)',
    ),
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
    broker = embedded.open("data", name_servers=NOBODY)
    names = {**vars(package), **globals(), "broker": broker, "Path": Path}
    with pytest.raises((TypeError, client.CometError)) as raised:
        eval(call, names)

    if package is blocking:
        shown = shown.replace("async ", "").replace("await ", "")
    assert shown in str(raised.value)


EMBEDDED = [
    ("embedded.open()", f"write {OPENED}"),
    ('embedded.open(path="data")', f"path is folder here; write {OPENED}"),
    ('embedded.open("data", port=9876)', f"write {OPENED}"),
    ('embedded.connect("data")', f"write {OPEN_CALL}"),
    ('embedded.Server("data")', f"write {OPEN_CALL}"),
    ('embedded.broker("data")', f"write {OPEN_CALL}"),
    ('embedded.open("127.0.0.1:9876")', "For servers that run write Producer('127.0.0.1:9876')"),
    ('embedded.open("redis://localhost")', "expected a path, such as 'data'"),
    ('embedded.open(":memory:")', "for a broker in memory `cometmq.testing.Cluster`"),
    ('embedded.open("data", settings="deleteWhen=05")', "expected a dict: {'deleteWhen': '05'}"),
    ('Producer(embedded.open("data"))', f"use it within `with` or `async with`, as in `{OPENED}`"),
    ("broker.send(1)", "write async with Producer(broker) as producer: await producer.send("),
    ('broker.subscribe("orders")', f"write await {ON_BROKER}, handler=bill).run()"),
    ("broker.stop()", "write broker.close()"),
    ("broker.address", "write broker.name_servers"),
    ('cometmq.Broker("data")', f"write {OPEN_CALL}"),
    ('cometmq.connect("data")', f"write {OPEN_CALL}"),
    ('cometmq.Consumer("data")', f"write await {ON_BROKER}, handler=bill).run()"),
    ("cometmq.KafkaProducer()", "write async with Producer(broker) as producer: await producer"),
    ("client.Consumer()", f"write await {ON_BROKER}, handler=bill).run()"),
    ("cometmq.blocking.Producer()", "write from cometmq.client import blocking"),
    ("from cometmq import Consumer", f"write await {ON_BROKER}, handler=bill).run()"),
    ("from cometmq.client import Broker", f"write {OPEN_CALL}"),
]


@pytest.mark.parametrize(("call", "shown"), EMBEDDED, ids=[call for call, _ in EMBEDDED])
def test_a_wrong_guess_of_a_name_or_an_embedded_broker_shows_the_right_line(
    call: str, shown: str
) -> None:
    broker = embedded.open("data", name_servers=NOBODY)
    with pytest.raises((AttributeError, ImportError, TypeError, client.CometError)) as raised:
        exec(call, {**vars(client), **globals(), "broker": broker})

    assert shown in str(raised.value)


async def test_a_broker_that_is_awaited_shows_the_right_line() -> None:
    with pytest.raises(TypeError, match=re.escape(f"without `await`: write `{OPENED}`")):
        await embedded.open("data")


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
    ('send("orders", b"hello", nothing_like_it=1)', "the fields of a Message are tags, keys, "),
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


UNKNOWN_KEYWORDS = [
    ("reader.poll(timeot=1)", "PullConsumer.poll()", "'timeot': expected one of "),
    (
        "reader.seek(queue=1, offset=2, to=3)",
        "PullConsumer.seek()",
        "'to': expected one of queue, ",
    ),
    ("settings.ProducerSettings(timeot_ms=1)", "ProducerSettings: ", "did you mean timeout_ms"),
    ("settings.ClientSettings(use_tsl=True)", "ClientSettings: ", "did you mean use_tls?"),
]


@pytest.mark.parametrize(("call", "where", "expected"), UNKNOWN_KEYWORDS)
async def test_an_unknown_keyword_is_refused_with_those_that_are_expected(
    call: str, where: str, expected: str
) -> None:
    reader = client.PullConsumer(NOBODY, group="g")
    with pytest.raises((TypeError, client.CometError)) as raised:
        await eval(call, {"reader": reader, "settings": settings})

    assert where in str(raised.value)
    assert expected in str(raised.value)


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
    assert cometmq.PullConsumer is client.PullConsumer
    assert not hasattr(cometmq, "Produser")
    assert "PushConsumer" in dir(cometmq)
    with pytest.raises(AttributeError) as raised:
        _ = cometmq.Produser
    assert (raised.value.name, raised.value.obj) == ("Produser", cometmq)  # Python shows a near one


def test_a_module_is_imported_without_the_client() -> None:
    program = (
        "import sys; from cometmq import broker, model, sql92; "
        "assert 'cometmq.client' not in sys.modules; "
        "from cometmq.client import blocking, consumers"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "cannot import name 'consumers' from 'cometmq.client'" in done.stderr


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
