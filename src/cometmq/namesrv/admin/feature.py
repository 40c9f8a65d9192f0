"""Request handlers for changes of settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cometmq.access.needs import ADMINISTRATOR, Needs
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.remoting import exclusive
from cometmq.remoting.config_update import ConfigUpdate
from cometmq.remoting.features import Feature

if TYPE_CHECKING:
    from cometmq.namesrv.core import Core


NEEDS: Mapping[int, Needs] = {
    RequestCode.UPDATE_NAMESRV_CONFIG: ADMINISTRATOR,
    RequestCode.GET_NAMESRV_CONFIG: ADMINISTRATOR,
}
"""The needs of the requests with ``aclEnable``: a signature only, if clients send them to read."""


def build(core: Core) -> Feature:
    """Build the handlers that show and change the settings.

    Source: DefaultRequestProcessor, RocketMQ 5.3.
    """
    update = ConfigUpdate(
        core.configuration,
        file=core.settings().config_store_path,
        files=core.files,
        invalid=ResponseCode.SYSTEM_ERROR,
    )
    return Feature(
        {
            RequestCode.UPDATE_NAMESRV_CONFIG: exclusive(update.handle),
            RequestCode.GET_NAMESRV_CONFIG: update.show,
        }
    )
