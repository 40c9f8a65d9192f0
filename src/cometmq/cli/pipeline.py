"""``cometmq pipeline``: archives a log or topics with Spark.

Pipelines need the extra ``spark``; without it the command prints what to install.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from cometmq.model.errors import ConfigError

NEEDED = ("pyspark", "pyarrow", "deltalake")


def run(arguments: Sequence[str]) -> int:
    """Run the pipeline that the arguments name; return its exit code.

    Raises:
        ConfigError: Spark is not installed.
    """
    check_installed()
    from cometmq.spark.archive.command import main

    return main(arguments)


def script() -> Path:
    """Return the file to hand to ``spark-submit``."""
    import cometmq

    return Path(cometmq.__file__).parent / "spark" / "archive" / "__main__.py"


def check_installed() -> None:
    """Do nothing if pipelines can run here.

    Raises:
        ConfigError: says what to install.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"pipelines need {' and '.join(missing)}: install CometMQ with the extra 'spark'"
        )
