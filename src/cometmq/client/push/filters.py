"""Asks brokers beforehand whether they can filter as a subscription wants.

Source: MQClientInstance.checkClientInBroker, RocketMQ 5.3.
"""

from __future__ import annotations

from cometmq.client.group_calls import GroupCalls
from cometmq.client.instance import ClientInstance
from cometmq.client.subscription import Filter
from cometmq.model.errors import ConfigError, ResponseError
from cometmq.protocol.codes import ResponseCode

_REFUSED = (ResponseCode.SYSTEM_ERROR, ResponseCode.SUBSCRIPTION_PARSE_FAILED)


async def check_filter(instance: ClientInstance, group: str, topic: str, wanted: Filter) -> None:
    """Return if all brokers of a topic can filter by this, or the topic is not known yet.

    Args:
        instance: whose connections are used.
        group, topic: as brokers know them.
        wanted: the filter.

    Raises:
        ConfigError: a broker cannot filter like this; says why.
        ResponseError: a broker refused for another reason.
        RemotingError: a broker did not answer.
    """
    if instance.routes.known(topic) is None:
        return
    try:
        await GroupCalls(instance).check_filter(group, instance.client_id, topic, wanted)
    except ResponseError as error:
        if error.code not in _REFUSED:
            raise
        raise ConfigError(
            f"a broker of {topic} cannot filter by {wanted.expression!r}: {error.remark}"
        ) from error
