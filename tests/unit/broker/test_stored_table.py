"""A table in its file: changes share writes, and are visible once they are on disk."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.broker import stored_table
from cometmq.broker.stored_table import Change, StoredTable, create, remove
from cometmq.broker.stored_table import put as put_value
from cometmq.model.errors import ResponseError, StoreError
from cometmq.protocol.bodies.common import DataVersion
from cometmq.remoting.slow_requests import begin_request
from cometmq.store.config_files import JsonFile
from cometmq.system.files import Files
from support.checks.manual_clock import ManualClock

WAIT_S = 60.0


class HeldFiles(Files):
    """A disk whose writes wait until the test lets them go, and may fail."""

    def __init__(self) -> None:
        self.writes = 0
        self.is_broken = False
        self.go = threading.Event()
        self.go.set()

    def write(self, path: Path, data: bytes) -> None:
        if path.suffix == ".tmp":
            assert self.go.wait(WAIT_S)
            self.writes += 1
            if self.is_broken:
                raise OSError("the disk is gone")
        super().write(path, data)

    def overwrite(self, path: Path, data: bytes) -> None:
        self.writes += 1
        if self.is_broken:
            super().overwrite(path, data[:-5])
            raise OSError("the disk is gone")
        super().overwrite(path, data)


class World:
    def __init__(self, folder: Path) -> None:
        self.files = HeldFiles()
        self.path = folder / "table.json"
        self.table = StoredTable(
            JsonFile(self.path, self.files), ["things", "others"], clock=ManualClock()
        )
        self.changes = 0
        self.table.on_change = self._count

    def _count(self) -> None:
        self.changes += 1

    def on_disk(self) -> dict[str, dict[str, object]]:
        content: dict[str, dict[str, object]] = json.loads(self.path.read_text())
        return content


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def put(name: str, value: object = 1, section: str = "things") -> Change:
    return put_value(section, name, {"value": value})


async def test_a_change_is_on_disk_and_then_visible(world: World) -> None:
    world.files.go.clear()
    change = asyncio.ensure_future(world.table.change([put("a"), put("b", 2, "others")]))
    await asyncio.sleep(0)
    assert world.table.sections == {"things": {}, "others": {}}
    version = world.table.version.counter
    world.files.go.set()
    await change
    assert world.table.sections == {"things": {"a": {"value": 1}}, "others": {"b": {"value": 2}}}
    assert world.on_disk()["things"] == {"a": {"value": 1}}
    assert world.on_disk()["others"] == {"b": {"value": 2}}
    assert world.on_disk()["dataVersion"]["counter"] == version + 1
    assert (world.table.version.counter, world.changes) == (version + 1, 1)


async def test_changes_during_a_write_share_the_next_one(world: World) -> None:
    world.files.go.clear()
    changes = [asyncio.ensure_future(world.table.change([put("first")]))]
    await asyncio.sleep(0)
    changes += [
        asyncio.ensure_future(world.table.change([put(f"n{number}")])) for number in range(1000)
    ]
    await asyncio.sleep(0)
    world.files.go.set()
    await asyncio.gather(*changes)
    assert world.files.writes == 2
    assert len(world.table.sections["things"]) == 1001
    assert world.on_disk()["things"].keys() == world.table.sections["things"].keys()


async def test_a_refused_change_is_not_made_and_all_who_share_it_hear_why(world: World) -> None:
    await world.table.change([put("kept")])
    version = world.table.version
    world.files.is_broken = True
    outcomes = await asyncio.gather(
        *(world.table.change([put(name)]) for name in ("a", "b")), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [StoreError] * 2
    assert all("the disk is gone" in str(outcome) for outcome in outcomes)
    assert list(world.table.sections["things"]) == ["kept"]
    assert world.table.version == version
    world.files.is_broken = False
    await world.table.change([put("a")])
    assert world.on_disk()["things"].keys() == {"kept", "a"}


async def test_entries_are_removed_and_what_is_so_already_is_not_written(world: World) -> None:
    await world.table.change([put("a"), put("b")])
    writes = world.files.writes
    await world.table.change([put("a")])
    assert world.files.writes == writes
    await world.table.change([remove("things", "a"), remove("others", "missing")])
    assert world.table.sections["things"] == {"b": {"value": 1}}
    assert world.on_disk()["things"].keys() == {"b"}


async def test_no_change_at_all_counts_the_version_up(world: World) -> None:
    version = world.table.version.counter
    await world.table.change([])
    assert world.table.version.counter == version + 1
    assert world.on_disk()["dataVersion"]["counter"] == version + 1


async def test_a_requester_that_gives_up_keeps_no_other_waiting(world: World) -> None:
    world.files.go.clear()
    one = asyncio.ensure_future(world.table.change([put("a")]))
    other = asyncio.ensure_future(world.table.change([put("b")]))
    await asyncio.sleep(0)
    one.cancel()
    world.files.go.set()
    await other
    assert world.table.sections["things"].keys() == {"a", "b"}


async def test_too_many_waiting_requests_are_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_table, "CHANGES_MAX", 2)
    world.files.go.clear()
    changes = [asyncio.ensure_future(world.table.change([put("first")]))]
    await asyncio.sleep(0)
    changes += [asyncio.ensure_future(world.table.change([put(name)])) for name in ("a", "b")]
    await asyncio.sleep(0)
    with pytest.raises(ResponseError, match=r"2 changes of table\.json wait"):
        await world.table.change([put("c")])
    world.files.go.set()
    await asyncio.gather(*changes)
    await world.table.close()
    assert world.on_disk()["things"].keys() == {"first", "a", "b"}


async def test_the_first_of_two_creations_wins_and_no_change_undoes_another(world: World) -> None:
    """Requests that arrive during a write meet what it stores, not what was there before."""
    world.files.go.clear()
    changes = [asyncio.ensure_future(world.table.change([create("things", "a", [1])]))]
    await asyncio.sleep(0)
    more = [
        create("things", "a", [2]),
        Change("things", "a", lambda present: [*present, "second"]),
        Change("things", "a", lambda present: [*present, "third"]),
    ]
    changes += [asyncio.ensure_future(world.table.change([change])) for change in more]
    await asyncio.sleep(0)
    world.files.go.set()
    await asyncio.gather(*changes)
    assert world.table.sections["things"]["a"] == [1, "second", "third"]
    assert world.on_disk()["things"] == {"a": [1, "second", "third"]}


async def test_a_change_that_raises_is_not_made_and_keeps_no_other_from_it(world: World) -> None:
    def refuse(_: object) -> None:
        raise ResponseError(1, "not so")

    world.files.go.clear()
    changes = [asyncio.ensure_future(world.table.change([put("first")]))]
    await asyncio.sleep(0)
    changes.append(
        asyncio.ensure_future(world.table.change([put("a"), Change("things", "b", refuse)]))
    )
    changes.append(asyncio.ensure_future(world.table.change([put("c")])))
    await asyncio.sleep(0)
    world.files.go.set()
    outcomes = await asyncio.gather(*changes, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), ResponseError, type(None)]
    assert world.table.sections["things"].keys() == {"first", "c"}


async def test_closing_waits_for_the_write(world: World) -> None:
    world.files.go.clear()
    change = asyncio.ensure_future(world.table.change([put("a")]))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(world.table.close())
    await asyncio.sleep(0)
    assert not closing.done()
    world.files.go.set()
    await closing
    assert world.on_disk()["things"].keys() == {"a"}
    await change


def calls_of(function: Callable[[], object]) -> int:
    """How many functions run, of Python and of C."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


