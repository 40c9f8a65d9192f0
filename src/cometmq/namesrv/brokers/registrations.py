"""Decodes registrations of brokers, and checks every name and address in them.

Topics with illegal names are left out with a warning, so that one of them does not prevent the
registration; a broker whose name or address is illegal is refused.

Source: DefaultRequestProcessor.registerBroker, RocketMQ 4.9 and 5.3, which check nothing.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable

from cometmq.model.address import check_address
from cometmq.model.errors import InvalidNameError, ResponseError
from cometmq.model.topic import QUEUES_MAX, TopicConfig
from cometmq.namesrv.checks import check_name, check_other_address, is_name
from cometmq.namesrv.registry import Registration
from cometmq.protocol.bodies.common import DataVersion
from cometmq.protocol.bodies.register import RegisterBrokerBody, decode_register_body
from cometmq.protocol.bodies.topic import TopicConfigSerializeWrapper
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.namesrv import RegisterBrokerRequest
from cometmq.protocol.version import REGISTER_BODY_VERSION_MIN

log = logging.getLogger(__name__)

EXPIRY_MS_MAX = 86_400_000
BROKER_ID_MAX = 2**31 - 1
_NAMES_LOGGED_MAX = 5


def read_registration(
    header: RegisterBrokerRequest, body: bytes, *, version: int, expiry_ms: int
) -> Registration:
    """Return the registration of a broker.

    Args:
        header: of its request.
        body: of its request; empty for a broker that names no topics.
        version: the version number of its request.
        expiry_ms: how long it may be silent, unless its request has another time.

    Raises:
        ResponseError: the body is damaged or no registration, or the broker's name, cluster or
            address is illegal.
    """
    _check_crc(header.body_crc32, body)
    found = _read_body(body, version)
    wrapper = found.topic_config_serialize_wrapper
    try:
        return Registration(
            cluster=check_name(header.cluster_name, "cluster"),
            broker_name=check_name(header.broker_name, "broker"),
            broker_id=_checked_id(header.broker_id),
            address=check_address(header.broker_addr),
            ha_address=check_other_address(header.ha_server_addr),
            version=wrapper.data_version,
            topics=_usable(wrapper.topic_config_table.items(), header.broker_name),
            filter_servers=tuple(check_other_address(a) for a in found.filter_server_list),
            expiry_ms=_expiry_ms(header, expiry_ms),
            enable_acting_master=header.enable_acting_master,
            zone=_zone(header),
            mappings={
                topic: mapping
                for topic, mapping in (wrapper.topic_queue_mapping_info_map or {}).items()
                if is_name(topic)
            },
            is_part=bool(header.is_part),
        )
    except InvalidNameError as problem:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"registration refused: {problem}") from None


def _check_crc(announced: int, body: bytes) -> None:
    if announced != 0 and announced != zlib.crc32(body) & 0x7FFFFFFF:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, "crc32 not match")


def _read_body(body: bytes, version: int) -> RegisterBrokerBody:
    if not body:
        return RegisterBrokerBody(
            topic_config_serialize_wrapper=TopicConfigSerializeWrapper(data_version=DataVersion())
        )
    if 0 < version < REGISTER_BODY_VERSION_MIN:
        wrapper = TopicConfigSerializeWrapper.decode(body)
        return RegisterBrokerBody(topic_config_serialize_wrapper=wrapper)
    return decode_register_body(body, version)


def _checked_id(broker_id: int) -> int:
    if not -1 <= broker_id <= BROKER_ID_MAX:
        raise InvalidNameError(f"broker id {broker_id}: expected -1 to {BROKER_ID_MAX}")
    return broker_id


def _expiry_ms(header: RegisterBrokerRequest, default_ms: int) -> int:
    requested = header.heartbeat_timeout_millis
    return min(requested, EXPIRY_MS_MAX) if requested is not None and requested > 0 else default_ms


def _zone(header: RegisterBrokerRequest) -> str | None:
    return check_name(header.zone_name, "zone") if header.zone_name else None


def _usable(topics: Iterable[tuple[str, TopicConfig]], broker_name: str) -> dict[str, TopicConfig]:
    usable, refused = {}, []
    for name, config in topics:
        if is_name(name) and _has_sane_counts(config):
            usable[name] = config
        else:
            refused.append(name[:80])
    if refused:
        log.warning(
            "ignored topics with illegal names or counts broker=%s count=%d first=%r",
            broker_name,
            len(refused),
            refused[:_NAMES_LOGGED_MAX],
        )
    return usable


def _has_sane_counts(config: TopicConfig) -> bool:
    return (
        0 <= config.read_queue_nums <= QUEUES_MAX
        and 0 <= config.write_queue_nums <= QUEUES_MAX
        and 0 <= config.perm <= 0xFF
    )
