"""Arguments of a wrong type are refused with what was met and what was expected."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from cometmq.client import (
    AdminClient,
    ClientClosedError,
    ConsumeLater,
    Filter,
    LocalState,
    Message,
    MessageQueue,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
    StoredMessage,
    TransactionProducer,
)
from cometmq.client._sending.outgoing import properties_of
from cometmq.client.errors import NotAssignedError, SendAttempt, SendFailedError
from cometmq.client.hooks import ConsumeHook, DeliveryContext, SendContext, SendHook
from cometmq.client.idempotent import Idempotent, SqliteMarks
from cometmq.client.offsets import LocalOffsetStore, RemoteOffsetStore
from cometmq.client.settings import PushSettings
from cometmq.model.errors import CometError, ConfigError, InvalidMessageError, InvalidNameError
from cometmq.remoting.errors import ConnectError
from support.brokers.transaction_broker import Commits
from support.checks.cases import case
from unit.client.idempotent.test_consumer import message as stored

NAME_SERVER = "127.0.0.1:1"
NUMBER: Any = 5


async def handle(message: StoredMessage) -> None:
    """A handler of one message."""


async def handle_all(messages: Sequence[StoredMessage], context: object) -> None:
    """A handler of several messages."""


async def yield_in_loop(message: StoredMessage) -> AsyncIterator[None]:
    """An async generator function."""
    yield


def yield_in_thread(message: StoredMessage) -> Iterator[None]:
    """A generator function."""
    yield


class Yields:
    async def __call__(self, message: StoredMessage) -> AsyncIterator[None]:
        """An object that is called as an async generator function."""
        yield


class Desk:
    async def handle(self, message: StoredMessage, hint: str = "") -> None:
        """A method with a further parameter, which has a default."""


@pytest.mark.parametrize("kind", [PushConsumer, PopConsumer])
@pytest.mark.parametrize(
    ("handlers", "text"),
    [
        ({"handler": 3}, "consumer g: handler=3: expected a function"),
        (
            {"handler": handle_all},
            r"consumer g: handler has the parameters \(messages, context\): expected \(message\)",
        ),
        (
            {"batch_handler": handle},
            r"consumer g: batch_handler has .*: expected \(messages, context\)",
        ),
        ({"handler": yield_in_loop}, "consumer g: handler is a generator function, whose body"),
        ({"handler": partial(yield_in_thread)}, "handler is a generator function.*without yield"),
        ({"handler": Yields()}, "handler is a generator function"),
        ({"batch_handler": yield_in_loop}, "batch_handler is a generator function"),
        ({}, "no handler, expected handler= or batch_handler=: write P"),
        ({"handler": handle, "batch_handler": handle_all}, "give either"),
    ],
)
def test_a_handler_that_cannot_be_called_is_refused(
    kind: Callable[..., object], handlers: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        kind(NAME_SERVER, group="g", subscriptions={"t": "*"}, **handlers)


@pytest.mark.parametrize("handler", [Desk().handle, print, lambda *messages: None])
def test_a_handler_may_be_anything_that_takes_a_message(handler: Any) -> None:
    PushConsumer(NAME_SERVER, group="g", handler=handler, subscriptions={"t": "*"})


@pytest.mark.parametrize(
    ("subscriptions", "text"),
    [
        ("orders", "consumer g: subscriptions='orders': expected topics with their tags"),
        (["orders"], r"consumer g: subscriptions=\['orders'\]: expected topics with their tags"),
        ({"orders": ["paid"]}, r"filter \['paid'\]: expected tags such as 'a || b', or a Filter"),
    ],
)
def test_subscriptions_are_a_mapping_of_filters(subscriptions: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        PushConsumer(NAME_SERVER, group="g", handler=handle, subscriptions=subscriptions)


@pytest.mark.parametrize("kind", [PushConsumer, PullConsumer])
@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"start_from": 1_800_000_000},
            "consumer g: start_from=1800000000: expected StartFrom.FIRST, StartFrom.LAST, a "
            "datetime with a time zone, .* or ms since 1970; if these are seconds, multiply",
        ),
        ({"start_from": "first"}, "start_from='first': expected StartFrom.FIRST"),
        ({"broadcast": "no"}, "consumer g: broadcast='no': expected True or False"),
    ],
)
def test_options_of_a_consumer_have_the_right_type(
    kind: Callable[..., object], options: dict[str, Any], text: str
) -> None:
    handlers = {"handler": handle} if kind is PushConsumer else {}
    with pytest.raises(ConfigError, match=text):
        kind(NAME_SERVER, group="g", **handlers, **options)


def test_in_order_is_said_by_true_or_false() -> None:
    wrong: Any = "yes"
    with pytest.raises(ConfigError, match="consumer g: ordered='yes': expected True or False"):
        PushConsumer(NAME_SERVER, group="g", handler=handle, ordered=wrong)


def test_settings_of_another_class_are_refused() -> None:
    wrong: Any = PushSettings()
    with pytest.raises(ConfigError, match="settings of the type PushSettings: expected Producer"):
        Producer(NAME_SERVER, group="g", settings=wrong)
    with pytest.raises(ConfigError, match="settings of the type PushSettings: expected Client"):
        Producer(NAME_SERVER, group="g", client=wrong)
    named: Any = {"retries": 3}
    with pytest.raises(ConfigError, match="settings of the type dict: expected ProducerSettings"):
        Producer(NAME_SERVER, group="g", settings=named)


def test_a_file_may_be_named_by_text(tmp_path: Path) -> None:
    path = tmp_path / "client.toml"
    path.write_text("[producer]\nretries = 7\n")
    text: Any = str(path)
    assert Producer(NAME_SERVER, group="g", config=text).settings.retries == 7


def test_name_servers_with_commas_are_refused() -> None:
    with pytest.raises(ConfigError, match="'a:1,b:2': expected host:port;host:port"):
        Producer("a:1,b:2", group="g")


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ({"order_key": 7}, r"order_key=7: expected text, such as str\(...\)"),
        ({"queue": 2}, "queue=2: expected a MessageQueue; fetch_queues returns them"),
    ],
)
async def test_the_target_of_a_send_has_the_right_type(target: dict[str, Any], text: str) -> None:
    producer = Producer(NAME_SERVER, group="g")
    with pytest.raises(TypeError, match=text):
        await producer.send(Message("t", b"x"), **target)


CLIENTS: list[Callable[..., object]] = [
    Producer,
    PullConsumer,
    SimpleConsumer,
    partial(PushConsumer, handler=handle),
    partial(PopConsumer, handler=handle),
]


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("name_servers", [9876, None, [9876], b"127.0.0.1:1"])
def test_name_servers_that_are_no_text_are_refused(
    kind: Callable[..., object], name_servers: object
) -> None:
    with pytest.raises(ConfigError, match=r"name_servers=.*: expected host:port;host:port, or a"):
        kind(name_servers, group="g")


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("group", [b"g", 5])
def test_a_group_that_is_no_text_is_refused(kind: Callable[..., object], group: object) -> None:
    with pytest.raises(InvalidNameError, match=f"group={group}: expected the name of a group"):
        kind(NAME_SERVER, group=group)


async def called(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a function, and await the result if that is needed."""
    result = function(*arguments, **named)
    return await result if inspect.isawaitable(result) else result


