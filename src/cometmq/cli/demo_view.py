"""Shows the demo: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cometmq.cli.demo_figures import Figures, Rates, percentile

LIVE_S, PLAIN_S = 0.25, 1.0


class View:
    """Shows the figures repeatedly until the context ends."""

    def __init__(self, figures: Figures, console: Console) -> None:
        self._figures = figures
        self._console = console
        self._rates = Rates()
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        self._task = asyncio.create_task(self._show(), name="demo view")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=1.0)
            self._show_once()
        if self._live is not None:
            self._live.stop()

    async def _show(self) -> None:
        while True:
            self._show_once()
            await asyncio.sleep(LIVE_S if self._live is not None else PLAIN_S)

    def _show_once(self) -> None:
        self._rates.look(self._figures, asyncio.get_running_loop().time())
        while self._figures.notes:
            self._print(self._figures.notes.popleft())
        if self._live is not None:
            self._live.update(self._picture(), refresh=True)
        else:
            self._print(self._line())
            for sample in list(self._figures.samples)[-1:]:
                self._print(f"  {sample}")

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _line(self) -> str:
        figures, rates = self._figures, self._rates
        return (
            f"{figures.phase}: {rates.sent_per_s:.0f} sent/s, {rates.received_per_s:.0f}"
            f" received/s, acknowledged={figures.acknowledged}"
            f" received={len(figures.received)} lag={figures.lost}"
            f" send p50={percentile(figures.send_ms, 0.5):.1f} ms"
            f" p99={percentile(figures.send_ms, 0.99):.1f} ms"
        )

    def _picture(self) -> Group:
        figures, rates = self._figures, self._rates
        table = Table(title=f"CometMQ: {figures.phase}", title_justify="left")
        for heading in ("", "per second", "messages", "p50 ms", "p99 ms"):
            table.add_column(heading, justify="right" if heading else "left")
        table.add_row(
            "acknowledged",
            f"{rates.sent_per_s:,.0f}",
            f"{figures.acknowledged:,}",
            f"{percentile(figures.send_ms, 0.5):.1f}",
            f"{percentile(figures.send_ms, 0.99):.1f}",
        )
        table.add_row(
            "received",
            f"{rates.received_per_s:,.0f}",
            f"{len(figures.received):,}",
            f"{percentile(figures.arrive_ms, 0.5):.1f}",
            f"{percentile(figures.arrive_ms, 0.99):.1f}",
        )
        table.add_row("lag", "", f"{figures.lost:,}", "", "")
        table.add_row("send retries", "", f"{figures.retried:,}", "", "")
        return Group(table, *(Text(sample, style="dim") for sample in figures.samples))


def summary(figures: Figures) -> list[str]:
    """Return the result of the demo, line by line."""
    lines = [
        f"sent={figures.sent} acknowledged={figures.acknowledged}"
        f" received={len(figures.received)} duplicates={figures.duplicates} lost={figures.lost}",
    ]
    if figures.restart_s is not None:
        outage = f"{figures.outage_s:.2f}" if figures.outage_s is not None else "?"
        lines.append(
            f"killed with SIGKILL: ready again after {figures.restart_s:.2f} s,"
            f" sends acknowledged again after {outage} s, {figures.retried} sends retried"
        )
    return lines
