"""The rights that requests about settings need."""

from __future__ import annotations

from typing import Final

from cometmq.access.rights import CHANGE, LOOK
from cometmq.protocol.codes import RequestCode

RIGHTS: Final = {
    RequestCode.GET_BROKER_CONFIG: LOOK,
    RequestCode.UPDATE_BROKER_CONFIG: CHANGE,
}
