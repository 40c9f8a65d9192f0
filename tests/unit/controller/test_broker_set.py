"""The rules of a broker set: ids, in-sync sets and elections."""

from __future__ import annotations

import msgspec
import pytest

from cometmq.controller.broker_log_states import State as LogState
from cometmq.controller.broker_set import (
    BrokerSet,
    Candidate,
    Heard,
    InSyncRequest,
    Names,
    Replica,
    alter_in_sync,
    apply_id,
    clean,
    elect,
    register,
)
from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import ResponseCode

VERIFIED, UNVERIFIED, REPLACED = LogState


def three(**changes: object) -> BrokerSet:
    """Brokers 1, 2 and 3; 1 is master of epoch 4, 1 and 2 are in sync."""
    known = BrokerSet(
        cluster="C",
        name="b",
        last_id=3,
        replicas={id_: Replica(f"a{id_}:1", f"a{id_}:1;7") for id_ in (1, 2, 3)},
        master_id=1,
        master_epoch=4,
        in_sync=(1, 2),
        in_sync_epoch=6,
    )
    return msgspec.structs.replace(known, **changes)


ALL = {id_: Candidate() for id_ in (1, 2, 3)}


def living(*ids: int) -> dict[int, Candidate]:
    return {id_: ALL[id_] for id_ in ids}


def test_the_first_broker_of_a_set_gets_id_1_only() -> None:
    with pytest.raises(ResponseError, match="hasn't been registered") as refusal:
        apply_id(None, "C", "b", 2, "a:1;5")

    assert refusal.value.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID
    known = apply_id(None, "C", "b", 1, "a:1;5")
    assert (known.last_id, known.replicas) == (1, {1: Replica("a:1", "a:1;5")})


def test_an_id_is_given_again_only_for_the_same_check_code() -> None:
    assert apply_id(three(), "C", "b", 2, "a2:1;7") == three()
    for cluster, id_, code in (("C", 2, "x:1;7"), ("D", 4, "x:1;7"), ("C", 0, "x"), ("C", -1, "x")):
        with pytest.raises(ResponseError) as refusal:
            apply_id(three(), cluster, "b", id_, code)
        assert refusal.value.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID


def test_the_id_of_a_removed_broker_is_not_the_next_one() -> None:
    left = clean(three(), "b", {3}, living_too=False, is_alive=lambda _: False)

    assert left is not None
    assert left.last_id == 3


def test_a_new_address_is_recorded() -> None:
    assert register(three(), "b", 2, "new:1").replicas[2] == Replica("new:1", "a2:1;7")
    for known, id_ in ((None, 1), (three(), 9)):
        with pytest.raises(ResponseError) as refusal:
            register(known, "b", id_, "new:1")
        assert refusal.value.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED


