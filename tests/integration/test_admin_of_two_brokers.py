"""Commands for administrators on two brokers of which one fails or differs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from cometmq.client import AdminClient, RemotingError, ResponseError
from cometmq.client.admin import TrackKind
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies.client import ConsumerConnection
from cometmq.protocol.bodies.common import Connection, GroupList
from cometmq.protocol.bodies.group import ConsumeStats, OffsetWrapper
from cometmq.protocol.bodies.heartbeat import ConsumeType, MessageModel
from cometmq.protocol.bodies.route import BrokerData, ClusterInfo
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.offset import QueryConsumerOffsetResponse
from cometmq.remoting import Request, Response
from support.brokers.scripted import ScriptedBroker, ScriptedCluster, ScriptedNameServer
from support.clients.consumer_inputs import stored_in

Answer = Callable[[Request], Response | None]

NOT_ONLINE = Response(ResponseCode.CONSUMER_NOT_ONLINE, "the consumer group not online")
BROKEN = Response(ResponseCode.SYSTEM_ERROR, "the disk is on fire")
MEMBERS = Response(
    body=ConsumerConnection(
        connection_set=[Connection(client_id="one")],
        consume_type=ConsumeType.CONSUME_PASSIVELY,
        message_model=MessageModel.CLUSTERING,
    ).encode()
)


class Broker(ScriptedBroker):
    """A broker that notes what it is asked, and answers as it is told."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.asked: list[int] = []

    def on(self, code: int, response: Response | None) -> None:
        """Answer requests of this code so from now on; None stays silent."""

        def answer(request: Request) -> Response | None:
            self.asked.append(request.code)
            return response

        self.handlers[code] = answer


class NameServer(ScriptedNameServer):
    """A name server that knows of the cluster, too."""

    def __init__(self) -> None:
        super().__init__()
        self.info = ClusterInfo()
        self.deleted = 0
        self.answer = Response()
        self.handlers[RequestCode.GET_BROKER_CLUSTER_INFO] = self._cluster
        self.handlers[RequestCode.DELETE_TOPIC_IN_NAMESRV] = self._delete

    def _cluster(self, request: Request) -> Response:
        return Response(body=self.info.encode())

    def _delete(self, request: Request) -> Response:
        self.deleted += 1
        return self.answer


@pytest.fixture
async def cluster() -> AsyncIterator[ScriptedCluster]:
    """Brokers a and b, and a name server that knows both."""
    names = NameServer()
    async with ScriptedCluster([Broker("a"), Broker("b")], names) as running:
        names.info = ClusterInfo(
            broker_addr_table={
                broker.name: BrokerData(
                    cluster="c", broker_name=broker.name, broker_addrs={0: broker.address}
                )
                for broker in running.brokers
            }
        )
        yield running


@pytest.fixture
def brokers(cluster: ScriptedCluster) -> tuple[Broker, Broker]:
    """Both brokers."""
    first, second = cluster.brokers
    assert isinstance(first, Broker)
    assert isinstance(second, Broker)
    return first, second


@pytest.fixture
async def admin(cluster: ScriptedCluster) -> AsyncIterator[AdminClient]:
    """A client to administer with."""
    async with AdminClient(cluster.address, call_timeout_ms=30_000) as running:
        yield running


def message(broker: str) -> StoredMessage:
    """A message at offset 5 of a broker's queue."""
    return stored_in(MessageQueue("t", broker, 0), 5)


async def test_a_topic_is_deleted_everywhere_even_when_a_broker_refuses(
    admin: AdminClient, cluster: ScriptedCluster, brokers: tuple[Broker, Broker]
) -> None:
    brokers[0].on(RequestCode.DELETE_TOPIC_IN_BROKER, BROKEN)
    brokers[1].on(RequestCode.DELETE_TOPIC_IN_BROKER, Response())

    with pytest.raises(ResponseError, match="on fire"):
        await admin.delete_topic("t")

    assert brokers[1].asked == [RequestCode.DELETE_TOPIC_IN_BROKER]
    assert isinstance(cluster.name_server, NameServer)
    assert cluster.name_server.deleted == 1


