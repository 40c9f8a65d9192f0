"""What a consumer does before it becomes a member of its group.

Source: DefaultLitePullConsumerImpl.start and MQClientInstance.checkClientInBroker, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from cometmq.client.errors import TopicNotFoundError
from cometmq.client.group_calls import GroupCalls
from cometmq.client.instance import ClientInstance
from cometmq.client.subscription import Filter
from cometmq.model.errors import CometError, ConfigError, ResponseError

log = logging.getLogger(__name__)


async def check_filters(
    instance: ClientInstance, group: str, filters: Mapping[str, Filter]
) -> None:
    """Ask the brokers whether they can filter topics so; one that does not exist is passed over.

    Raises:
        ConfigError: a broker cannot.
        RemotingError: a broker did not answer.
    """
    calls = GroupCalls(instance)
    checked: dict[str, Filter] = {}
    while asked := {each: filters[each] for each in filters if checked.get(each) != filters[each]}:
        checked |= asked  # the caller may add more while this waits
        for topic, wanted in asked.items():
            try:
                await calls.check_filter(group, instance.client_id, topic, wanted)
            except TopicNotFoundError:
                log.warning("a topic does not exist yet topic=%s group=%s", topic, group)
            except ResponseError as error:
                raise ConfigError(
                    f"a broker cannot filter {topic} by {wanted.expression!r}: {error}"
                ) from error


async def join(instance: ClientInstance, topics: Iterable[str]) -> None:
    """Tell the brokers of these topics who lives here; a topic that is not there yet is logged."""
    for topic in topics:
        try:
            await instance.routes.find(topic)
        except CometError as error:
            log.warning("a topic cannot be read yet topic=%s error=%s", topic, error)
    await instance.heartbeat()
