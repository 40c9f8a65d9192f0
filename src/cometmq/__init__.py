"""CometMQ: Apache RocketMQ's messaging system in Python.

This module holds the version only, so that importing one part never loads another: users import
``cometmq.client``, ``cometmq.testing`` and so on.

The installation compiles the hot modules if it finds a C compiler. ``COMETMQ_BUILD=interpreted`` in
the environment makes Python load their sources instead.
"""

import os

__version__ = "0.1.0"


def _prefer_sources() -> None:
    """Make imports of this package find the `.py` files where compiled ones lie beside them."""
    import sys
    from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
    from pathlib import Path

    root = str(Path(__file__).parent)
    if not Path(root).is_dir():
        return  # in a zip, which has sources only

    def hook(path: str) -> FileFinder:
        if path != root and not path.startswith(root + os.sep):
            raise ImportError(f"{path} is not a folder of {__name__}")
        return FileFinder(path, (SourceFileLoader, SOURCE_SUFFIXES))

    sys.path_hooks.insert(0, hook)
    for cached in [path for path in sys.path_importer_cache if path.startswith(root)]:
        del sys.path_importer_cache[cached]


if os.environ.get("COMETMQ_BUILD") == "interpreted":
    _prefer_sources()