def test_a_write_renders_only_what_has_changed_however_large_the_table_is(world: World) -> None:
    def change(name: str) -> int:
        return calls_of(lambda: world.table.change_now([put_value("things", name, {"a": 1})]))

    change("first")
    with_few = change("second")
    world.table.change_now([put_value("things", f"n{n}", {"a": n}) for n in range(5000)])

    assert change("third") <= with_few + 20
    assert len(world.on_disk()["things"]) == 5003


# --- copies of another table --------------------------------------------------------------------

MASTER = DataVersion(state_version=1, timestamp=2, counter=30)


def never(_: str) -> bool:
    return False


async def test_a_copy_replaces_entries_and_version(world: World) -> None:
    await world.table.change([put("a"), put("b"), put("kept"), put("o", section="others")])
    entries = {"a": {"value": 5}, "c": {"value": 6}}
    await world.table.replace(MASTER, {"things": entries}, keeps=lambda name: name == "kept")
    assert world.table.sections["things"] == {**entries, "kept": {"value": 1}}
    assert world.table.sections["others"] == {"o": {"value": 1}}
    assert world.table.version == MASTER
    stored = world.on_disk()
    assert stored["things"] == world.table.sections["things"]
    assert stored["dataVersion"] == {"stateVersion": 1, "timestamp": 2, "counter": 30}


