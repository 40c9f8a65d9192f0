"""The rights that requests about the store need."""

from __future__ import annotations

from typing import Final

from cometmq.access.needs import Action, Needs, needs_of
from cometmq.access.rights import CHANGE, LOOK, SIGNED, Lookups, Right, Rights, field, topic_if_any
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import Request


def _compare_queues(request: Request, lookups: Lookups) -> Needs:
    topic = field(request, "topic")
    if not topic:
        return lookups.of_cluster(Action.GET)
    return needs_of(topic_if_any(topic, Action.GET))


RIGHTS: Final = {
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: CHANGE,
    RequestCode.DELETE_EXPIRED_COMMITLOG: CHANGE,
    RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: Rights(plain=SIGNED, users=Right(_compare_queues)),
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: LOOK,
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: CHANGE,
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: CHANGE,
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: LOOK,
    RequestCode.SET_COMMITLOG_READ_MODE: CHANGE,
}