@pytest.mark.parametrize(
    ("known", "new", "master", "epoch", "set_epoch", "code"),
    [
        (None, [1], 1, 4, 6, ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
        (three(), [2, 1], 3, 9, 9, ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
        (three(), [1], 2, 9, 9, ResponseCode.CONTROLLER_INVALID_MASTER),
        (three(master_id=None), [1], 1, 9, 9, ResponseCode.CONTROLLER_INVALID_MASTER),
        (three(), [1], 1, 3, 9, ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH),
        (three(), [1], 1, 4, 5, ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH),
        (three(), [1, 9], 1, 4, 6, ResponseCode.CONTROLLER_INVALID_REPLICAS),
        (three(), [1, 2, 3], 1, 4, 6, ResponseCode.CONTROLLER_BROKER_NOT_ALIVE),
        (three(), [2], 1, 4, 6, ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
        (three(), [], 1, 4, 6, ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
    ],
)
def test_an_in_sync_set_is_refused(
    known: BrokerSet | None, new: list[int], master: int, epoch: int, set_epoch: int, code: int
) -> None:
    with pytest.raises(ResponseError) as refusal:
        alter_in_sync(
            known,
            InSyncRequest(
                wanted=new, master_id=master, master_epoch=epoch, in_sync_epoch=set_epoch
            ),
            is_alive=lambda id_: id_ != 3,
        )
    assert refusal.value.code == code


def test_an_accepted_in_sync_set_has_the_next_epoch() -> None:
    after = alter_in_sync(
        three(),
        InSyncRequest(wanted=[3, 1], master_id=1, master_epoch=4, in_sync_epoch=6),
        is_alive=lambda _: True,
    )

    assert after == three(in_sync=(1, 3), in_sync_epoch=7)


def test_a_set_in_force_is_renewed_if_the_master_asks_for_that() -> None:
    """Also with a dead member: an earlier request of the master must not take effect any more."""

    def alter(new: list[int], **state: int) -> BrokerSet:
        sender = {"master_id": 1, "master_epoch": 4, "in_sync_epoch": 6} | state
        return alter_in_sync(
            three(), InSyncRequest(wanted=new, renews=True, **sender), is_alive=lambda id_: id_ == 1
        )

    assert alter([2, 1]) == three(in_sync_epoch=7)
    assert alter([1]) == three(in_sync=(1,), in_sync_epoch=7)
    for new, state, code in (
        ([1, 2], {"master_id": 2}, ResponseCode.CONTROLLER_INVALID_MASTER),
        ([1, 2], {"master_epoch": 3}, ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH),
        ([1, 2], {"in_sync_epoch": 5}, ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH),
        ([1, 3], {}, ResponseCode.CONTROLLER_BROKER_NOT_ALIVE),
    ):
        with pytest.raises(ResponseError) as refusal:
            alter(new, **state)
        assert refusal.value.code == code


def test_the_first_master_is_the_broker_that_asks() -> None:
    new = three(master_id=None, master_epoch=0, in_sync=(), in_sync_epoch=0)

    election = elect(new, {}, asker=2)

    assert election.code == ResponseCode.SUCCESS
    assert election.after == three(
        master_id=2, master_epoch=1, in_sync=(2,), in_sync_epoch=1, elected_epoch=1
    )
    for asker in (-1, 9):
        election = elect(new, ALL, asker=asker, unclean=True)
        assert (election.code, election.after) == (ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, new)


def test_a_living_master_stays() -> None:
    for asker in (-1, 1, 2):
        election = elect(three(), ALL, asker=asker)
        assert (election.code, election.after) == (2011, three())


def test_only_a_member_of_the_in_sync_set_is_elected() -> None:
    ahead = living(2) | {3: Candidate(epoch=9, max_offset=9, priority=0)}

    assert elect(three(), ahead).after == three(
        master_id=2,
        master_epoch=5,
        in_sync=(2,),
        in_sync_epoch=7,
        elected_epoch=5,
        in_sync_before=(1, 2),
    )


def test_nobody_is_elected_if_all_members_are_lost() -> None:
    deposed = three(master_id=None, master_epoch=5)

    assert (elect(three(), living(3)).code, elect(three(), living(3)).after) == (2004, deposed)
    assert elect(deposed, living(3)).after == deposed, "a second try changes nothing"
    assert elect(deposed, living(3), asker=3).code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    assert elect(deposed, living(1), asker=1).after == three(
        master_epoch=6, in_sync=(1,), in_sync_epoch=7, elected_epoch=6, in_sync_before=(1, 2)
    )


def test_an_unclean_election_takes_any_living_broker_only_if_no_member_lives() -> None:
    assert elect(three(), living(3), unclean=True).after.master_id == 3
    assert elect(three(), living(2, 3), unclean=True).after.master_id == 2


def test_a_designated_broker_is_elected_over_a_living_master() -> None:
    assert elect(three(), ALL, asker=2, designated=True).after.master_id == 2
    assert elect(three(), ALL, asker=1, designated=True).code == 2011
    for asker in (3, 9):
        election = elect(three(), ALL, asker=asker, designated=True)
        assert (election.code, election.after) == (2012, three())


@pytest.mark.parametrize(
    ("second", "third", "elected"),
    [
        (Candidate(2, 100, 5), Candidate(3, 50, 9), 3),
        (Candidate(3, 100, 9), Candidate(3, 50, 5), 2),
        (Candidate(3, 100, 9), Candidate(3, 100, 5), 3),
        (Candidate(3, 100, 5), Candidate(3, 100, 5), 2),
    ],
)
def test_the_best_candidate_has_epoch_offset_and_priority(
    second: Candidate, third: Candidate, elected: int
) -> None:
    election = elect(three(in_sync=(1, 2, 3)), {2: second, 3: third})

    assert election.after.master_id == elected


def test_cleaning_refuses_living_brokers_and_sets_with_a_master() -> None:
    for known, ids in ((None, {1}), (three(), {1}), (three(), None)):
        with pytest.raises(ResponseError) as refusal:
            clean(known, "b", ids, living_too=False, is_alive=lambda id_: id_ == 1)
        assert refusal.value.code == ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA


def test_cleaning_a_member_fences_the_view_of_the_master() -> None:
    after = clean(three(), "b", {2}, living_too=False, is_alive=lambda _: False)
    assert after is not None
    assert (after.in_sync, after.in_sync_epoch, after.master_id) == ((1,), 7, 1)

    after = clean(three(), "b", {1}, living_too=False, is_alive=lambda _: False)
    assert after is not None
    assert (after.in_sync, after.master_id, after.master_epoch) == ((2,), None, 5)

    assert clean(three(), "b", None, living_too=True, is_alive=lambda _: True) is None


# --- sets, stores and processes -------------------------------------------------------------------


def named(**states: LogState) -> BrokerSet:
    """The same set with names: process ``pN`` of store ``sN`` holds the id N."""
    replicas = {
        id_: Replica(
            f"a{id_}:1", f"a{id_}:1;7", f"s{id_}", f"p{id_}", states.get(f"r{id_}", VERIFIED)
        )  # type: ignore[arg-type]
        for id_ in (1, 2, 3)
    }
    return three(set_id="S", replicas=replicas, master_incarnation="p1", in_sync=(1, 2, 3))


def restart(id_: int, *, clean: bool = True, **changes: object) -> Names:
    names = Names(f"s{id_}", f"q{id_}", (f"p{id_}",), clean)
    return msgspec.structs.replace(names, **changes)


def registered(
    before: BrokerSet, id_: int, names: Names | None, *, address: str = "", alive: bool = False
) -> Replica:
    after = register(
        before,
        "b",
        id_,
        address or f"a{id_}:1",
        names=names,
        new_set_id="N",
        is_alive=lambda _known, _id: alive,
    )
    return after.replicas[id_]


@pytest.mark.parametrize(
    ("names", "address", "alive", "state"),
    [
        (restart(2), "", True, VERIFIED),
        (restart(2), "new:1", False, VERIFIED),
        (restart(2), "new:1", True, None),
        (restart(2, clean=False), "", True, UNVERIFIED),
        (restart(2, earlier=("p0",)), "", False, REPLACED),
        (restart(2, earlier=("p0",)), "", True, None),
        (restart(2, earlier=("p3", "p2")), "", True, VERIFIED),
        (restart(2, store_id="copy"), "", False, REPLACED),
        (restart(2, store_id="copy"), "", True, None),
        (None, "new:1", False, VERIFIED),
        (None, "new:1", True, None),
    ],
)
def test_an_id_has_one_living_holder(
    names: Names | None, address: str, alive: bool, state: LogState | None
) -> None:
    if state is not None:
        found = registered(named(), 2, names, address=address, alive=alive)
        assert (found.log_state, found.address) == (state, address or "a2:1")
        assert found.incarnation == ("" if names is None else "q2")
        return
    with pytest.raises(ResponseError, match="another process with the broker id 2") as refusal:
        registered(named(), 2, names, address=address, alive=alive)
    assert refusal.value.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID


@pytest.mark.parametrize(
    ("state", "clean", "after"),
    [
        (UNVERIFIED, True, UNVERIFIED),
        (UNVERIFIED, False, UNVERIFIED),
        (REPLACED, True, REPLACED),
    ],
)
def test_a_log_that_is_not_verified_stays_so_over_a_restart(
    state: LogState, clean: bool, after: LogState
) -> None:
    assert registered(named(r2=state), 2, restart(2, clean=clean)).log_state == after


def test_the_same_process_registers_again_with_another_address() -> None:
    names = Names("s2", "p2", (), True)
    found = registered(named(r2=UNVERIFIED), 2, names, address="new:1", alive=True)
    assert (found.address, found.log_state) == ("new:1", UNVERIFIED)


def test_an_older_set_gets_an_id_with_the_first_registration_that_knows_such() -> None:
    assert register(three(), "b", 2, "a2:1") == three()
    after = register(three(), "b", 2, "a2:1", names=restart(2), new_set_id="N")
    assert (after.set_id, after.replicas[2].log_state) == ("N", VERIFIED)
    after = register(three(), "b", 2, "a2:1", names=restart(2), set_id="S", new_set_id="N")
    assert after.set_id == "S", "an earlier release of the controller has dropped it"


def test_a_broker_of_another_set_is_refused() -> None:
    with pytest.raises(ResponseError, match="met set T, expected S"):
        register(named(), "b", 2, "a2:1", names=restart(2), set_id="T")


def test_another_store_does_not_get_an_id_that_is_given() -> None:
    before = apply_id(None, "C", "b", 1, "a:1;5", store_id="s1", new_set_id="N")
    assert before.set_id == "N"
    assert apply_id(before, "C", "b", 1, "a:1;5", store_id="s1") == before
    with pytest.raises(ResponseError, match="Fail to apply"):
        apply_id(before, "C", "b", 1, "a:1;5", store_id="copy")


def test_what_earlier_releases_have_stored_is_read_and_what_they_ignore_is_only_new() -> None:
    old = {"cluster": "C", "name": "b", "replicas": {"1": {"address": "a:1", "check_code": "c"}}}
    found = msgspec.json.decode(msgspec.json.encode(old), type=BrokerSet)
    assert (found.set_id, found.replicas[1]) == ("", Replica("a:1", "c"))
    known = msgspec.to_builtins(three())
    new = {"set_id", "master_incarnation", "elected_epoch", "in_sync_before", "was_compared"}
    assert new == known.keys() - {
        *("cluster", "name", "last_id", "replicas", "master_id", "master_epoch"),
        *("in_sync", "in_sync_epoch"),
    }


def altered(before: BrokerSet, wanted: list[int], **changes: object) -> BrokerSet:
    sender = {"master_id": 1, "master_epoch": 4, "in_sync_epoch": 6, "incarnation": "p1"}
    heard = changes.pop("heard", Heard())
    request = InSyncRequest(wanted=wanted, **(sender | changes))  # type: ignore[arg-type]
    return alter_in_sync(before, request, is_alive=lambda _: True, heard=heard)  # type: ignore[arg-type]


def test_the_master_verifies_what_it_has_compared() -> None:
    before = named(r2=UNVERIFIED, r3=REPLACED)
    without = msgspec.structs.replace(before, in_sync=(1,))
    after = altered(without, [1, 2, 3], compared={2: "p2"})
    assert [one.log_state for one in after.replicas.values()] == [VERIFIED] * 3
    after = altered(before, [1, 2, 3], compared={3: "p3"}, renews=True)
    assert [after.replicas[id_].log_state for id_ in (2, 3)] == [UNVERIFIED, VERIFIED]
    for wrong in ({"compared": {2: "p0"}}, {"incarnation": "p0"}):
        with pytest.raises(ResponseError, match="another process"):
            altered(without, [1, 2], **wrong)


def test_the_next_number_is_larger_than_the_one_that_the_master_knows() -> None:
    assert altered(named(), [1, 2, 3], renews=True, known_epoch=9).in_sync_epoch == 10
    assert altered(named(), [1], known_epoch=5).in_sync_epoch == 7


def ends(**offsets: int) -> dict[int, Candidate]:
    return {int(name[1:]): Candidate(4, offset) for name, offset in offsets.items()}


@pytest.mark.parametrize(
    ("before", "living", "elected"),
    [
        (named(r2=UNVERIFIED), ends(r2=9, r3=5), 3),
        (named(r2=UNVERIFIED, r3=UNVERIFIED), ends(r2=9, r3=5), None),
        (named(r1=UNVERIFIED, r2=UNVERIFIED, r3=UNVERIFIED), ends(r1=7, r2=9, r3=5), 2),
        (named(r1=UNVERIFIED, r2=REPLACED, r3=UNVERIFIED), ends(r1=7, r2=9, r3=5), None),
        (named(r1=UNVERIFIED, r2=REPLACED, r3=VERIFIED), ends(r1=7, r2=9, r3=5), 3),
    ],
)
def test_only_verified_members_are_elected_or_the_largest_log_of_all(
    before: BrokerSet, living: dict[int, Candidate], elected: int | None
) -> None:
    before = msgspec.structs.replace(before, master_incarnation="gone")
    election = elect(before, living)
    assert election.after.master_id == elected
    assert bool(election.waits) == (elected is None)
    if elected is not None:
        assert election.after.master_incarnation == f"p{elected}"
        assert election.after.replicas[elected].log_state == VERIFIED
    unclean = elect(before, living, unclean=True)
    assert unclean.after.master_id is not None


def test_the_process_that_was_elected_stays_and_another_one_with_its_id_does_not_go_on() -> None:
    assert elect(named(), ends(r1=1, r2=1, r3=1)).code == 2011
    restarted = register(named(), "b", 1, "a1:1", names=restart(1))
    election = elect(restarted, ends(r1=9, r2=1, r3=1))
    assert election.code == ResponseCode.SUCCESS
    assert (election.after.master_id, election.after.master_epoch) == (1, 5)
    assert election.after.master_incarnation == "q1"


def test_a_member_that_lacks_what_was_confirmed_is_not_elected() -> None:
    lacks = {2: Candidate(4, 5, needed_to=6), 3: Candidate(4, 6, needed_to=6)}
    assert elect(named(), lacks).after.master_id == 3
    all_unverified = named(r1=UNVERIFIED, r2=UNVERIFIED, r3=UNVERIFIED)
    before = msgspec.structs.replace(all_unverified, master_incarnation="gone")
    election = elect(before, ends(r1=7, r2=9, r3=5), heard=Heard(confirmed_to=10))
    assert election.after.master_id is None
    assert "the logs of the members end at 9, but 10 was confirmed" in election.waits
    assert elect(before, ends(r1=7, r2=9, r3=5), heard=Heard(confirmed_to=9)).after.master_id == 2


def elected_then_restarted() -> BrokerSet:
    """Broker 1 is lost and 2 elected, in epoch 5; then all are killed and register again."""
    after = elect(named(), ends(r2=9, r3=9)).after
    assert (after.master_id, after.elected_epoch, after.in_sync_before) == (2, 5, (1, 2, 3))
    for id_ in after.replicas:
        after = register(after, "b", id_, f"a{id_}:1", names=restart(id_, clean=False))
    return after


@pytest.mark.parametrize(
    ("living", "elected"),
    [
        # Epoch 4: broker 2 was lost as well before it led, and others may have more than it.
        ({1: (4, 9), 2: (4, 5), 3: (4, 7)}, 1),
        ({1: (4, 9), 2: (4, 5)}, None),
        ({2: (4, 5), 3: (4, 7)}, None),
        # Epoch 5: it led, alone, and the others may lack what it acknowledged.
        ({2: (5, 5), 3: (4, 7)}, 2),
        ({1: (4, 9), 3: (4, 7)}, None),
    ],
)
def test_an_elected_broker_that_never_led_is_compared_with_the_members_before(
    living: dict[int, tuple[int, int]], elected: int | None
) -> None:
    election = elect(
        elected_then_restarted(), {id_: Candidate(*end) for id_, end in living.items()}
    )
    assert election.after.master_id == elected, election
    assert bool(election.waits) == (elected is None)


def test_the_members_before_count_until_the_elected_broker_has_changed_its_set() -> None:
    once = elected_then_restarted()
    twice = elect(once, {id_: Candidate(4, 9) for id_ in (1, 2, 3)}).after
    assert (twice.in_sync, twice.elected_epoch, twice.in_sync_before) == ((1,), 6, (1, 2, 3))
    sender = {"master_id": 1, "master_epoch": 6, "in_sync_epoch": 8, "incarnation": "q1"}
    assert altered(twice, [1], renews=True, **sender).in_sync_before == (1, 2, 3)
    assert altered(twice, [1, 3], **sender).in_sync_before == ()
    left = clean(twice, "b", {2}, living_too=True, is_alive=lambda _: False)
    assert left is not None
    assert left.in_sync_before == (1, 3)


def elected_and_lost(**states: LogState) -> BrokerSet:
    """Broker 1 is lost and 2 elected, in epoch 5; that process is lost as well."""
    after = elect(named(**states), ends(r2=9, r3=9)).after
    return elect(after, ends(r3=9)).after


@pytest.mark.parametrize(
    ("returned", "end", "others", "elected"),
    [
        # It never led, so a verified member has all that was acknowledged; 1 may be lost for ever.
        (restart(2, clean=False), (4, 5), {3: (4, 7)}, 3),
        (restart(2), (4, 9), {3: (4, 7)}, 2),
        (restart(2, clean=False), (4, 5), {1: (4, 6)}, 1),
        (restart(2, clean=False), (4, 5), {}, None),
        # It led, alone.
        (restart(2, clean=False), (5, 5), {3: (4, 7)}, 2),
        # The process that was elected may lead, whatever its last heartbeat says.
        (None, (4, 5), {3: (4, 7)}, 2),
        # Another store says nothing of what the elected one has.
        (restart(2, store_id="copy"), (4, 5), {3: (4, 7)}, None),
    ],
)
def test_a_verified_member_is_elected_again_if_the_elected_broker_never_led(
    returned: Names | None,
    end: tuple[int, int],
    others: dict[int, tuple[int, int]],
    elected: int | None,
) -> None:
    before = elected_and_lost()
    if returned is not None:
        before = register(before, "b", 2, "a2:1", names=returned)
    living = {2: Candidate(*end)} | {id_: Candidate(*each) for id_, each in others.items()}
    election = elect(before, living)
    assert election.after.master_id == elected, election


def test_members_before_count_also_if_a_broker_that_never_led_is_elected_again() -> None:
    again = elect(elected_and_lost(), ends(r2=9, r3=9)).after
    assert (again.master_id, again.master_epoch) == (2, 7)
    lost = register(again, "b", 2, "a2:1", names=restart(2, clean=False))
    assert elect(lost, ends(r2=5, r3=9)).after.master_id == 3
    # In epoch 5 it led alone, though not in epoch 7.
    led = {2: Candidate(5, 5), 3: Candidate(4, 9)}
    assert elect(lost, led).after.master_id == 2


def test_brokers_that_were_compared_without_being_members_are_not_elected_unseen() -> None:
    """Etcd was restored: 2 has the most of all; 3 is verified, but was no member."""
    before = msgspec.structs.replace(named(), in_sync=(1, 2))
    heard = Heard((6, 8), 2)
    after = elect(before, ends(r1=7, r2=9, r3=5), heard=heard).after
    assert (after.master_id, after.master_epoch) == (2, 7)
    after = register(after, "b", 2, "a2:1", names=restart(2, clean=False))
    assert elect(after, ends(r2=8, r3=5)).after.master_id is None
    assert elect(after, ends(r1=7, r2=8, r3=5)).after.master_id == 2


def test_without_the_elected_broker_nobody_is_elected_in_its_place() -> None:
    """It may have led alone; an operator who removes it decides what is lost."""
    before = elected_and_lost()
    left = clean(before, "b", {2}, living_too=False, is_alive=lambda _: False)
    assert left is not None
    assert (left.in_sync, left.in_sync_before) == ((), ())
    assert elect(left, ends(r1=9, r3=9)).after.master_id is None
    assert elect(left, ends(r1=9, r3=9), unclean=True).after.master_id == 1


@pytest.mark.parametrize(
    ("heard", "living", "outcome"),
    [
        (Heard((4, 6), 1), ends(r2=5, r3=9), (3, 5, 7)),
        (Heard((4, 8), 1), ends(r2=5, r3=9), None),
        (Heard((4, 8), 1), ends(r1=7, r2=5, r3=9), (1, 4, 6)),
        (Heard((6, 8), 2), ends(r1=7, r2=9, r3=9), (2, 7, 9)),
        (Heard((6, 8), 9), ends(r1=7, r2=9, r3=9), None),
        (Heard((6, 8), 2), ends(r1=7, r2=9), None),
    ],
)
def test_a_controller_that_knows_less_than_a_broker_compares_all_brokers(
    heard: Heard, living: dict[int, Candidate], outcome: tuple[int, int, int] | None
) -> None:
    """In the epoch of the living master it waits: that one renews the in-sync set."""
    election = elect(msgspec.structs.replace(named(), in_sync=(1, 3)), living, heard=heard)
    after = election.after
    found = None if after.master_id is None else (after.master_id, *after.epochs)
    assert found == outcome, election
