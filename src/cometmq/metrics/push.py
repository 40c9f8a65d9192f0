"""Metrics that a server sends by itself, at intervals: to its log, or by `otlp` to a collector.

A page is collected in slices, as for Prometheus, and then sent. One page is sent at a time: a
collector that is slow or gone delays the next page, and nothing waits in a queue. A failure is
logged once, and so is the success that ends a streak of them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from cometmq.metrics.config import MetricsSettings
from cometmq.metrics.page import Collect, Page, TextPage
from cometmq.remoting.slices import Slices
from cometmq.remoting.tasks import Supervisor
from cometmq.system.failure_log import FailureLog

log = logging.getLogger(__name__)

COLLECT_S: Final = 30.0
"""The time to collect a page."""
LINES_MAX: Final = 2_000
"""How many series of one page are logged."""


class MetricsPush:
    """Sends pages of metrics at intervals; a subclass says how.

    Args:
        collect: fills a page.
        interval_s: the seconds between two pages.
        target: where they go, for the log.
    """

    def __init__(self, collect: Collect, interval_s: float, target: str) -> None:
        self._collect = collect
        self._interval_s = interval_s
        self._target = target
        self._tasks = Supervisor("metrics")
        self._failures = FailureLog(
            log, fails="cannot send metrics", works="metrics are sent again", name="target"
        )

    async def start(self) -> None:
        """Send the first page after an interval."""
        self._tasks.every(self._interval_s, self.push, "push")
        log.info("metrics are sent target=%s interval_s=%g", self._target, self._interval_s)

    async def stop(self) -> None:
        """Send no more; a page that is being sent is given up."""
        await self._tasks.cancel()

    async def push(self) -> None:
        """Collect and send one page; log it if that fails."""
        try:
            page = self.make_page()
            async with asyncio.timeout(COLLECT_S):
                await self._collect(page)
            await self.send(page)
        except Exception as problem:
            self._failures.failed(self._target, problem)
        else:
            self._failures.succeeded(self._target)

    def make_page(self) -> Page:
        """Return an empty page."""
        raise NotImplementedError

    async def send(self, page: Page) -> None:
        """Send a page.

        Raises:
            CometError: it did not arrive.
        """
        raise NotImplementedError


class LogPush(MetricsPush):
    """Logs the series of each page as lines of Prometheus' text format.

    Args:
        settings: the interval, and the limit of series.
        labels: the labels of every series.
        collect: fills a page.
    """

    def __init__(
        self,
        settings: MetricsSettings,
        labels: dict[str, str],
        collect: Collect,
    ) -> None:
        super().__init__(collect, settings.log_interval_ms / 1000, "log")
        self._labels = labels
        self._series_max = min(settings.series_max, LINES_MAX)

    def make_page(self) -> Page:
        """Return an empty page."""
        return TextPage(self._labels, self._series_max)

    async def send(self, page: Page) -> None:
        """Log the series of a page, `LINES_MAX` at most."""
        assert isinstance(page, TextPage)
        slices, lines = Slices(), 0
        async for part in slices.each(page.parts()):
            for line in part.decode().splitlines():
                if line.startswith("#"):
                    continue
                if lines < LINES_MAX:
                    log.info("%s", line)
                lines += 1
        if lines > LINES_MAX:
            log.info("%d further series are not logged", lines - LINES_MAX)
