"""The rights that requests about settings need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cometmq.access.needs import Action
from cometmq.access.rights import ADMINISTRATION, Rights, on_cluster
from cometmq.protocol.codes import RequestCode

_LOOK: Final = Rights(plain=ADMINISTRATION, users=on_cluster(Action.GET))
_CHANGE: Final = Rights(plain=ADMINISTRATION, users=on_cluster(Action.UPDATE))

RIGHTS: Final[Mapping[int, Rights]] = {
    RequestCode.GET_BROKER_CONFIG: _LOOK,
    RequestCode.UPDATE_BROKER_CONFIG: _CHANGE,
}
