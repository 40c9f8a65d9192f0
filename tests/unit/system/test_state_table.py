"""Tables of states: each row, each refusal, and that each state can be reached."""

from __future__ import annotations

import itertools
import re
from enum import Enum
from typing import Any

import pytest

from cometmq.system.state_table import IllegalEventError, StateTable
from tools.generate import states
from tools.generate.root import stale

MACHINES = states.machines()
CASES = [
    pytest.param(module.TABLE, state, event, id=f"{name}-{state.name}-{event.name}")
    for name, module in MACHINES.items()
    for state, event in itertools.product(module.State, module.Event)
]
each_machine = pytest.mark.parametrize("name", MACHINES)


@pytest.mark.parametrize(("table", "state", "event"), CASES)
def test_a_state_and_an_event_have_a_row_or_are_refused(
    table: StateTable[Any, Any, Any], state: Enum, event: Enum
) -> None:
    row = table.rows.get((state, event))
    if row is None:
        met = f"{table.name}: met the event {event.name} in the state {state.name}, expected one of"
        with pytest.raises(IllegalEventError, match=re.escape(met)):
            table.row(state, event)
    else:
        assert table.row(state, event) is row
        assert (row.state, row.event) == (state, event)


@each_machine
def test_each_state_is_reached_from_the_first_one(name: str) -> None:
    module = MACHINES[name]
    reached = {module.TABLE.first}
    while more := {r.after for r in module.TABLE.rows.values() if r.state in reached} - reached:
        reached |= more
    assert reached == set(module.State)


@each_machine
def test_each_event_and_each_action_is_in_a_row(name: str) -> None:
    module = MACHINES[name]
    rows = module.TABLE.rows.values()
    assert {row.event for row in rows} == set(module.Event)
    assert {row.action for row in rows} - {None} == set(getattr(module, "Action", ()))


def test_the_page_shows_each_machine_as_it_is() -> None:
    shown = [match[2] for match in states.BLOCK.finditer(states.PAGE.read_text())]
    assert sorted(shown) == sorted(MACHINES)
    assert stale(states.files()) == [], "run make generate"


def test_two_rows_for_a_state_and_an_event_are_refused() -> None:
    class Kind(Enum):
        ONE = 1

    row: tuple[Kind, Kind, Kind, Kind | None] = (Kind.ONE, Kind.ONE, Kind.ONE, None)
    with pytest.raises(ValueError, match="switch: two rows for ONE in ONE"):
        StateTable("switch", Kind.ONE, [row, row])
