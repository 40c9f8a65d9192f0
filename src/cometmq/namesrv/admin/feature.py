"""Request handlers for changes of settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.remoting import Request, Response, exclusive
from cometmq.remoting.config_update import ConfigUpdate
from cometmq.remoting.features import Feature
from cometmq.remoting.slices import off_loop

if TYPE_CHECKING:
    from cometmq.namesrv.assembly import Parts


def build(parts: Parts) -> Feature:
    """Build the handlers that show and change the settings.

    Source: DefaultRequestProcessor, RocketMQ 5.3.
    """
    update = ConfigUpdate(
        parts.configuration,
        file=parts.settings().config_store_path,
        files=parts.files,
        invalid=ResponseCode.SYSTEM_ERROR,
    )

    async def show(_request: Request) -> Response:
        text = await off_loop(parts.configuration.render)
        return Response(body=text.encode())

    return Feature(
        {
            RequestCode.UPDATE_NAMESRV_CONFIG: exclusive(update.handle),
            RequestCode.GET_NAMESRV_CONFIG: show,
        }
    )