async def test_a_copy_of_equal_entries_takes_the_version(world: World) -> None:
    await world.table.change([put("a")])
    await world.table.replace(MASTER, {"things": {"a": {"value": 1}}}, keeps=never)
    assert world.table.version == MASTER


async def test_a_change_in_the_same_write_makes_another_version_than_that_of_the_copy(
    world: World,
) -> None:
    """So the next copy does not take the tables for equal."""
    world.files.go.clear()
    first = asyncio.ensure_future(world.table.change([put("a")]))
    await asyncio.sleep(0)
    copied = asyncio.ensure_future(world.table.replace(MASTER, {"things": {}}, keeps=never))
    changed = asyncio.ensure_future(world.table.change([put("mine")]))
    await asyncio.sleep(0)
    world.files.go.set()
    await asyncio.gather(first, copied, changed)
    assert "mine" in world.table.sections["things"]
    assert world.table.version.counter == MASTER.counter + 1


async def test_a_copy_that_cannot_be_written_changes_nothing(world: World) -> None:
    await world.table.change([put("a")])
    before = world.table.version
    world.files.is_broken = True
    with pytest.raises(StoreError, match="the disk is gone"):
        await world.table.replace(MASTER, {"things": {}}, keeps=never)
    assert world.table.sections["things"] == {"a": {"value": 1}}
    assert world.table.version == before


async def test_the_wait_for_the_file_is_time_of_a_thread(world: World) -> None:
    """A slow request of a topic or a group that is created names the disk, not the event loop."""
    spent = begin_request()
    await world.table.change([put("a")])

    assert list(spent) == ["thread"]


# --- changes of large tables --------------------------------------------------------------------


LARGE = stored_table.WHOLE_ENTRIES_MAX + 1


