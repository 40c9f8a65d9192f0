"""The rules of a broker set: ids, in-sync sets and elections."""

from __future__ import annotations

import msgspec
import pytest

from cometmq.controller.broker_set import (
    BrokerSet,
    Candidate,
    Replica,
    alter_in_sync,
    apply_id,
    clean,
    elect,
    register,
)
from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import ResponseCode


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
            new,
            master_id=master,
            master_epoch=epoch,
            in_sync_epoch=set_epoch,
            is_alive=lambda id_: id_ != 3,
        )
    assert refusal.value.code == code


def test_an_accepted_in_sync_set_has_the_next_epoch() -> None:
    after = alter_in_sync(
        three(), [3, 1], master_id=1, master_epoch=4, in_sync_epoch=6, is_alive=lambda _: True
    )

    assert after == three(in_sync=(1, 3), in_sync_epoch=7)


def test_a_set_in_force_is_renewed_if_the_master_asks_for_that() -> None:
    """Also with a dead member: an earlier request of the master must not take effect any more."""

    def alter(new: list[int], **state: int) -> BrokerSet:
        sender = {"master_id": 1, "master_epoch": 4, "in_sync_epoch": 6} | state
        return alter_in_sync(three(), new, **sender, is_alive=lambda id_: id_ == 1, renews=True)

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
    assert election.after == three(master_id=2, master_epoch=1, in_sync=(2,), in_sync_epoch=1)
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
        master_id=2, master_epoch=5, in_sync=(2,), in_sync_epoch=7
    )


def test_nobody_is_elected_if_all_members_are_lost() -> None:
    deposed = three(master_id=None, master_epoch=5)

    assert (elect(three(), living(3)).code, elect(three(), living(3)).after) == (2004, deposed)
    assert elect(deposed, living(3)).after == deposed, "a second try changes nothing"
    assert elect(deposed, living(3), asker=3).code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    assert elect(deposed, living(1), asker=1).after == three(
        master_epoch=6, in_sync=(1,), in_sync_epoch=7
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
