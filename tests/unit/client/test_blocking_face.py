"""The blocking client offers what the asyncio one does, by the same names."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import cometmq.client as asynchronous
from cometmq.client import ClientClosedError, Message, StartFrom, blocking

ROOT = Path(__file__).resolve().parents[3]

NAMES = (
    "Producer",
    "TransactionProducer",
    "PushConsumer",
    "PopConsumer",
    "PullConsumer",
    "SimpleConsumer",
    "AdminClient",
)

FOR_THE_CLIENT_ITSELF = {"membership"}
"""Public methods that other parts of the client call, not applications."""


def test_the_generated_classes_are_current() -> None:
    subprocess.run([sys.executable, ROOT / "make_blocking.py", "--check"], check=True)


def calls(kind: type) -> dict[str, object]:
    """The public methods and properties of a class."""
    return {
        name: thing
        for name, thing in inspect.getmembers(kind)
        if not name.startswith("_") and (inspect.isfunction(thing) or isinstance(thing, property))
    }


def parameters(call: object) -> list[tuple[str, object, object]]:
    """The parameters of a call: name, kind, default."""
    assert callable(call)
    return [
        (one.name, one.kind, one.default) for one in inspect.signature(call).parameters.values()
    ]


@pytest.mark.parametrize("name", NAMES)
def test_every_call_is_there_by_the_same_name(name: str) -> None:
    theirs, ours = getattr(asynchronous, name), getattr(blocking, name)

    assert set(calls(ours)) == set(calls(theirs)) - FOR_THE_CLIENT_ITSELF


@pytest.mark.parametrize("name", NAMES)
def test_every_call_has_the_same_parameters(name: str) -> None:
    theirs, ours = getattr(asynchronous, name), getattr(blocking, name)
    for called, thing in calls(ours).items():
        if inspect.isfunction(thing):
            assert parameters(thing) == parameters(getattr(theirs, called)), called
        else:
            assert isinstance(getattr(theirs, called), property), called
    assert parameters(ours.__init__) == parameters(theirs.__init__)


@pytest.mark.parametrize("name", NAMES)
def test_no_call_gives_a_coroutine(name: str) -> None:
    found = calls(getattr(blocking, name)).items()

    assert not [called for called, thing in found if inspect.iscoroutinefunction(thing)]


def test_calls_before_the_start_are_refused() -> None:
    producer = blocking.Producer("127.0.0.1:1", group="g")
    consumer = blocking.PullConsumer("127.0.0.1:1", group="g", start_from=StartFrom.FIRST)

    with pytest.raises(ClientClosedError):
        producer.send(Message("t", b"x"))
    with pytest.raises(ClientClosedError):
        producer.send_nowait(Message("t", b"x"))
    with pytest.raises(ClientClosedError):
        next(consumer)
    assert consumer.assignment() == []


def test_a_consumer_that_iterates_is_its_own_iterator() -> None:
    consumer = blocking.PullConsumer("127.0.0.1:1", group="g")

    assert iter(consumer) is consumer
