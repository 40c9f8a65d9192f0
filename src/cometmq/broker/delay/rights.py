"""The rights that requests for schedule offsets need."""

from __future__ import annotations

from typing import Final

from cometmq.access.rights import READ
from cometmq.protocol.codes import RequestCode

RIGHTS: Final = {
    RequestCode.GET_ALL_DELAY_OFFSET: READ,
}
