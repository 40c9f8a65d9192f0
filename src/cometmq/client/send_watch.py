"""Shows a send to the hooks: before it, after each try, and when it has ended.

Source: SendMessageHook and CheckForbiddenHook, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from cometmq.client.hooks import ForbiddenHook, SendContext, SendHook

log = logging.getLogger(__name__)


class Watch:
    """Shows one send to the hooks: before it, and when it has ended."""

    def __init__(
        self,
        context: SendContext,
        forbidding: Sequence[ForbiddenHook],
        watching: Sequence[SendHook],
    ) -> None:
        self._context = context
        self._forbidding = forbidding
        self._watching = list(watching)
        self._began_s = _now()

    async def __aenter__(self) -> None:
        for hook in self._forbidding:
            hook.check(self._context)
        tell(self._watching, SendHook.before_send, self._context)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        context = self._context
        context.cost_ms = (_now() - self._began_s) * 1000
        context.error = error
        if error is not None:
            context.receipt = None
        tell(self._watching, SendHook.after_send, context)


def tell(
    hooks: Sequence[SendHook], what: Callable[[SendHook, SendContext], None], context: SendContext
) -> None:
    """Call one method of every hook; what a hook raises is logged and changes nothing."""
    for hook in hooks:
        try:
            getattr(hook, what.__name__)(context)
        except Exception:
            log.exception("a hook failed hook=%s call=%s", type(hook).__name__, what.__name__)


def _now() -> float:
    return asyncio.get_running_loop().time()
