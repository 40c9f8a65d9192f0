"""The rights that requests of controllers and about epochs need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cometmq.access.needs import Action
from cometmq.access.rights import ADMINISTRATION, SIGNED, Rights, on_cluster
from cometmq.protocol.codes import RequestCode

_READ: Final = Rights(plain=SIGNED, users=on_cluster(Action.GET))
_CHANGE: Final = Rights(plain=ADMINISTRATION, users=on_cluster(Action.UPDATE))

RIGHTS: Final[Mapping[int, Rights]] = {
    RequestCode.GET_BROKER_EPOCH_CACHE: _READ,
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: _CHANGE,
}
