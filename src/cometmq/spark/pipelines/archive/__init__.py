"""The archive: a log as Parquet, its manifest, its tables, and the pipeline that writes it."""

from cometmq.spark.pipelines.archive.log_identity import verified_to
from cometmq.spark.pipelines.archive.manifest import ArchiveFile, Entry, Manifest
from cometmq.spark.pipelines.archive.pipeline import PIPELINE, ArchiveSettings, archive
from cometmq.spark.pipelines.archive.reading import archived_files, read_archive

__all__ = [
    "ArchiveFile",
    "Entry",
    "Manifest",
    "verified_to",
    "PIPELINE",
    "ArchiveSettings",
    "archive",
    "archived_files",
    "read_archive",
]
