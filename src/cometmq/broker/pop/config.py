"""The settings of pop consumption.

Source: BrokerConfig, RocketMQ 5.3.
"""

from __future__ import annotations

from typing import Final

from cometmq.model.topic import TopicConfig, revive_topic
from cometmq.system.settings import setting, settings_class

REVIVE_QUEUES_MAX: Final = 128


@settings_class
class PopSettings:
    """Settings of pop consumption."""

    pop_polling_size: int = setting(1_024, key="popPollingSize", low=1, high=1_000_000, remote=True)
    """Held pops of one group for one queue, or for any queue of one topic; one more is held, and
    further ones get a response at once.
    """

    max_pop_polling_size: int = setting(
        100_000, key="maxPopPollingSize", low=1, high=1_000_000, remote=True
    )
    """Maximum number of held pops of all groups."""

    enable_pop_message_threshold: bool = setting(
        False, key="enablePopMessageThreshold", remote=True
    )
    """Whether ``popInflightMessageThreshold`` limits the messages in flight of a queue."""

    pop_inflight_message_threshold: int = setting(
        10_000, key="popInflightMessageThreshold", low=1, high=10_000_000, remote=True
    )
    """Messages of one queue that a group may have popped and not acknowledged."""

    pop_check_points_max: int = setting(
        1_000_000, key="popCheckPointsMax", low=1_000, high=100_000_000, remote=True
    )
    """Check points of all groups that are not acknowledged; each stands for up to 32 messages of
    one pop. Further pops find nothing until some are acknowledged or revived.
    """

    init_pop_offset_by_check_msg_in_mem: bool = setting(
        True, key="initPopOffsetByCheckMsgInMem", remote=True
    )
    """Whether a new group that is to begin with the last message begins with the first one while
    that is still in memory.
    """

    pop_from_retry_probability: int = setting(
        20, key="popFromRetryProbability", unit="%", low=0, high=100, remote=True
    )
    """Share of the pops that read the retry topic before the topic."""

    enable_retry_topic_v2: bool = setting(False, key="enableRetryTopicV2", remote=True)
    """Whether messages are redelivered through retry topics of the second form,
    ``%RETRY%group+topic``.
    """

    retrieve_message_from_pop_retry_topic_v1: bool = setting(
        True, key="retrieveMessageFromPopRetryTopicV1", remote=True
    )
    """Whether, with the second form, retry topics of the first form are read as well."""

    pop_response_return_actual_retry_topic: bool = setting(
        False, key="popResponseReturnActualRetryTopic", remote=True
    )
    """Whether redelivered messages keep the name of their retry topic in responses."""

    clear_retry_topic_when_delete_topic: bool = setting(
        True, key="clearRetryTopicWhenDeleteTopic", remote=True
    )
    """Whether the retry topics of pop are deleted with their topic."""

    revive_queue_num: int = setting(8, key="reviveQueueNum", low=1, high=REVIVE_QUEUES_MAX)
    """Queues of the revive topic, in which check points and acknowledgements are stored."""

    default_message_request_mode: str = setting(
        "PULL", key="defaultMessageRequestMode", choices=("PULL", "POP")
    )
    """How groups read a topic for which no mode was set."""

    default_pop_share_queue_num: int = setting(
        -1, key="defaultPopShareQueueNum", low=-1, high=65_535
    )
    """How many members further than its own share a member pops from, in groups without a mode of
    their own; 0 or less for all queues.
    """

    server_load_balancer_enable: bool = setting(True, key="serverLoadBalancerEnable", remote=True)
    """Whether the broker divides the queues of a topic among the members that ask it to; if not,
    each of them gets all queues.
    """

    def revive_topic(self, cluster: str) -> TopicConfig:
        """Return the revive topic of a new store."""
        return TopicConfig(
            topic_name=revive_topic(cluster),
            read_queue_nums=self.revive_queue_num,
            write_queue_nums=self.revive_queue_num,
        )
