"""The rights that notifications of name servers need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cometmq.access.needs import Action
from cometmq.access.rights import ADMINISTRATION, Rights, on_cluster
from cometmq.protocol.codes import RequestCode

_CHANGE: Final = Rights(plain=ADMINISTRATION, users=on_cluster(Action.UPDATE))

RIGHTS: Final[Mapping[int, Rights]] = {
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: _CHANGE,
}