@pytest.fixture
def late_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test takes so long that changes are merged meanwhile."""
    monkeypatch.setattr(stored_table, "MERGE_S", 1e9)


async def large(world: World) -> Path:
    """Fill the table; return the file of its changes."""
    await world.table.change([put(f"old{number}") for number in range(LARGE)])
    return world.path.with_name("table.json.changes")


def reopened(world: World) -> dict[str, object]:
    """The content that the next start reads."""
    files = Files()
    table = StoredTable(JsonFile(world.path, files), ["things", "others"], clock=ManualClock())
    content = table.load()
    assert content is not None
    return content


@pytest.mark.usefixtures("late_merges")
async def test_a_change_of_a_large_table_is_written_apart(world: World) -> None:
    changes = await large(world)
    whole = world.path.read_bytes()
    await world.table.change([put("new", 7), put("old1", 8), remove("things", "old2")])
    await world.table.change([put("x", 9, "others"), put("gone")])
    await world.table.change([remove("things", "gone")])

    assert world.path.read_bytes() == whole
    content = reopened(world)
    assert content["things"] == world.table.sections["things"]
    assert content["others"] == {"x": {"value": 9}} == world.table.sections["others"]
    assert len(world.table.sections["things"]) == LARGE
    assert changes.read_text().count("\n") == 3
    assert content["dataVersion"]["counter"] == world.table.version.counter  # type: ignore[index]


@pytest.mark.usefixtures("late_merges")
async def test_changes_are_merged_when_the_table_is_closed(world: World) -> None:
    changes = await large(world)
    await world.table.change([put("new", 7)])
    assert changes.exists()
    await world.table.close()
    assert not changes.exists()
    assert world.on_disk()["things"] == world.table.sections["things"]
    assert world.on_disk()["dataVersion"]["counter"] == world.table.version.counter


@pytest.mark.usefixtures("virtual_time")
async def test_changes_are_merged_some_seconds_later(world: World) -> None:
    changes = await large(world)
    await world.table.change([put("new", 7)])
    async with asyncio.timeout(100 * stored_table.MERGE_S):
        while "new" not in world.on_disk()["things"]:
            await asyncio.sleep(stored_table.MERGE_S)
    assert changes.exists()  # its lines do not count any more
    assert world.on_disk()["things"] == world.table.sections["things"]
    await world.table.change([put("newer", 7)])
    assert reopened(world)["things"] == world.table.sections["things"]


@pytest.mark.usefixtures("late_merges")
async def test_a_large_table_is_written_as_a_whole_once_in_many_changes(world: World) -> None:
    await large(world)
    before = world.files.writes
    wholes = 0
    for number in range(2 * stored_table.APART_MAX + 10):
        whole = world.path.stat().st_ino
        await world.table.change([put(f"new{number}")])
        wholes += world.path.stat().st_ino != whole
    assert world.files.writes - before == 2 * stored_table.APART_MAX + 10
    assert wholes == 2
    assert reopened(world)["things"] == world.table.sections["things"]


@pytest.mark.usefixtures("late_merges")
async def test_changes_of_another_version_do_not_count(world: World) -> None:
    """The file of the whole table was written since, by a merge or by another program."""
    changes = await large(world)
    await world.table.change([put("new", 7)])
    left = changes.read_bytes()
    await world.table.close()
    changes.write_bytes(left)
    content = reopened(world)
    assert content["things"] == world.table.sections["things"]
    whole = world.on_disk()
    whole["things"].pop("new")
    whole["dataVersion"]["counter"] = 1000
    world.path.write_text(json.dumps(whole))
    assert reopened(world) == whole


@pytest.mark.usefixtures("late_merges")
async def test_a_change_that_was_cut_off_does_not_count_and_those_before_it_do(
    world: World,
) -> None:
    changes = await large(world)
    await world.table.change([put("new", 7)])
    before = dict(world.table.sections["things"])
    kept = len(changes.read_bytes())
    await world.table.change([put("newer", 8), remove("things", "new")])
    whole = changes.read_bytes()
    for end in range(kept, len(whole)):
        for rest in (b"", bytes(len(whole) - end)):
            changes.write_bytes(whole[:end] + rest)
            assert reopened(world)["things"] == before
    changes.write_bytes(whole + whole[10:kept])  # left over by a longer file
    assert reopened(world)["things"] == world.table.sections["things"]


@pytest.mark.usefixtures("late_merges")
async def test_a_merge_that_the_disk_refuses_loses_nothing(world: World) -> None:
    changes = await large(world)
    await world.table.change([put("new", 7)])
    world.files.is_broken = True
    await world.table.close()
    assert changes.exists()
    assert reopened(world)["things"] == world.table.sections["things"]


@pytest.mark.usefixtures("late_merges")
async def test_a_change_that_the_disk_refuses_is_not_in_the_next_one(world: World) -> None:
    await large(world)
    await world.table.change([put("new", 7)])
    world.files.is_broken = True
    with pytest.raises(StoreError, match="the disk is gone"):
        await world.table.change([put("refused")])
    world.files.is_broken = False
    await world.table.change([put("later")])
    things = reopened(world)["things"]
    assert things == world.table.sections["things"]
    assert isinstance(things, dict)
    assert {"new", "later"} < things.keys()
    assert "refused" not in things
