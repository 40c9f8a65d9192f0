"""Request handlers for changes of settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.broker.admin.handler import ConfigHandler
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import exclusive
from cometmq.remoting.features import Feature

if TYPE_CHECKING:
    from cometmq.broker.assembly import Endpoint, Parts


def build(parts: Parts, _endpoint: Endpoint) -> Feature:
    """Build the handlers that show and change the settings."""
    config = ConfigHandler(
        parts.configuration,
        role=parts.role,
        file=parts.config_file,
        files=parts.files,
        clock=parts.clock,
        on_change=parts.settings_changed,
    )
    return Feature(
        {
            RequestCode.GET_BROKER_CONFIG: config.show,
            RequestCode.UPDATE_BROKER_CONFIG: exclusive(config.update),
        }
    )
