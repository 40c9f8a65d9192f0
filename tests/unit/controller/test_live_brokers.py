"""Which brokers count as alive, by their heartbeats and connections."""

from __future__ import annotations

import msgspec

from cometmq.controller.broker_set import NO_ID, BrokerSet, Heard
from cometmq.controller.live_brokers import LiveBrokers
from cometmq.protocol.headers.namesrv import BrokerHeartbeatRequest

HEARTBEAT = BrokerHeartbeatRequest(
    cluster_name="C", broker_addr="10.0.0.1:10911", broker_name="b", broker_id=1
)


def test_late_heartbeats_over_a_replaced_connection_and_its_end_do_not_count() -> None:
    """After a cut of the network, TCP delivers what it had lost, when the broker is connected anew.

    The broker would count as lost with the end of the old connection.
    """
    live = LiveBrokers(lambda: 0)
    older, newer = object(), object()
    assert live.heartbeat(HEARTBEAT, older)
    assert not live.heartbeat(HEARTBEAT, newer)
    assert not live.heartbeat(HEARTBEAT, older)
    assert live.connection_closed(older) == []
    assert live.is_alive("b", 1)
    assert [broker.id for broker in live.connection_closed(newer)] == [1]
    assert not live.is_alive("b", 1)


def test_an_older_connection_counts_again_when_the_broker_was_lost() -> None:
    live = LiveBrokers(lambda: 0)
    older, newer = object(), object()
    live.heartbeat(HEARTBEAT, older)
    live.heartbeat(HEARTBEAT, newer)
    live.connection_closed(newer)
    assert live.heartbeat(HEARTBEAT, older)
    assert live.is_alive("b", 1)


def test_the_epochs_of_etcd_count_as_heard_and_their_master_knows_them() -> None:
    """A later heartbeat with the same epochs changes nothing; an older state does not either."""
    live = LiveBrokers(lambda: 0)
    known = BrokerSet(
        cluster="C",
        name="b",
        set_id="s",
        master_id=2,
        master_epoch=3,
        in_sync=(1, 2),
        in_sync_epoch=5,
    )
    live.note(known)
    same = msgspec.structs.replace(
        HEARTBEAT, set_id="s", known_master_epoch=3, known_sync_state_set_epoch=5
    )
    live.heartbeat(same, object())
    live.note(msgspec.structs.replace(known, master_id=1, in_sync_epoch=4))
    assert live.heard("b") == {"s": Heard(epochs=(3, 5), by=2)}

    live.note(msgspec.structs.replace(known, master_id=None, master_epoch=4))

    assert live.heard("b") == {"s": Heard(epochs=(4, 5), by=2)}


def test_without_a_master_a_member_knows_the_epochs_of_etcd() -> None:
    live = LiveBrokers(lambda: 0)
    known = BrokerSet(cluster="C", name="b", set_id="s", master_epoch=4)
    live.note(known)
    assert live.heard("b")["s"].by == NO_ID

    live.note(msgspec.structs.replace(known, master_epoch=5, in_sync=(1, 2)))

    assert live.heard("b")["s"].by == 1