@pytest.mark.parametrize(
    ("call", "arguments", "text"),
    [
        ("send", [3], r"a message of type int: Message\(topic=..., body=...\) is expected"),
        ("send_soon", [None], "a message of type NoneType"),
        ("send_nowait", [b"x"], "a message of type bytes"),
        ("send_oneway", [["x"]], "a message of type list"),
        ("request", ["text"], r"request\('text'\) has no body, expected bytes"),
        ("send_batch", [Message("t", b"x")], "messages of type Message: a list .*; send takes one"),
        ("send_batch", [iter([])], "a list of messages is expected.* send_all any iterable"),
        ("send_batch", [["x"]], "a message of type str"),
        ("send_all", [Message("t", b"x")], "messages of type Message: an iterable of messages"),
        ("send_all", [["x"]], "a message of type str"),
        ("send_batch", ["t"], r"send_batch\('t'\) with no bodies, expected a list of bytes: "),
        ("send_batch", ["t", b"12"], "bodies of type bytes, expected a list of bytes"),
        ("send_batch", ["t", ["x"]], r"a body of type str, expected bytes: .*, \[b.1., b.2.\]\)"),
        (
            "send_batch",
            [[Message("t", b"x")], [b"y"]],
            r"send_batch\(\) of messages takes no bodies",
        ),
        ("send_all", ["t", [1]], "a body of type int, expected bytes"),
        ("recall", ["t", "no handle"], "recall handle 'no handle': a receipt's handle is expected"),
    ],
)
async def test_a_producer_is_given_messages(call: str, arguments: list[Any], text: str) -> None:
    async with Producer(NAME_SERVER, group="g") as producer:
        with pytest.raises(InvalidMessageError, match=text):
            await called(getattr(producer, call), *arguments)


