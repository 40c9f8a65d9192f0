"""Handles requests about reads from the disk: the limits of groups, and reading ahead.

Source: AdminBrokerProcessor and ColdDataCgCtrService, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from cometmq.broker.checks import invalid
from cometmq.broker.cold_flow_control import ColdFlowControl
from cometmq.broker.config import BrokerSettings
from cometmq.protocol import fastjson
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.broker_admin import SetCommitlogReadModeRequest
from cometmq.remoting import Request, Response
from cometmq.remoting.config_update import properties_of
from cometmq.remoting.slices import off_loop
from cometmq.system.clock import Clock
from cometmq.system.configuration import Configuration

log = logging.getLogger(__name__)

READS_AHEAD: Final = {0: "true", 1: "false"}
"""The value of the setting by the kernel's number of an access pattern: normal and random."""
LIMIT_MAX: Final = 2**63 - 1
GROUP_LENGTH_MAX: Final = 255


class ColdReadsHandler:
    """Handles requests about reads from the disk.

    Args:
        flow: the limits of groups.
        configuration: the settings of the process.
        settings: returns the current settings of the broker.
        clock: the time in what is shown.
    """

    def __init__(
        self,
        flow: ColdFlowControl,
        configuration: Configuration,
        settings: Callable[[], BrokerSettings],
        clock: Clock,
    ) -> None:
        self._flow = flow
        self._configuration = configuration
        self._settings = settings
        self._clock = clock

    async def set_limits(self, request: Request) -> Response:
        """UPDATE_COLD_DATA_FLOW_CTR_CONFIG (2001): properties text, group=bytes in five seconds.

        The limits last until the broker ends. RocketMQ leaves out values that are not numbers.

        Raises:
            ResponseError: 29, a key is not a group, or a value not a limit; 1, the text cannot be
                read, or too many groups would have limits. Nothing is set then.
        """
        work = partial(properties_of, request.body, ResponseCode.INVALID_PARAMETER)
        limits = {group: _limit(group, text) for group, text in (await off_loop(work)).items()}
        self._flow.set_limits(limits)
        first = list(limits.items())[:10]
        log.info("limits of cold reads set peer=%s %r", request.connection.peer_text, first)
        return Response()

    def remove_limit(self, request: Request) -> Response:
        """REMOVE_COLD_DATA_FLOW_CTR_CONFIG (2002): the body is the name of a group.

        Raises:
            ResponseError: 29, it is not the name of a group.
        """
        group = request.body[: 4 * GROUP_LENGTH_MAX + 1].decode("utf-8", "replace")
        _check_group(group)
        self._flow.remove_limit(group)
        log.info("limit of cold reads removed peer=%s %r", request.connection.peer_text, group)
        return Response()

    def show(self, request: Request) -> Response:
        """GET_COLD_DATA_FLOW_CTR_INFO (2003): limits, and the bytes that count for them."""
        settings = self._settings()
        now_s, now_ms = self._clock.monotonic(), self._clock.now_ms()

        def ms(at_s: float) -> int:
            return now_ms - int((now_s - at_s) * 1000)

        groups = {
            group: {
                "coldAcc": int(debt.size_bytes),
                "createTimeMills": ms(debt.began_s),
                "lastColdReadTimeMills": ms(debt.last_s),
            }
            for group, debt in self._flow.groups(now_s).items()
        }
        table = {
            "runtimeTable": groups,
            "configTable": dict(self._flow.own_limits),
            "cgColdReadThreshold": settings.cg_cold_read_threshold,
            "globalColdReadThreshold": settings.global_cold_read_threshold,
            "globalAcc": self._flow.bytes_together(),
        }
        return Response(body=fastjson.dumps(table))

    def set_read_ahead(self, request: Request) -> Response:
        """SET_COMMITLOG_READ_MODE (2004): read ahead, or not, until the broker ends.

        Raises:
            ResponseError: 29, the mode is unknown.
        """
        mode = request.header(SetCommitlogReadModeRequest).read_ahead_mode
        if mode not in READS_AHEAD:
            raise invalid("set commitlog readahead mode param value error")
        peer = request.connection.peer_text
        self._configuration.set({"dataReadAheadEnable": READS_AHEAD[mode]}, f"request of {peer}")
        log.info("dataReadAheadEnable=%s peer=%s", READS_AHEAD[mode], peer)
        return Response(remark=f"set commitlog readahead mode success, mode: {mode}")


def _check_group(group: str) -> None:
    if not 0 < len(group) <= GROUP_LENGTH_MAX:
        raise invalid(
            f"group {group[:GROUP_LENGTH_MAX]!r}: expected 1 to {GROUP_LENGTH_MAX} characters"
        )


def _limit(group: str, text: str) -> int:
    _check_group(group)
    if text.isascii() and text.isdigit() and 0 < int(text[:20]) <= LIMIT_MAX:
        return int(text)
    raise invalid(
        f"limit of cold reads of group {group}: {text:.100}, expected 1 to {LIMIT_MAX} bytes"
    )
