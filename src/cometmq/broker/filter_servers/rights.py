"""The rights that registrations of filter servers need."""

from __future__ import annotations

from typing import Final

from cometmq.access.rights import CHANGE
from cometmq.protocol.codes import RequestCode

RIGHTS: Final = {
    RequestCode.REGISTER_FILTER_SERVER: CHANGE,
}
