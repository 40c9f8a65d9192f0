"""Consumer groups: make, change, delete and list them, and see who subscribes to what.

Source: the group commands of DefaultMQAdminExt, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from cometmq.client.admin.core import AdminCore
from cometmq.model.errors import ResponseError
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.topic import check_group_name
from cometmq.protocol.bodies import (
    GroupForbidden,
    GroupList,
    QuerySubscriptionResponseBody,
    SubscriptionData,
    SubscriptionGroupWrapper,
    TopicList,
)
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers import (
    DeleteSubscriptionGroupRequest,
    GetSubscriptionGroupConfigRequest,
    QuerySubscriptionByConsumerRequest,
    QueryTopicConsumeByWhoRequest,
    QueryTopicsByConsumerRequest,
    UpdateAndGetGroupForbiddenRequest,
)


class Groups(AdminCore):
    """Calls about consumer groups."""

    async def create_group(
        self,
        config: SubscriptionGroupConfig | str,
        *,
        brokers: Iterable[str] | None = None,
    ) -> None:
        """Create a group, or change it if it exists.

        Args:
            config: its settings, or only its name for the default settings.
            brokers: names of the brokers to create it on; None for all of the cluster.

        Raises:
            InvalidNameError: the name is invalid; nothing was changed.
            ClientError: there is no such broker; nothing was changed.
        """
        if isinstance(config, str):
            config = SubscriptionGroupConfig(group_name=config)
        check_group_name(config.group_name)
        body = msgspec.json.encode(config)
        for address in await self._masters(brokers):
            await self._ask(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

    async def delete_group(
        self, group: str, *, keep_offsets: bool = False, brokers: Iterable[str] | None = None
    ) -> None:
        """Delete a group from brokers: from all of the cluster, or from those that are named.

        Args:
            group: the group.
            keep_offsets: keep the committed offsets for a later group of the same name.
            brokers: names of brokers.
        """
        forget = not keep_offsets
        header = DeleteSubscriptionGroupRequest(
            group_name=group, clean_offset=forget, remove_offset=forget
        )
        for address in await self._masters(brokers):
            await self._ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    async def groups(self) -> list[str]:
        """Return the names of all groups with settings on a broker, in alphabetical order."""
        found: set[str] = set()
        for address in await self._masters():
            found.update(await self.broker_groups(address))
        return sorted(found)

    async def broker_groups(self, address: str) -> dict[str, SubscriptionGroupConfig]:
        """Return the settings of all groups of one broker."""
        answer = await self._ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        return SubscriptionGroupWrapper.decode(answer.body).subscription_group_table

    async def group_config(self, group: str, address: str) -> SubscriptionGroupConfig | None:
        """Return a group's settings on one broker, or None if it has none.

        A broker with automatic group creation may create the group on this request.
        """
        header = GetSubscriptionGroupConfigRequest(group=group)
        try:
            answer = await self._ask(address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header)
        except ResponseError as error:
            if error.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                return None
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            return (await self.broker_groups(address)).get(group)
        return msgspec.json.decode(answer.body, type=SubscriptionGroupConfig)

    async def may_read(self, group: str, topic: str, allowed: bool | None = None) -> bool:
        """Return whether a group may read a topic, or set it on every broker of the topic.

        Args:
            group: the group.
            topic: the topic.
            allowed: the new value; None only reads it.

        Returns:
            Whether the group may read the topic on all of its brokers.

        Raises:
            ResponseError: the broker is older than 5.0 and has no such rule.
        """
        header = UpdateAndGetGroupForbiddenRequest(group=group, topic=topic, readable=allowed)
        answers = [
            await self._ask(address, RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, header)
            for address in (await self._route(topic)).masters()
        ]
        return all(GroupForbidden.decode(answer.body).readable for answer in answers)

    async def groups_of_topic(self, topic: str) -> list[str]:
        """Return the groups that subscribe to a topic now, or have an offset in it."""
        header = QueryTopicConsumeByWhoRequest(topic=topic)
        found: set[str] = set()
        for address in (await self._route(topic)).masters():
            answer = await self._ask(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
            found.update(GroupList.decode(answer.body).group_list)
        return sorted(found - {topic})  # 5.3 names the topic itself when somebody subscribes to it

    async def topics_of_group(self, group: str) -> list[str]:
        """Return the topics in which a group has an offset.

        Raises:
            ResponseError: the broker is older than 5.0.
        """
        header = QueryTopicsByConsumerRequest(group=group)
        found: set[str] = set()
        for address in await self._masters():
            answer = await self._ask(address, RequestCode.QUERY_TOPICS_BY_CONSUMER, header)
            found.update(TopicList.decode(answer.body).topic_list)
        return sorted(found)

    async def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Return an online group's subscription to a topic, or None.

        Raises:
            ResponseError: the broker is older than 5.0.
        """
        header = QuerySubscriptionByConsumerRequest(group=group, topic=topic)
        for address in (await self._route(topic)).masters():
            answer = await self._ask(address, RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, header)
            found = QuerySubscriptionResponseBody.decode(answer.body).subscription_data
            if found is not None:
                return found
        return None
