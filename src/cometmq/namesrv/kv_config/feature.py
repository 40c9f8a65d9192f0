"""Request handlers for the key-value table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.namesrv.kv_config.handler import KvHandler
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import exclusive
from cometmq.remoting.features import Feature

if TYPE_CHECKING:
    from cometmq.namesrv.assembly import Parts


def build(parts: Parts) -> Feature:
    """Build the handlers that read and change the key-value table."""
    kv = KvHandler(parts.kv)
    return Feature(
        {
            RequestCode.PUT_KV_CONFIG: exclusive(kv.put),
            RequestCode.GET_KV_CONFIG: kv.get,
            RequestCode.DELETE_KV_CONFIG: exclusive(kv.delete),
            RequestCode.GET_KVLIST_BY_NAMESPACE: exclusive(kv.namespace),
        }
    )
