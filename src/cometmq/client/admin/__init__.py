"""Manages a cluster: topics, groups, offsets, messages, dead letters, clients, servers, access.

Source: DefaultMQAdminExt, RocketMQ 5.3.
"""

from __future__ import annotations

from cometmq.client.admin.access import Access
from cometmq.client.admin.controllers import Controllers
from cometmq.client.admin.dead_letter import DeadLetter, ResendTo
from cometmq.client.admin.dead_letters import (
    DeadLetterCount,
    DeadLetterPage,
    DeadLetters,
    ResendStatus,
    Resent,
)
from cometmq.client.admin.groups import GroupLag, Offsets
from cometmq.client.admin.message_pages import MessagePage
from cometmq.client.admin.messages import Redelivery, Track, TrackKind, Tracks
from cometmq.client.admin.servers import Brokers
from cometmq.client.admin.static_plans import QueueMove, StaticPlan
from cometmq.client.admin.topics import Topics
from cometmq.client.admin.waiting_messages import (
    FoundTimer,
    HalfMessages,
    TimerState,
    WaitingMessages,
)
from cometmq.model.arguments import checks_arguments

__all__ = [
    "AdminClient",
    "DeadLetter",
    "DeadLetterCount",
    "DeadLetterPage",
    "FoundTimer",
    "GroupLag",
    "HalfMessages",
    "MessagePage",
    "QueueMove",
    "Redelivery",
    "ResendStatus",
    "ResendTo",
    "Resent",
    "ServerCalls",
    "StaticPlan",
    "TimerState",
    "Track",
    "TrackKind",
]


class ServerCalls(Brokers, Access, Controllers):
    """The calls of `AdminClient` about servers: brokers, name servers, controllers, accounts.

    Example:
        async with AdminClient(name_server) as admin:
            servers: ServerCalls = admin
            for address in admin.name_servers:
                print(await servers.name_server_config(address))
    """


@checks_arguments()
class AdminClient(DeadLetters, WaitingMessages, Topics, Offsets, Tracks, ServerCalls):
    """Manages topics, groups, offsets and dead letters, finds messages, and reads the state of a
    cluster.

    Args:
        name_servers: ``host:port;host:port``, or a sequence of addresses.
        client: the settings of its connections.
        instance: a shared instance to use instead of new connections. The caller starts and
            closes it.
        config: a TOML file with a table ``[client]``; by default the one COMETMQ_CONFIG names.
        options: settings of `ClientSettings` by name.

    Names are the servers' names: a namespace of RocketMQ 4 is part of them.
    Every method raises `ResponseError` if a server refuses, and `RemotingError` if none responds.
    A method that changes several servers calls them in sequence; if one fails, the earlier calls
    have taken effect.

    Example:
        async with AdminClient(name_server) as admin:
            queues = await admin.create_topic("orders", queues=4)
    """
