"""Routes: which broker serves which topic.

Source: TopicRouteData, ClusterInfo, BrokerMemberGroup and TopicQueueMappingInfo, RocketMQ 5.3.
"""

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from msgspec import field

from cometmq.protocol import fastjson
from cometmq.protocol.bodies.base import Body, Part

MASTER_ID = 0


class QueueData(Part, kw_only=True):
    """How many queues a topic has on one broker."""

    broker_name: str = ""
    read_queue_nums: int = 0
    write_queue_nums: int = 0
    perm: int = 0
    topic_sys_flag: int = 0


class BrokerData(Part, kw_only=True):
    """The addresses of the brokers that share a name; number 0 is their master."""

    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[int, str] = field(default_factory=dict)
    enable_acting_master: bool = False
    zone_name: str | None = None


class TopicQueueMappingInfo(Part, kw_only=True):
    """The queues of a static topic that a broker has."""

    topic: str = ""
    scope: str = "__global__"
    total_queues: int = 0
    bname: str = ""
    epoch: int = 0
    dirty: bool = False
    curr_id_map: dict[int, int] = field(default_factory=dict)


class LogicQueueMappingItem(Part, kw_only=True):
    """One stretch of a static topic's queue."""

    gen: int = 0
    queue_id: int = 0
    bname: str = ""
    logic_offset: int = 0
    start_offset: int = 0
    end_offset: int = -1
    time_of_start: int = -1
    time_of_end: int = -1


class TopicQueueMappingDetail(Body, kw_only=True):
    """UPDATE_AND_CREATE_STATIC_TOPIC (513): the queue mapping of a static topic on one broker."""

    bare_keys: ClassVar[bool] = True

    topic: str = ""
    scope: str = "__global__"
    total_queues: int = 0
    bname: str = ""
    epoch: int = 0
    dirty: bool = False
    curr_id_map: dict[int, int] | None = None
    hosted_queues: dict[int, list[LogicQueueMappingItem]] | None = None


class TopicRouteData(Body, kw_only=True):
    """GET_ROUTEINFO_BY_TOPIC (105) and REGISTER_TOPIC_IN_NAMESRV (217)."""

    bare_keys: ClassVar[bool] = True

    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = field(default_factory=list)
    broker_datas: list[BrokerData] = field(default_factory=list)
    filter_server_table: dict[str, list[str] | None] = field(default_factory=dict)
    topic_queue_mapping_by_broker: dict[str, TopicQueueMappingInfo] | None = None

    def masters(self) -> list[str]:
        """Return the addresses of the topic's masters."""
        found = [each.broker_addrs.get(MASTER_ID) for each in self.broker_datas]
        return [address for address in found if address is not None]

    def encode_strict(self) -> bytes:
        """Write the route for clients that read nothing but strict JSON."""
        return fastjson.dumps_ascii(self)

    def strict_parts(self) -> Iterator[bytes]:
        """Write the body in parts, each of which takes less than a millisecond."""
        return fastjson.ascii_parts(self)


class RegisteredBroker(NamedTuple):
    """A broker that name servers know."""

    cluster: str
    name: str
    id: int
    address: str

    @property
    def is_master(self) -> bool:
        """Whether it is the master of the brokers with its name."""
        return self.id == MASTER_ID


class ClusterInfo(Body, kw_only=True):
    """GET_BROKER_CLUSTER_INFO (106)."""

    bare_keys: ClassVar[bool] = True

    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict)

    def registered(self, cluster: str | None = None) -> list[RegisteredBroker]:
        """Return the brokers of a cluster, or of all, in order of cluster, name and id."""
        return [
            RegisteredBroker(each, name, number, address)
            for each in (sorted(self.cluster_addr_table) if cluster is None else [cluster])
            for name in sorted(self.cluster_addr_table.get(each, ()))
            if name in self.broker_addr_table
            for number, address in sorted(self.broker_addr_table[name].broker_addrs.items())
        ]


class BrokerMemberGroup(Part, kw_only=True):
    """The brokers of one name, as known to a name server."""

    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[int, str] = field(default_factory=dict)


class GetBrokerMemberGroupResponseBody(Body, kw_only=True):
    """GET_BROKER_MEMBER_GROUP (901)."""

    bare_keys: ClassVar[bool] = True

    broker_member_group: BrokerMemberGroup | None = None
