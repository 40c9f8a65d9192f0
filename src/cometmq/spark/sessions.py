"""Spark sessions with the settings of our sources."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

from cometmq.spark import register
from cometmq.spark.java import find_java

LOOPBACK = "127.0.0.1"


def session_settings(
    cores: int = 2, memory: str = "2g", master: str | None = None
) -> dict[str, str]:
    """Give the settings of our sessions: no web page, times in UTC, few shuffle parts.

    The driver keeps to loopback, unless the master is on another machine.
    """
    is_near = master is None or master.startswith("local") or LOOPBACK in master
    loopback = {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
    return {
        **(loopback if is_near else {}),
        "spark.driver.memory": memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(cores),
    }


def local_session(
    cores: int = 2, memory: str = "2g", *, master: str | None = None, **conf: object
) -> SparkSession:
    """Give a session that knows our formats; the running one if there is one.

    Args:
        cores: of this machine, and how many parts a shuffle has.
        memory: of the JVM; the Python workers come on top.
        master: another master than this process, as ``spark://host:port``.
        conf: further settings, with ``_`` for ``.`` in their names; or pass ``**{"spark.x": 1}``.

    Raises:
        SparkStartError: there is no Java.
    """
    find_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("cometmq").master(master or f"local[{cores}]")
    for name, value in {**session_settings(cores, memory, master), **_named(conf)}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def _named(conf: Mapping[str, object]) -> dict[str, str]:
    """Settings by Spark's names; a name without a point has ``_`` instead of each."""
    named = {name if "." in name else name.replace("_", "."): value for name, value in conf.items()}
    return {name: _text(value) for name, value in named.items()}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
