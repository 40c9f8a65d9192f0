from cometmq.broker.clients.queue_locks import LOCK_EXPIRY_MS, QueueLocks
from cometmq.model.queue import MessageQueue
from cometmq.system.clock import ManualClock

ONE, TWO = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)


def test_free_queues_are_granted_and_others_refused() -> None:
    locks = QueueLocks(ManualClock())
    assert locks.lock("g", "a", [ONE]) == [ONE]
    assert locks.lock("g", "b", [ONE, TWO]) == [TWO]
    assert (locks.owner("g", ONE), locks.owner("g", TWO)) == ("a", "b")


def test_a_lock_lives_until_it_was_not_renewed_for_its_whole_life() -> None:
    clock = ManualClock()
    locks = QueueLocks(clock)
    locks.lock("g", "a", [ONE])
    clock.advance(LOCK_EXPIRY_MS)
    assert locks.lock("g", "b", [ONE]) == []
    assert locks.lock("g", "a", [ONE]) == [ONE]
    clock.advance(LOCK_EXPIRY_MS + 1)
    assert locks.owner("g", ONE) is None
    assert locks.lock("g", "b", [ONE]) == [ONE]


def test_only_its_owner_unlocks_a_queue() -> None:
    locks = QueueLocks(ManualClock())
    locks.lock("g", "a", [ONE])
    locks.unlock("g", "b", [ONE, TWO])
    assert locks.owner("g", ONE) == "a"
    locks.unlock("g", "a", [ONE])
    assert locks.owner("g", ONE) is None


def test_a_group_holds_locks_until_they_expire() -> None:
    clock = ManualClock()
    locks = QueueLocks(clock)
    assert not locks.holds_any("g")
    locks.lock("g", "a", [ONE])
    assert locks.holds_any("g")
    assert not locks.holds_any("other")
    clock.advance(LOCK_EXPIRY_MS + 1)
    assert not locks.holds_any("g")


def test_sweeping_forgets_what_has_expired() -> None:
    clock = ManualClock()
    locks = QueueLocks(clock)
    locks.lock("g", "a", [ONE])
    clock.advance(LOCK_EXPIRY_MS)
    locks.lock("h", "a", [ONE, TWO])
    clock.advance(1)
    assert locks.sweep() == 1
    assert locks.owner("h", TWO) == "a"


def test_the_number_of_locks_is_limited_until_others_are_free() -> None:
    clock = ManualClock()
    locks = QueueLocks(clock, locks_max=2)
    three = MessageQueue("T", "b", 2)
    assert locks.lock("g", "a", [ONE, TWO, three]) == [ONE, TWO]
    assert locks.lock("h", "a", [three]) == []
    assert locks.lock("g", "a", [ONE]) == [ONE], "a renewal needs no room"
    locks.unlock("g", "a", [ONE])
    assert locks.lock("h", "a", [three]) == [three]
    clock.advance(LOCK_EXPIRY_MS + 1)
    assert locks.sweep() == 2
    assert locks.lock("h", "a", [ONE, TWO, three]) == [ONE, TWO]
