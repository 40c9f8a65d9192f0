"""The counts of the demo, and the reasons why it fails."""

from __future__ import annotations

import asyncio
from collections import deque

from cometmq.cli.demo import failure_text
from cometmq.cli.demo_figures import Figures, percentile
from cometmq.model.errors import StoreError


def test_a_message_is_lost_while_it_is_acknowledged_and_not_received() -> None:
    figures = Figures()
    figures.note_acknowledged(1, 1.0)
    figures.note_acknowledged(2, 1.0)
    figures.note_received(1, 1.0)

    assert (figures.acknowledged, figures.lost, figures.duplicates) == (2, 1, 0)


def test_a_message_may_be_received_before_it_is_acknowledged() -> None:
    figures = Figures()
    figures.note_received(1, 1.0)
    figures.note_acknowledged(1, 1.0)

    assert figures.lost == 0


def test_a_message_received_twice_is_a_duplicate() -> None:
    figures = Figures()
    figures.note_received(1, 1.0)
    figures.note_received(1, 1.0)

    assert figures.duplicates == 1


async def test_waiting_ends_when_the_figures_are_there() -> None:
    figures = Figures()
    waiting = asyncio.create_task(figures.wait_until(lambda: figures.acknowledged == 2))
    for number in range(2):
        await asyncio.sleep(0)
        assert not waiting.done()
        figures.note_acknowledged(number, 1.0)

    await asyncio.wait_for(waiting, 60)


def test_percentiles_are_values_that_occurred() -> None:
    values = deque(float(n) for n in range(1, 101))

    assert percentile(values, 0.5) == 51
    assert percentile(values, 0.99) == 100
    assert percentile(deque(), 0.5) == 0


def test_a_demo_that_takes_too_long_says_what_was_expected() -> None:
    text = failure_text(TimeoutError(), 20)

    assert "not done after 35 s, expected 20 s" in text
    assert "--seconds 60" in text
    assert failure_text(StoreError("no room"), 20) == "no room"