@pytest.mark.parametrize("queues", ["topic", "", ["topic"], MessageQueue("t", "b", 0), 3])
async def test_queues_are_assigned_and_no_topics(queues: Any) -> None:
    async with PullConsumer(NAME_SERVER, group="g") as consumer:
        with pytest.raises(
            ConfigError, match=r"consumer g: assign\(.*: expected a list of Message"
        ):
            await consumer.assign(queues)


@pytest.mark.parametrize("call", ["ack", "nack", "extend"])
async def test_messages_are_settled_one_by_one(call: str) -> None:
    async with SimpleConsumer(NAME_SERVER, group="g") as consumer:
        arguments = [5.0] if call == "extend" else []
        with pytest.raises(ConfigError, match=rf"{call} was given a list: .* await {call}\(messag"):
            await getattr(consumer, call)([], *arguments)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        ("send", Message("t", b"x")),
        ("send_soon", Message("t", b"x")),
        ("send_nowait", Message("t", b"x")),
        ("send_batch", [Message("t", b"x")]),
        ("send_all", [Message("t", b"x")]),
        ("send_oneway", Message("t", b"x")),
        ("request", Message("t", b"x")),
        ("fetch_queues", "t"),
        ("ready", "t"),
    ],
)
async def test_a_producer_that_does_not_run_says_which_one_and_what_to_do(
    call: str, argument: object
) -> None:
    producer = Producer(NAME_SERVER, group="g")
    with pytest.raises(ClientClosedError, match=r"^producer g is not running: start it"):
        await called(getattr(producer, call), argument)
    await producer.start()
    await producer.close()
    with pytest.raises(ClientClosedError, match=r"^producer g is closed: create a new"):
        await called(getattr(producer, call), argument)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (Message("t", b"x", keys=NUMBER), "the keys are 5: a list of texts is expected"),
        (Message("t", b"x", keys=[" "]), "a key is ' ': text without blanks is expected"),
        (Message("t", b"x", properties={"a": ""}), "property 'a' is '': a name and a value of"),
    ],
)
def test_a_message_error_names_what_it_met(message: Message, text: str) -> None:
    with pytest.raises(InvalidMessageError, match=text):
        properties_of(message)


@pytest.mark.parametrize("queues", [0, -1])
async def test_a_topic_has_at_least_one_queue(queues: Any) -> None:
    admin = AdminClient(NAME_SERVER)
    with pytest.raises(ConfigError, match=f"queues={queues!r}: expected a whole number"):
        await admin.create_topic("t", queues=queues)


@pytest.mark.parametrize(
    "queues", [{"broker-a": 0}, {"broker-a": -1}, {"broker-a": 4, "": 4}, {"a:4;b": 4}, {"a;b": 4}]
)
async def test_an_order_configuration_names_brokers_and_numbers_of_queues(
    queues: dict[str, int],
) -> None:
    admin = AdminClient(NAME_SERVER)
    with pytest.raises(ConfigError, match=r"queues=\{.*\}: expected for each name of a broker a"):
        await admin.set_order_conf("t", queues)


EXPECTED = r"\bexpected"
REFUSALS = (TypeError, ConfigError, InvalidMessageError, InvalidNameError)
QUEUE = MessageQueue("t", "b", 0)
REQUEST = stored(CLUSTER="c", CORRELATION_ID="1", REPLY_TO_CLIENT="me")


class AsyncSendHook(SendHook):
    async def before_send(self, context: SendContext) -> None:  # type: ignore[override]
        """A call of it makes a coroutine."""


class AsyncConsumeHook(ConsumeHook):
    async def after(self, context: DeliveryContext) -> None:  # type: ignore[override]
        """A call of it makes a coroutine."""


