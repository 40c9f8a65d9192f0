"""CometMQ: a durable message queue in Python, with the protocol and files of Apache RocketMQ.

This module holds the version only, so that importing one part never loads another: users import
``cometmq.client``, ``cometmq.testing`` and so on. The names of a first program, such as
``cometmq.Producer``, load their module at their first use, as all names of ``cometmq.client`` do.

The installation compiles the hot modules if it finds a C compiler. ``COMETMQ_BUILD=interpreted`` in
the environment makes Python load their sources instead.
"""

import os

TYPE_CHECKING = False  # as in typing, which takes longer to load than this package
if TYPE_CHECKING:
    from cometmq.client import *  # noqa: F403
    from cometmq.client import Message, Producer, PushConsumer, StoredMessage

__all__ = ["Message", "Producer", "PushConsumer", "StoredMessage", "__version__"]
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


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name in ("client", "embedded", "testing"):
            return import_module(f"cometmq.{name}")
        if name[0].isupper():  # unlike modules: an import of one must not load the client
            client = import_module("cometmq.client")
            if name in client.__all__:
                return getattr(client, name)
        from cometmq.model.missing_names import missing_name

        raise missing_name(__name__, name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, "client", "embedded", "testing"})


if os.environ.get("COMETMQ_BUILD") == "interpreted":
    _prefer_sources()
