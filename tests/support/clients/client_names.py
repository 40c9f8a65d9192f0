"""The public names of the client, and the modules from which applications import them."""

from __future__ import annotations

import importlib
from typing import Any

MODULES = (
    "cometmq.client",
    *(f"cometmq.client.{part}" for part in ("admin", "allocation", "errors", "hooks", "offsets")),
)
"""The first one that has a name counts."""


def public_names() -> dict[str, Any]:
    """Every public name of the client, and what it stands for."""
    modules = [importlib.import_module(path) for path in reversed(MODULES)]
    return {name: getattr(module, name) for module in modules for name in module.__all__}