@pytest.mark.parametrize(
    ("make", "hook", "method"),
    [
        (Producer, AsyncSendHook(), "AsyncSendHook.before_send"),
        (partial(TransactionProducer, listener=Commits()), AsyncSendHook(), "before_send"),
        (PullConsumer, AsyncConsumeHook(), "AsyncConsumeHook.after"),
        (partial(PushConsumer, handler=handle), AsyncConsumeHook(), "AsyncConsumeHook.after"),
    ],
)
def test_a_hook_that_would_never_run_is_refused(
    make: Callable[..., object], hook: object, method: str
) -> None:
    with pytest.raises(ConfigError, match=f"{method} is an async def function: expected a plain"):
        make(NAME_SERVER, group="g", hooks=[hook])


@pytest.mark.parametrize(
    ("wrong", "expected"), [("execute", "message, argument"), ("check", "message")]
)
def test_a_listener_that_cannot_be_called_is_refused(wrong: str, expected: str) -> None:
    async def method() -> LocalState:
        return LocalState.COMMIT

    listener = Commits()
    setattr(listener, wrong, method)
    with pytest.raises(
        ConfigError, match=rf"listener.{wrong} has the parameters \(\): expected \({expected}\)"
    ):
        TransactionProducer(NAME_SERVER, group="g", listener=listener)


def test_a_function_for_idempotent_that_cannot_be_called_is_refused(tmp_path: Path) -> None:
    with (
        SqliteMarks(tmp_path / "marks.db") as marks,
        pytest.raises(
            ConfigError,
            match=r"Idempotent: handle has the parameters \(message, hint\): "
            r"expected \(message, transaction\)",
        ),
    ):
        Idempotent(lambda message, *, hint: None, store=marks)


MAKERS: dict[type, Callable[..., Any]] = {
    Producer: Producer,
    TransactionProducer: partial(TransactionProducer, listener=Commits()),
    PullConsumer: PullConsumer,
    SimpleConsumer: SimpleConsumer,
    PushConsumer: partial(PushConsumer, handler=handle),
    PopConsumer: partial(PopConsumer, handler=handle),
    AdminClient: AdminClient,
}
"""Every public class whose methods an application calls, and how to make one."""

RIGHT: dict[str, object] = {
    "body": b"x",
    "changes": {"a": "1"},
    "config": "g",
    "count": 1,
    "invisible": 5.0,
    "message": Message("t", b"x"),
    "messages": [Message("t", b"x")],
    "offset": 0,
    "queue": QUEUE,
    "queues": [QUEUE],
    "request": REQUEST,
    "time": 0,
    "topics": ["t"],
}
"""Right arguments for the parameters of these names; others are text."""


def right(kind: type, method: str, name: str) -> object:
    """A right argument for a parameter."""
    if kind is AdminClient and name == "queues":
        return {"b": 1} if method == "set_order_conf" else 1
    if name == "message" and method in ("nack", "extend", "send_back", "track", "consume_directly"):
        return REQUEST
    return RIGHT.get(name, "t")


