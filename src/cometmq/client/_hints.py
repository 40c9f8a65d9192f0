"""Adds the right line to the error of a wrong call, for users of other messaging libraries.

A wrong call of a constructor, an unknown method and a wrong send raise an error with a line that
works. Calls that succeed cost nothing more. `new_message` makes a `Message` of a topic and a body.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, TypedDict

from cometmq.client.settings import UnknownSettingError, near_names
from cometmq.model.arguments import is_from_within, with_line
from cometmq.model.errors import ConfigError, InvalidMessageError
from cometmq.model.message import Message
from cometmq.model.missing_attributes import Missing

DEFAULT = '"127.0.0.1:9876"'
_CONSUMER = '(ADDRESS, topic="orders", group="billing"'
LINES = {
    "Producer": "Producer(ADDRESS)",
    "TransactionProducer": 'TransactionProducer(ADDRESS, group="books", listener=Orders())',
    "PushConsumer": f"PushConsumer{_CONSUMER}, handler=bill)",
    "PopConsumer": f"PopConsumer{_CONSUMER}, handler=bill)",
    "PullConsumer": f"PullConsumer{_CONSUMER})",
    "SimpleConsumer": f"SimpleConsumer{_CONSUMER})",
    "AdminClient": "AdminClient(ADDRESS)",
}
"""By class, a call of its constructor that works."""

_PARAMETERS = {
    "name_servers": (
        "address addresses addr bootstrap_servers broker brokers dsn endpoint endpoints host hosts "
        "namesrv namesrv_addr nameserver nameservers name_server port server servers uri url urls"
    ),
    "group": "consumer_group consumer_name durable group_id group_name queue_group",
    "handler": "callback cb func function listener on_message on_message_callback target",
    "topic": "channel destination queue queue_name stream subject topic_name topics",
    "start_from": "auto_offset_reset deliver_policy",
    "access_key": "sasl_plain_username user username",
    "secret_key": "password sasl_plain_password",
    "instance_name": "client_id",
}
MEANT = {other: name for name, others in _PARAMETERS.items() for other in others.split()}
"""The names of our constructor parameters, by their names in other libraries."""

_SEND = 'await producer.send("orders", b"hello")'
_PRODUCERS = ("Producer", "TransactionProducer")
_SEND_NAMES = (
    "add apply_async basic_publish enqueue lpush produce publish push put rpush send_and_wait "
    "send_message send_sync xadd"
)
_PRODUCER_METHODS = {
    _SEND: _SEND_NAMES,
    'future = await producer.send_soon("orders", b"hello")': "send_async",
    "async with Producer() as producer:": "connect open",
    "await producer.close()": "disconnect drain shutdown stop",
}
_RECEIVE_NAMES = "basic_consume consume listen loop_forever run_forever serve start_consuming"
_CONSUMER_METHODS = {
    "await consumer.start()": "connect open",
    "await consumer.close()": "disconnect drain shutdown stop",
}
_METHODS = {
    **dict.fromkeys(_PRODUCERS, _PRODUCER_METHODS),
    "PushConsumer": {"await consumer.run()": _RECEIVE_NAMES} | _CONSUMER_METHODS,
    "PopConsumer": {"await consumer.run()": _RECEIVE_NAMES} | _CONSUMER_METHODS,
    "PullConsumer": {"async for message in consumer:": _RECEIVE_NAMES} | _CONSUMER_METHODS,
    "SimpleConsumer": {"messages = await consumer.receive()": _RECEIVE_NAMES} | _CONSUMER_METHODS,
}
"""By class and line to write instead, the names of methods in other libraries."""


class WrongCallError(ConfigError):
    """The arguments of a constructor do not fit together; the constructor adds the right line."""


class WrongAddressError(ConfigError):
    """The first argument of a constructor is no address; the constructor adds the right line."""


def show_lines(cls: type) -> None:
    """Let a public class show the right line for wrong calls of its constructor and methods."""
    name = cls.__name__
    line = LINES.get(name)
    if line is None or not cls.__module__.startswith("cometmq."):
        return
    cls.__init__ = _with_hints(cls.__init__, name, line)  # type: ignore[misc]
    if "blocking" in cls.__module__:
        cls.__init__ = _with_plain_calls(cls.__init__)  # type: ignore[misc]
    for instead, others in _METHODS.get(name, {}).items():
        if "blocking" in cls.__module__:
            instead = _plain(instead)
        for other in others.split():
            if not hasattr(cls, other):
                setattr(cls, other, Missing(other, instead))


def _plain(line: str) -> str:
    """Return a line for programs without asyncio."""
    return line.replace("await ", "").replace("async ", "")


def _with_plain_calls(constructor: Callable[..., None]) -> Callable[..., None]:
    """Translate the errors of the asyncio class that a blocking one makes."""

    @functools.wraps(constructor)
    def construct(self: object, *arguments: Any, **named: Any) -> None:
        try:
            constructor(self, *arguments, **named)
        except ConfigError as error:
            error.args = (_plain(str(error)),)
            raise

    return construct


def _with_hints(
    constructor: Callable[..., None], class_name: str, pattern: str
) -> Callable[..., None]:
    code = constructor.__code__
    parameters = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]

    @functools.wraps(constructor)
    def construct(self: object, *arguments: Any, **named: Any) -> None:
        try:
            constructor(self, *arguments, **named)
        except UnknownSettingError as error:
            line = _line(pattern, arguments)
            text = _unknown_name(error, class_name, line, parameters, named.get(error.name))
            raise ConfigError(text) from None
        except WrongCallError as error:
            raise ConfigError(f"{error}: write {_line(pattern, arguments)}") from None
        except WrongAddressError as error:
            met = arguments[0] if arguments else named.get("name_servers")
            raise ConfigError(f"{class_name}: {error}: {_for_address(met, pattern)}") from None
        except TypeError as error:
            if is_from_within(error):
                raise
            line = _line(pattern, arguments)
            if class_name == "Producer" and len(arguments) == 2:
                line = _with_second(arguments[1], line)
            text = with_line(error, named, MEANT, line)
            owner = f"{class_name}.__init__"
            raise TypeError(text.replace(constructor.__qualname__, owner)) from None

    return construct


def _line(pattern: str, arguments: Sequence[object]) -> str:
    """Return the line of a class, with a broker as the address if the call had one."""
    first = arguments[0] if arguments else ""
    has_broker = not isinstance(first, str | int | Sequence | None)
    return pattern.replace("ADDRESS", "broker" if has_broker else DEFAULT)


def _with_second(second: object, line: str) -> str:
    """Return the lines for a second argument: the group, or the topic of all sends."""
    with_group = line.replace(")", f", group={second!r})")
    return f'{with_group}, or {line} and producer.send({second!r}, b"hello") if it is a topic'


def _for_address(met: object, pattern: str) -> str:
    """Return what to write instead of an address: a whole one, or the broker of a folder."""
    line = f"write {pattern.replace('ADDRESS', DEFAULT)}"
    folder = "data" if not isinstance(met, str | os.PathLike) else os.fspath(met)
    broker = f"async with cometmq.embedded.open({folder!r}) as broker:"
    opened = f"{broker} {pattern.replace('ADDRESS', 'broker')}"
    if isinstance(met, str):
        if "://" in met:
            return line
        if met == "localhost" or re.fullmatch(r"[\w-]+(\.[\w-]+)+", met):
            return line.replace("127.0.0.1", met)
        if not re.search(r"[/\\~]|^\.", met):
            return f"{line}, or open a folder: {opened}"
    elif isinstance(met, int | Sequence | None):
        return line
    return f"open a folder: write {opened}"


def _unknown_name(
    error: UnknownSettingError,
    class_name: str,
    line: str,
    parameters: Sequence[str],
    value: object,
) -> str:
    name, known = error.name, [*parameters, *error.known]
    met = f"keyword: there is no setting {name!r}"
    meant = MEANT.get(name, name)
    if meant == "topic" and class_name in _PRODUCERS:
        return f"{met}: a send names its topic: write {_SEND}"
    if name == "topics":
        line = line.replace('topic="orders"', 'subscriptions={"orders": "*", "refunds": "*"}')
    near = [meant] if meant in known else near_names(name, known)
    hint = f"; did you mean {' or '.join(near)}?" if near else ":"
    if near and near[0] != "name_servers" and f"{near[0]}=" not in line:
        shown = repr(value) if isinstance(value, int | float) else "..."  # text may be a secret
        line = f"{line.removesuffix(')')}, {near[0]}={shown})"
    return f"{met}{hint} write {line}"


class Hints:
    """The base of public classes that show the right line for wrong calls."""

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        show_lines(cls)


class MessageFields(TypedDict, total=False):
    """The fields of a `Message` beside topic and body, which a send takes by name."""

    tags: str | None
    keys: Iterable[str]
    flag: int
    properties: dict[str, str]
    delay_level: int
    wait_store: bool
    delay: float | timedelta
    deliver_at: datetime | int | None


class MessageOptions(MessageFields, total=False):
    """The keywords of a message, with its topic."""

    topic: str


_DELAY = "delay_level=, or delay= at a broker of RocketMQ 5"
_MEANT_BY_SENDS = {
    "key": 'order_key="..." for the order of messages, or keys=["..."] to find them',
    "partition": "queue=",
    "partition_key": "order_key=",
    "headers": "properties=",
    "header": "properties=",
    "tag": "tags=",
    "subject": "topic=",
    "channel": "topic=",
    "routing_key": "topic=",
    "value": "body=",
    "data": "body=",
    "payload": "body=",
    "message_body": "body=",
    "countdown": _DELAY,
    "eta": "deliver_at=",
    "defer_by": _DELAY,
    "delay_seconds": _DELAY,
    "delay_s": _DELAY,
    "reply": "request() instead of a send",
}
"""The arguments of our sends, by their names in other libraries."""


def new_message(
    call: str, message: object, body: bytes | None, options: MessageOptions | dict[str, Any]
) -> Message:
    """Return the message of a send.

    Args:
        call: the method, for errors.
        message: a message, or the topic of a new one; empty if ``options`` names the topic.
        body: the body of a new message.
        options: the other fields of a new message.

    Raises:
        InvalidMessageError: it is not a message to send, or the body is not bytes.
        TypeError: an option is unknown.
    """
    unknown = next((name for name in options if name not in MessageOptions.__annotations__), None)
    if unknown is not None:
        near = near_names(unknown, MessageOptions.__annotations__)
        meant = _MEANT_BY_SENDS.get(unknown) or (f"{near[0]}=" if near else "")
        known = ", ".join(MessageFields.__annotations__)
        hint = f"did you mean {meant}?" if meant else f"the fields of a Message are {known}"
        raise TypeError(f"{call}() got an unexpected keyword argument {unknown!r}: {hint}")
    if isinstance(message, Message):
        if body is None and not options:
            return message
        raise InvalidMessageError(
            f"{call}() of a Message takes no {', '.join(options) or 'body'}: expected it in the "
            f'Message, or {call}("orders", b"hello")'
        )
    fields = dict(options)
    named, topic = fields.pop("topic", ""), message
    if named and topic != "":
        raise InvalidMessageError(f"{call}() with topic={named!r} and another: expected one topic")
    topic = named if topic == "" else topic
    if not isinstance(topic, str) or not topic:
        raise InvalidMessageError(
            f"a message of type {type(topic).__name__}: Message(topic=..., body=...) is expected, "
            f'or a topic and a body: {call}("orders", b"hello")'
        )
    if body is None:
        raise InvalidMessageError(
            f'{call}({topic!r}) has no body, expected bytes: write {call}({topic!r}, b"hello")'
        )
    if not isinstance(body, bytes | bytearray | memoryview):
        encoded = "text.encode()" if isinstance(body, str) else "json.dumps(value).encode()"
        raise InvalidMessageError(
            f"{call}({topic!r}) with a body of type {type(body).__name__}, expected bytes: write "
            f"{call}({topic!r}, {encoded})"
        )
    return Message(topic=topic, body=body, **fields)


def new_messages(
    call: str, topic: object, bodies: object, options: dict[str, Any]
) -> Iterator[Message]:
    """Return the messages of a send of several bodies, which all have the same options.

    Args:
        call: the method, for errors.
        topic: the topic of all.
        bodies: the body of each.
        options: the other fields of each.

    Raises:
        InvalidMessageError: there is no topic, there are no bodies, or a body is not bytes.
        TypeError: an option is unknown.
    """
    line = f'{call}("orders", [b"1", b"2"])'
    if not isinstance(topic, str):
        raise InvalidMessageError(
            f"{call}() of messages takes no {', '.join(options) or 'bodies'}: expected it in each"
            f" Message, or {line}"
        )
    is_one = isinstance(bodies, str | bytes | bytearray | memoryview)
    if is_one or not isinstance(bodies, Iterable):
        met = "no bodies" if bodies is None else f"bodies of type {type(bodies).__name__}"
        raise InvalidMessageError(f"{call}({topic!r}) with {met}, expected a list of bytes: {line}")
    return _of_bodies(call, topic, bodies, options, line)


def _of_bodies(
    call: str,
    topic: str,
    bodies: Iterable[object],
    options: dict[str, Any],
    line: str,
) -> Iterator[Message]:
    for body in bodies:
        if not isinstance(body, bytes | bytearray | memoryview):
            kind = type(body).__name__
            raise InvalidMessageError(
                f"{call}({topic!r}) with a body of type {kind}, expected bytes: write {line}"
            )
        yield new_message(call, topic, bytes(body), options)
