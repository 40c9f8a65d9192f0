"""The rights that requests for schedule offsets need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cometmq.access.needs import Action
from cometmq.access.rights import SIGNED, Rights, on_cluster
from cometmq.protocol.codes import RequestCode

_READ: Final = Rights(plain=SIGNED, users=on_cluster(Action.GET))

RIGHTS: Final[Mapping[int, Rights]] = {
    RequestCode.GET_ALL_DELAY_OFFSET: _READ,
}