def parameters(method: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a method that not every object fits."""
    _, *found = inspect.signature(method).parameters.values()
    taken = [each for each in found if each.kind is not inspect.Parameter.VAR_KEYWORD]
    # The parameters of an overloaded method are annotated in its overloads.
    return [
        each for each in taken if each.annotation not in ("object", "Any") or each.name in RIGHT
    ]


def methods(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public methods of a class."""
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_"):
            yield name, method


@pytest.mark.parametrize("kind", MAKERS, ids=lambda kind: kind.__name__)
async def test_every_argument_of_a_wrong_type_is_refused_before_anything_is_sent(
    kind: type,
) -> None:
    options = {} if kind is AdminClient else {"group": "g"}
    async with MAKERS[kind](NAME_SERVER, **options) as client:
        for name, method in methods(kind):
            for wrong in parameters(method):
                given, named = arguments(kind, name, wrong.name)
                with case(f"{name}({wrong.name})"), pytest.raises(REFUSALS, match=EXPECTED):
                    await called(getattr(client, name), *given, **named)


def arguments(kind: type, method: str, wrong: str) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call of which one is wrong, by position and by name."""
    given: list[Any] = []
    named: dict[str, Any] = {}
    for each in parameters(getattr(kind, method)):
        value = object() if each.name == wrong else right(kind, method, each.name)
        if each.kind is inspect.Parameter.VAR_POSITIONAL:
            given.append(value)
        elif each.default in (inspect.Parameter.empty, "") or each.name == wrong:
            named[each.name] = value
    return ([*named.values(), *given], {}) if given else ([], named)


@pytest.mark.parametrize(
    "arguments",
    [
        ("delete_topic", "a\udce9"),
        ("set_order_conf", "t", {"a\udce9": 1}),
        ("set_broker_config", "127.0.0.1:1", {"key": "a\udce9"}),
        ("messages_by_key", "t", "a\udce9"),
    ],
    ids=str,
)
async def test_text_that_no_request_can_contain_is_refused(arguments: tuple[Any, ...]) -> None:
    method, *given = arguments
    async with AdminClient(NAME_SERVER) as admin:
        with pytest.raises((ConfigError, InvalidNameError), match=EXPECTED):
            await called(getattr(admin, method), *given)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        pytest.param(kind, each.name, id=f"{kind.__name__}-{each.name}")
        for kind in MAKERS
        for each in parameters(kind.__init__)  # type: ignore[misc]
        if each.kind is not inspect.Parameter.VAR_KEYWORD
    ],
)
@pytest.mark.parametrize("value", [object(), 5, b"x"])
def test_every_argument_of_a_constructor_of_a_wrong_type_is_refused(
    kind: type, wrong: str, value: object
) -> None:
    options: dict[str, Any] = {} if kind is AdminClient else {"group": "g"}
    if "handler" in wrong:
        options["handler"] = None
    if wrong == "invisible" and value == 5:
        return
    with pytest.raises(REFUSALS, match=EXPECTED):
        MAKERS[kind](**{"name_servers": NAME_SERVER, **options, wrong: value})


@pytest.mark.parametrize("way", ["send", "send_nowait", "send_batch", "send_all", "send_oneway"])
@pytest.mark.parametrize("hooks", [[], [SendHook()]], ids=["no hook", "hook"])
@pytest.mark.parametrize(
    "message",
    [
        Message("t", b"x", properties=cast(Any, [1])),
        Message(cast(Any, 5), b"x"),
        Message("t", cast(Any, None)),
        Message("t", b"x", tags=cast(Any, 5)),
        Message("t", b"x", keys=cast(Any, [5])),
        Message("t", b"x", flag=cast(Any, "5")),
    ],
    ids=["properties", "topic", "body", "tags", "keys", "flag"],
)
async def test_a_message_with_a_field_of_a_wrong_type_is_refused(
    way: str, hooks: list[SendHook], message: Message
) -> None:
    async with Producer(NAME_SERVER, group="g", hooks=hooks) as producer:
        with pytest.raises((InvalidMessageError, InvalidNameError), match=EXPECTED):
            await called(
                getattr(producer, way), [message] if way in ("send_batch", "send_all") else message
            )


@pytest.mark.parametrize(
    "make",
    [
        Filter.tags,
        Filter.sql,
        lambda wrong: Filter.of_class(wrong, "source"),
        lambda wrong: Filter.of_class("Name", wrong),
        lambda wrong: ConsumeLater(delay_level=wrong),
    ],
)
def test_what_makes_no_filter_or_delay_is_refused(make: Callable[[Any], object]) -> None:
    with pytest.raises(ConfigError, match=EXPECTED):
        make(b"x")


def test_an_offset_store_needs_an_instance() -> None:
    with pytest.raises(ConfigError, match="instance='client': expected a ClientInstance"):
        RemoteOffsetStore(cast(Any, "client"), "g")


def test_the_folder_of_an_offset_store_may_be_text(tmp_path: Path) -> None:
    store = LocalOffsetStore(cast(Any, str(tmp_path)), "client", "g")
    assert store.path == tmp_path / "client" / "g" / "offsets.json"


async def test_an_iterator_may_be_given_where_several_are_expected() -> None:
    async with PullConsumer(NAME_SERVER, group="g") as consumer:
        with pytest.raises(NotAssignedError):
            await consumer.commit(iter([QUEUE]))
        with pytest.raises(
            TypeError, match=r"commit\(offsets=.*\): expected Mapping\[MessageQueue"
        ):
            await consumer.commit({QUEUE: "5"})


def test_equal_failures_of_a_send_are_named_once() -> None:
    failures: list[CometError] = [ConnectError("cannot connect"), ConnectError("cannot connect")]
    attempts = [SendAttempt("b", each, False) for each in failures]
    assert str(SendFailedError("t", attempts)) == (
        "sending to t failed: b: ConnectError: cannot connect"
    )
