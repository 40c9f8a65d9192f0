"""Held pulls and scheduled delivery are notified when readers can see a message."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.broker.pulling.arrivals import ANY_QUEUE, Arrivals
from cometmq.broker.pulling.long_polling import HeldPull, HeldPulls
from cometmq.model.topic import DELAY_TOPIC
from cometmq.protocol.hashing import java_hash
from cometmq.store import CONFIRMS_ALL, MessageStore, StoreUnavailableError, TagMatcher
from support.stores.cold_files import ColdDisk
from support.stores.faulty_files import FaultyFiles
from support.stores.small_stores import TOPIC, opened, put, put_as_one, small_settings

HOLD_MS = 60_000


class Pull(HeldPull):
    """A pull that counts its runs."""

    runs = 0

    def rerun(self) -> None:
        self.runs += 1


class Waiting:
    """A store with synchronous flush, and those who wait for its messages."""

    def __init__(self, root: Path) -> None:
        self.files = FaultyFiles()
        self.store = self.open(root)
        self.held = HeldPulls()
        self.syncs_requested = 0
        self.scheduled: list[int] = []
        self.arrivals = Arrivals(
            self.store,
            self.held,
            self.scheduled.append,
            lambda: self.scheduled.append(-1),
            self._sync_soon,
        )

    def open(self, root: Path) -> MessageStore:
        return opened(root, files=self.files, flush_disk_type="SYNC_FLUSH")

    def _sync_soon(self) -> None:
        self.syncs_requested += 1

    def hold(self, offset: int = 0, *, tag: str | None = None, **more: bool) -> Pull:
        matcher = None if tag is None else TagMatcher(frozenset({java_hash(tag)}))
        pull = Pull(TOPIC, 0, offset, matcher, "connection", **more)
        assert self.held.hold(pull, HOLD_MS)
        return pull

    def put(self, *tags: str) -> None:
        for tag in tags:
            put(self.store, properties={"TAGS": tag})


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Waiting]:
    made = Waiting(tmp_path)
    yield made
    made.store.close()


class Never:
    """Wants no message."""

    needs_properties = True

    def matches_tags(self, tags_code: int) -> bool:
        return True

    def matches_bitmap(self, store_ms: int, bitmap: bytes) -> bool:
        return True

    def matches_properties(self, properties: bytes) -> bool:
        return False


async def test_a_pull_runs_again_if_its_messages_have_to_be_read_from_the_disk(
    tmp_path: Path,
) -> None:
    before = opened(tmp_path)
    put(before)
    before.close()
    store = opened(tmp_path, files=ColdDisk(), flush_disk_type="SYNC_FLUSH")
    held = HeldPulls()
    Arrivals(store, held, lambda _: None, lambda: None, lambda: None)
    pull = Pull(TOPIC, 0, 0, Never(), "connection")
    assert held.hold(pull, HOLD_MS)
    await settle()
    assert pull.runs == 1
    store.close()


async def test_a_pull_is_answered_before_the_senders_when_its_message_is_on_disk(
    waiting: Waiting,
) -> None:
    pull, runs = waiting.hold(), []
    waiting.put("a")
    await settle()
    assert pull.runs == 0
    waiting.store.flush()
    asyncio.get_running_loop().call_soon(lambda: runs.append(pull.runs))  # as the group commit does
    await asyncio.sleep(0)
    assert runs == [1]
    await settle()
    assert pull.runs == 1


async def test_a_pull_is_notified_when_its_message_is_on_disk(waiting: Waiting) -> None:
    pull = waiting.hold()
    waiting.put("a")
    await settle()
    assert pull.runs == 0
    waiting.store.flush()
    await settle()
    assert pull.runs == 1


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_batch_without_tags_notifies_a_pull_by_tags(tmp_path: Path, flush: str) -> None:
    """Its messages may have the tags."""
    store = opened(tmp_path, flush_disk_type=flush)
    held = HeldPulls()
    Arrivals(store, held, lambda _: None, lambda: None, lambda: None)
    pull = Pull(TOPIC, 0, 0, TagMatcher(frozenset({java_hash("a")})), "connection")
    assert held.hold(pull, HOLD_MS)
    put_as_one(store, b"0", b"1", properties={"UNIQ_KEY": "B", "TAGS": "other"})
    store.flush()
    await settle()
    assert pull.runs == 0
    put_as_one(store, b"2", b"3")
    store.flush()
    await settle()
    assert pull.runs == 1
    store.close()


async def test_a_sync_in_another_thread_notifies_as_well(waiting: Waiting) -> None:
    pull = waiting.hold()
    waiting.put("a")
    await asyncio.to_thread(waiting.store.flush)
    await settle()
    assert pull.runs == 1


async def test_an_awaited_message_requests_one_sync_for_its_queue(waiting: Waiting) -> None:
    waiting.put("nobody waits")
    assert waiting.syncs_requested == 0
    for count in (1, 2):
        waiting.hold(waiting.store.next_offset(TOPIC, 0))
        waiting.put("a", "b", "c")
        assert waiting.syncs_requested == count
        waiting.store.flush()
        await settle()


async def test_a_pull_that_is_held_between_write_and_sync_is_notified(waiting: Waiting) -> None:
    waiting.put("a")
    pull = waiting.hold()
    await settle()
    assert pull.runs == 0
    waiting.store.flush()
    await settle()
    assert pull.runs == 1


async def test_a_pull_that_did_not_see_what_was_synced_meanwhile_is_notified(
    waiting: Waiting,
) -> None:
    waiting.put("a")
    waiting.store.flush()  # after the pull has read, before it is held
    pull = waiting.hold()
    await settle()
    assert pull.runs == 1


async def test_a_pull_is_not_notified_of_messages_before_its_offset(waiting: Waiting) -> None:
    waiting.put("a", "b")
    waiting.store.flush()
    pull = waiting.hold(2)
    waiting.store.flush()
    await settle()
    assert pull.runs == 0


async def test_only_a_wanted_message_ends_a_pull(waiting: Waiting) -> None:
    pull = waiting.hold(tag="b")
    for tags in (["a"] * 3, ["a"] * 2000, ["b"]):
        assert pull.runs == 0
        waiting.put(*tags)
        waiting.store.flush()
        await settle()
    assert pull.runs == 1
    assert pull.seen_to >= 2000  # no message is looked at twice


async def test_messages_behind_those_of_a_sync_are_notified_of_with_the_next(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull = waiting.hold(tag="b")
    waiting.put("a")
    refuse_sync = waiting.files.refuse_sync

    def late(self: FaultyFiles) -> None:
        refuse_sync()
        monkeypatch.undo()
        waiting.put("b")

    monkeypatch.setattr(FaultyFiles, "refuse_sync", late)
    waiting.store.flush()
    await settle()
    assert pull.runs == 0
    waiting.store.flush()
    await settle()
    assert pull.runs == 1


async def test_short_polling_waits_for_its_time_only(waiting: Waiting) -> None:
    pull = waiting.hold(is_short_poll=True)
    waiting.put("a")
    waiting.store.flush()
    await settle()
    assert pull.runs == 0


async def test_a_failed_sync_notifies_nobody(waiting: Waiting) -> None:
    pull = waiting.hold()
    waiting.put("a")
    waiting.files.fail_sync = True
    with pytest.raises(StoreUnavailableError):
        waiting.store.flush()
    await settle()
    assert pull.runs == 0


async def test_scheduled_delivery_is_notified_when_the_message_is_on_disk(waiting: Waiting) -> None:
    put(waiting.store, topic=DELAY_TOPIC, queue_id=2, properties={"DELAY": "3"})
    await settle()
    assert waiting.scheduled == []
    waiting.store.flush()
    await settle()
    assert waiting.scheduled == [2]


async def test_with_asynchronous_flush_a_pull_is_notified_at_once(tmp_path: Path) -> None:
    store, held = opened(tmp_path, flush_disk_type="ASYNC_FLUSH"), HeldPulls()
    scheduled: list[int] = []
    Arrivals(store, held, scheduled.append, lambda: None, lambda: None)
    pull = Pull(TOPIC, 0, 0, None, "connection")
    held.hold(pull, HOLD_MS)
    put(store)
    put(store, topic=DELAY_TOPIC, queue_id=2, properties={"DELAY": "3"})
    await settle()
    assert (pull.runs, scheduled) == (1, [2])
    store.close()


# --- readers that wait for other replicas --------------------------------------------------------


class Confirmed(Waiting):
    """The same with a store whose readers wait for other replicas."""

    def __init__(self, root: Path, flush: str) -> None:
        self.flush = flush
        super().__init__(root)

    def open(self, root: Path) -> MessageStore:
        settings = small_settings(root, flush_disk_type=self.flush)
        store = MessageStore(settings, files=self.files, confirms=True)
        store.open()
        return store


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def confirmed(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Confirmed]:
    made = Confirmed(tmp_path, request.param)
    yield made
    made.store.close()


async def test_a_pull_is_notified_when_its_message_is_confirmed(confirmed: Confirmed) -> None:
    pull = confirmed.hold()
    confirmed.put("a")
    put(confirmed.store, topic=DELAY_TOPIC, queue_id=2, properties={"DELAY": "3"})
    confirmed.store.flush()
    await settle()
    assert pull.runs == 0
    confirmed.scheduled.clear()
    confirmed.store.confirm(confirmed.store.written_to)
    await settle()
    assert (pull.runs, confirmed.scheduled) == (1, [2])
    assert confirmed.syncs_requested == (2 if confirmed.flush == "SYNC_FLUSH" else 0)


async def test_without_other_replicas_a_pull_is_notified_as_before(confirmed: Confirmed) -> None:
    confirmed.store.confirm(CONFIRMS_ALL)
    pull = confirmed.hold()
    confirmed.put("a")
    if confirmed.flush == "SYNC_FLUSH":
        await settle()
        assert pull.runs == 0
        confirmed.store.flush()
    await settle()
    assert pull.runs == 1


async def test_a_pull_that_is_held_between_write_and_confirmation_is_notified(
    confirmed: Confirmed,
) -> None:
    confirmed.put("a")
    confirmed.store.flush()
    pull = confirmed.hold()
    await settle()
    assert pull.runs == 0
    confirmed.store.confirm(confirmed.store.written_to)
    await settle()
    assert pull.runs == 1


async def test_what_was_truncated_is_not_waited_for(confirmed: Confirmed) -> None:
    """A replica that has lost its role waited for messages which it then truncates."""
    found: list[tuple[str, int]] = []
    confirmed.arrivals.listeners.append(lambda topic, queue_id: found.append((topic, queue_id)))
    confirmed.put("a", "b")
    confirmed.arrivals.notify_when_readable(TOPIC)
    confirmed.store.truncate_log(0)
    confirmed.store.confirm(0)
    confirmed.arrivals.readable()
    await settle()
    assert found == [(TOPIC, ANY_QUEUE)]
    await settle()
    assert len(found) == 1
