"""Hooks that record spans and metrics of sends and deliveries.

``TracingHooks`` needs the extra ``otel`` (``pip install '.[otel]'``), ``MetricHooks`` the extra
``prometheus``. Each module is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cometmq.client.telemetry.otel import TracingHooks
    from cometmq.client.telemetry.prometheus import MetricHooks

__all__ = ["TracingHooks", "MetricHooks"]


def __getattr__(name: str) -> Any:
    """Load a class together with the package it is made for.

    Raises:
        ConfigError: that package is not installed; says how to install it.
    """
    if name == "TracingHooks":
        from cometmq.client.telemetry.otel import TracingHooks

        return TracingHooks
    if name == "MetricHooks":
        from cometmq.client.telemetry.prometheus import MetricHooks

        return MetricHooks
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
