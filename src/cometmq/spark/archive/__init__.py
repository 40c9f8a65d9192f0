"""Archives a log or topics into a Delta or Iceberg table, and reads the table."""

from cometmq.spark.archive.log import (
    ArchiveLogSettings,
    ArchiveResult,
    archive_log,
    archived_to,
)
from cometmq.spark.archive.reading import read_archive
from cometmq.spark.archive.tables import TableSettings
from cometmq.spark.archive.topics import ArchiveTopicsSettings, archive_topics

__all__ = [
    "TableSettings",
    "ArchiveLogSettings",
    "ArchiveResult",
    "archive_log",
    "ArchiveTopicsSettings",
    "archive_topics",
    "archived_to",
    "read_archive",
]
