"""The commands about groups: the round trips of their requests."""

from __future__ import annotations

import pytest

from cometmq.cli.admin.commands import Call
from cometmq.cli.admin.group import list_groups
from cometmq.cli.admin.output import Output
from cometmq.client import AdminClient, ClientInstance
from cometmq.protocol.bodies.group import ConsumeStats
from cometmq.protocol.bodies.route import BrokerData, ClusterInfo
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.remoting import Request, Response
from support.brokers.scripted import ScriptedBroker, ScriptedCluster

GROUPS = 12


@pytest.mark.usefixtures("virtual_time")
async def test_the_groups_of_a_list_are_read_side_by_side() -> None:
    broker = ScriptedBroker()
    waiting: dict[int, list[Request]] = {}

    def wait_for_all(request: Request) -> None:
        """Respond when this request has come for each group; one alone gets no response."""
        here = waiting.setdefault(request.code, [])
        here.append(request)
        if len(here) == GROUPS:
            for each in here:
                if each.code == RequestCode.GET_CONSUME_STATS:
                    each.reply(Response(body=ConsumeStats().encode()))
                else:
                    each.reply(Response(ResponseCode.CONSUMER_NOT_ONLINE))

    broker.handlers[RequestCode.GET_CONSUME_STATS] = wait_for_all
    broker.handlers[RequestCode.GET_CONSUMER_CONNECTION_LIST] = wait_for_all
    async with (
        ScriptedCluster([broker]) as cluster,
        ClientInstance(cluster.address) as instance,
        AdminClient(instance=instance) as admin,
    ):
        info = ClusterInfo(
            broker_addr_table={
                "a": BrokerData(cluster="c", broker_name="a", broker_addrs={0: broker.address})
            },
            cluster_addr_table={"c": ["a"]},
        )
        cluster.name_server.handlers[RequestCode.GET_BROKER_CLUSTER_INFO] = lambda _: Response(
            body=info.encode()
        )
        names = [f"group-{number}" for number in range(GROUPS)]
        rows = await list_groups(Call(admin, Output(), instance), names)
    assert [row[0] for row in rows] == names
