"""The signed greeting of a slave: whose it is, and which ones a master refuses."""

from __future__ import annotations

import pytest

from cometmq.broker.replication.greeting import (
    GREETING_BYTES,
    TICKET_S,
    SlaveNames,
    Tickets,
    check_process,
)
from cometmq.model.errors import ProtocolError

SLAVE = SlaveNames(2, "ab" * 16, "", "cd" * 16)
HEAD = b"CMQL" + (1).to_bytes(2, "big") + (GREETING_BYTES - 8).to_bytes(2, "big")


class Time:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def greeting(tickets: Tickets, slave: SlaveNames = SLAVE) -> bytes:
    return HEAD + slave.encode() + bytes.fromhex(tickets.give(slave))


def test_a_greeting_names_its_slave() -> None:
    tickets = Tickets(Time())
    data = greeting(tickets)
    assert len(data) == GREETING_BYTES
    assert tickets.take(data + b"more") == SLAVE
    assert all(tickets.take(data[:size]) is None for size in range(GREETING_BYTES))


def test_a_ticket_is_good_for_a_while() -> None:
    time = Time()
    tickets = Tickets(time)
    data = greeting(tickets)
    time.now_s += TICKET_S - 1
    assert tickets.take(data) == SLAVE
    time.now_s += 2
    with pytest.raises(ProtocolError, match="older than 30 s"):
        tickets.take(data)


def test_no_changed_bit_is_taken() -> None:
    tickets = Tickets(Time())
    data = greeting(tickets)
    for at in range(len(data)):
        for bit in (0x01, 0x80):
            changed = data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]
            with pytest.raises(ProtocolError):
                tickets.take(changed)


def test_the_ticket_of_another_process_is_none() -> None:
    with pytest.raises(ProtocolError, match="not given by this process"):
        Tickets(Time()).take(greeting(Tickets(Time())))


@pytest.mark.parametrize("data", [b"", bytes(55), bytes(56), bytes(57)])
def test_names_are_checked(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        SlaveNames.decode(data)


@pytest.mark.parametrize(
    ("incarnation", "held", "is_taken"),
    [("a", "a", True), ("b", "a", False), ("", "a", False), ("b", "", True), ("", "", True)],
)
def test_a_connected_process_gives_way_to_itself_alone(
    incarnation: str, held: str, is_taken: bool
) -> None:
    if is_taken:
        check_process(2, incarnation, held, "10.0.0.1:1")
        return
    expected = f"met incarnation {incarnation or 'none'}, expected {held} of 10.0.0.1:1"
    with pytest.raises(ProtocolError, match=expected):
        check_process(2, incarnation, held, "10.0.0.1:1")
