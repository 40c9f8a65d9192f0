"""The admin client: all families of calls in one object.

Source: DefaultMQAdminExt, RocketMQ 5.3.
"""

from __future__ import annotations

from cometmq.client.admin.brokers import Brokers
from cometmq.client.admin.offsets import Offsets
from cometmq.client.admin.topics import Topics
from cometmq.client.admin.tracks import Tracks


class AdminClient(Topics, Offsets, Tracks, Brokers):
    """Manages topics, groups and offsets, finds messages, and tells how a cluster stands.

    Args:
        name_servers: ``host:port;host:port``, or a sequence of addresses.
        client: settings of its connections.
        instance: share these connections instead of opening own ones; the caller starts and
            closes them.
        config: a TOML file with a table ``[client]``; by default the one COMETMQ_CONFIG names.
        options: settings of `ClientSettings` by name.

    Names are those that the servers know: a namespace of 4.x is part of them here.

    Every method raises `ResponseError` when a server refuses and `RemotingError` when none answers;
    what concerns several servers is done one after the other, and those before the one that failed
    have done it.
    Example: ``async with AdminClient("127.0.0.1:9876") as admin: await admin.create_topic("t")``
    """
