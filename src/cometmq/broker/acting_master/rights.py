"""The rights that notifications of name servers need."""

from __future__ import annotations

from typing import Final

from cometmq.access.rights import CHANGE
from cometmq.protocol.codes import RequestCode

RIGHTS: Final = {
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: CHANGE,
}
