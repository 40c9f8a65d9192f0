"""The options with which a pytest run in a test loads the fixtures of CometMQ.

Naming a plugin that is installed already would register it twice, which pytest refuses.
"""

from __future__ import annotations

from importlib.metadata import entry_points

IS_INSTALLED = any(point.name == "cometmq" for point in entry_points(group="pytest11"))
OPTIONS = () if IS_INSTALLED else ("-p", "cometmq.testing.plugin")