async def test_a_topic_is_deleted_at_every_name_server_even_when_one_refuses(
    cluster: ScriptedCluster, brokers: tuple[Broker, Broker]
) -> None:
    """Both refuse, since the client calls them in any order."""
    for broker in brokers:
        broker.on(RequestCode.DELETE_TOPIC_IN_BROKER, Response())
    first, second = cluster.name_server, NameServer()
    assert isinstance(first, NameServer)
    second.info = first.info
    first.answer = second.answer = BROKEN
    await second.start()
    try:
        async with AdminClient([first.address, second.address]) as admin:
            with pytest.raises(ResponseError, match="on fire"):
                await admin.delete_topic("t")
    finally:
        await second.stop()

    assert (first.deleted, second.deleted) == (1, 1)


async def test_a_broker_that_knows_a_group_answers_for_one_that_does_not(
    admin: AdminClient, brokers: tuple[Broker, Broker]
) -> None:
    brokers[0].on(RequestCode.GET_CONSUMER_CONNECTION_LIST, NOT_ONLINE)
    brokers[1].on(RequestCode.GET_CONSUMER_CONNECTION_LIST, MEMBERS)

    found = await admin.consumer_connections("g")

    assert [member.client_id for member in found.connection_set] == ["one"]


@pytest.mark.parametrize("broken_first", [True, False])
async def test_a_real_failure_is_told_rather_than_that_nobody_is_online(
    admin: AdminClient, brokers: tuple[Broker, Broker], broken_first: bool
) -> None:
    answers = [BROKEN, NOT_ONLINE] if broken_first else [NOT_ONLINE, BROKEN]
    for broker, answer in zip(brokers, answers, strict=True):
        broker.on(RequestCode.GET_CONSUMER_CONNECTION_LIST, answer)

    with pytest.raises(ResponseError, match="on fire"):
        await admin.consumer_connections("g")


async def test_a_silent_broker_fails_the_question_after_its_time(
    cluster: ScriptedCluster, brokers: tuple[Broker, Broker]
) -> None:
    for broker in brokers:
        broker.on(RequestCode.GET_CONSUMER_CONNECTION_LIST, None)

    async with AdminClient(cluster.address, call_timeout_ms=300) as admin:
        with pytest.raises(RemotingError):
            await admin.consumer_connections("g")


async def test_offsets_of_all_brokers_are_put_together(
    admin: AdminClient, brokers: tuple[Broker, Broker]
) -> None:
    for broker in brokers:
        table = {MessageQueue("t", broker.name, 0): OffsetWrapper(broker_offset=9)}
        answer = Response(body=ConsumeStats(offset_table=table).encode())
        broker.on(RequestCode.GET_CONSUME_STATS, answer)

    assert sorted(queue.broker_name for queue in await admin.consume_stats("g")) == ["a", "b"]


@pytest.mark.parametrize(
    ("connections", "committed", "kind"),
    [
        (MEMBERS, 6, TrackKind.CONSUMED),
        (MEMBERS, 5, TrackKind.NOT_CONSUME_YET),
        (NOT_ONLINE, 6, TrackKind.NOT_ONLINE),
        (BROKEN, 6, TrackKind.UNKNOWN),
    ],
)
async def test_a_message_is_compared_with_the_offset_of_its_own_broker(
    admin: AdminClient,
    brokers: tuple[Broker, Broker],
    connections: Response,
    committed: int,
    kind: TrackKind,
) -> None:
    """The other broker has a queue of the same number, where the group stands at 0."""
    for broker, offset in zip(brokers, (0, committed), strict=True):
        broker.on(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, _groups("g", "t"))
        broker.on(RequestCode.GET_CONSUMER_CONNECTION_LIST, connections)
        header = QueryConsumerOffsetResponse(offset=QueueOffset(offset))
        broker.on(RequestCode.QUERY_CONSUMER_OFFSET, Response(header=header))

    (track,) = await admin.track(message("b"))

    assert (track.group, track.kind) == ("g", kind)
    assert ("on fire" in track.why) == (kind is TrackKind.UNKNOWN)


async def test_a_group_whose_offset_nobody_tells_is_not_guessed_at(
    admin: AdminClient, brokers: tuple[Broker, Broker]
) -> None:
    for broker in brokers:
        broker.on(RequestCode.GET_CONSUMER_CONNECTION_LIST, MEMBERS)
        broker.on(RequestCode.QUERY_CONSUMER_OFFSET, BROKEN)

    (track,) = await admin.track(message("a"), ["g"])

    assert (track.kind, track.committed) == (TrackKind.UNKNOWN, None)


def _groups(*names: str) -> Response:
    return Response(body=GroupList(group_list=list(names)).encode())
