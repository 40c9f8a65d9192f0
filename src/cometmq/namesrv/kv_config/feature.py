"""Request handlers for the key-value table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cometmq.access.needs import ADMINISTRATOR, NOTHING, Needs
from cometmq.protocol.codes import RequestCode
from cometmq.remoting.features import Deferred, Feature

if TYPE_CHECKING:
    from cometmq.namesrv.core import Core
    from cometmq.namesrv.kv_config.handler import KvHandler


NEEDS: Mapping[int, Needs] = {
    RequestCode.GET_KV_CONFIG: NOTHING,
    RequestCode.GET_KVLIST_BY_NAMESPACE: NOTHING,
    RequestCode.PUT_KV_CONFIG: ADMINISTRATOR,
    RequestCode.DELETE_KV_CONFIG: ADMINISTRATOR,
}
"""The needs of the requests with ``aclEnable``: a signature only, if clients send them to read."""


def build(core: Core) -> Feature:
    """Build the handlers that read and change the key-value table."""

    @Deferred
    def kv() -> KvHandler:
        from cometmq.namesrv.kv_config.handler import KvHandler

        return KvHandler(core.kv)

    return Feature(
        {
            RequestCode.PUT_KV_CONFIG: kv.exclusive(lambda h: h.put),
            RequestCode.GET_KV_CONFIG: kv.handler(lambda h: h.get),
            RequestCode.DELETE_KV_CONFIG: kv.exclusive(lambda h: h.delete),
            RequestCode.GET_KVLIST_BY_NAMESPACE: kv.exclusive(lambda h: h.namespace),
        }
    )
