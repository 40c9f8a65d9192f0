"""The rights that requests of controllers and about epochs need."""

from __future__ import annotations

from typing import Final

from cometmq.access.rights import CHANGE, READ
from cometmq.protocol.codes import RequestCode

RIGHTS: Final = {
    RequestCode.GET_BROKER_EPOCH_CACHE: READ,
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: CHANGE,
}
