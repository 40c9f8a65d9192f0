"""Which brokers count as alive, by their heartbeats and connections."""

from __future__ import annotations

from cometmq.controller.live_brokers import LiveBrokers
from cometmq.protocol.headers import BrokerHeartbeatRequest

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
