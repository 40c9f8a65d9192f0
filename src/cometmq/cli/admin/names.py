"""The names of the topics and groups of applications."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.model.namespace import is_system_group
from cometmq.model.topic import RETRY_PREFIX, application_topics

if TYPE_CHECKING:
    from cometmq.client import AdminClient


async def topic_names(admin: AdminClient) -> list[str]:
    """Return the topics of applications that a name server knows."""
    info = await admin.cluster_info()
    brokers, clusters = info.broker_addr_table, info.cluster_addr_table
    return application_topics(await admin.topics(), brokers, clusters)


async def group_names(admin: AdminClient) -> list[str]:
    """Return the groups of applications: each has settings or a retry topic."""
    retried = [
        each.removeprefix(RETRY_PREFIX)
        for each in await admin.topics()
        if each.startswith(RETRY_PREFIX)
    ]
    found = {*retried, *await admin.groups()}
    return sorted(each for each in found if not is_system_group(each))
