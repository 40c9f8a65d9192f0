"""The rights that requests about static topics need."""

from __future__ import annotations

from typing import Final

from cometmq.access.needs import Action
from cometmq.access.rights import ADMINISTRATION, Rights, on_named
from cometmq.protocol.codes import RequestCode

RIGHTS: Final = {
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: Rights(
        plain=ADMINISTRATION, users=on_named(Action.CREATE, topic="topic")
    ),
}
