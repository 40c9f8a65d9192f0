"""The sources of a pipeline's messages, each given as one text.

    source := "brokers:" name servers      topics, through brokers: brokers:10.0.0.1:9876
            | "log:" place                 a store's directory or segments, on a disk or an address
            | "archive:" place             what the archive pipeline wrote
            | "parquet:" place             Parquet files with columns of the same names

All four give the same columns; what a source has not got is null.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

from cometmq.model.errors import ConfigError
from cometmq.model.topic import SYSTEM_PREFIX, SYSTEM_TOPICS, is_system_topic
from cometmq.spark import schema
from cometmq.spark.brokers import connect
from cometmq.spark.options.connection import ConnectionOptions
from cometmq.spark.options.parsing import parse_options
from cometmq.spark.pipelines.archive.reading import COLUMNS as ARCHIVE_COLUMNS
from cometmq.spark.pipelines.archive.reading import archived_files, read_archive
from cometmq.spark.pipelines.running.instants import instant_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BROKERS, LOG, ARCHIVE, PARQUET = "brokers", "log", "archive", "parquet"
KINDS = (BROKERS, LOG, ARCHIVE, PARQUET)
COLUMNS = {column.name: column for column in (*schema.CORE, schema.PROPERTIES, *schema.LOG_ONLY)}
"""Every column that a source can be asked for."""


@dataclass(frozen=True)
class Topics:
    """Which topics are read: some by name, some by how they begin, or all but the system's."""

    names: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()
    system: bool = False
    """Whether "all" means the system's topics too."""

    def has(self, topic: str) -> bool:
        """Whether a topic is among them."""
        if self.names or self.prefixes:
            return topic in self.names or topic.startswith(self.prefixes)
        return self.system or not is_system_topic(topic)

    def column(self, topic: Column) -> Column:
        """The same, for Spark."""
        if self.names or self.prefixes:
            among = topic.isin(*sorted(self.names)) if self.names else F.lit(False)
            for prefix in self.prefixes:
                among = among | topic.startswith(prefix)
            return among
        return F.lit(True) if self.system else ~_is_system(topic)

    @property
    def told(self) -> str:
        """The choice in words."""
        parts = [*sorted(self.names), *(f"{prefix}*" for prefix in self.prefixes)]
        return ", ".join(parts) or ("all" if self.system else "all but the system's own")


@dataclass(frozen=True)
class Span:
    """From when to when messages were stored; ms since 1970, the end excluded."""

    since_ms: int | None = None
    until_ms: int | None = None

    @classmethod
    def parse(cls, since: str, until: str) -> Span:
        """Read two times, each as `time_of` does; empty for none.

        Raises:
            ConfigError: one is neither, or the end is before the beginning.
        """
        span = cls(instant_ms("since", since), instant_ms("until", until))
        if (span.until_ms or 0) < (span.since_ms or 0) and span.until_ms is not None:
            raise ConfigError(f"until={until}: met a time before since={since}")
        return span

    def column(self, time: Column) -> Column:
        """Whether a time is within."""
        within = F.lit(True)
        if self.since_ms is not None:
            within = within & (time >= F.timestamp_millis(F.lit(self.since_ms)))
        if self.until_ms is not None:
            within = within & (time < F.timestamp_millis(F.lit(self.until_ms)))
        return within


@dataclass(frozen=True)
class Source:
    """Messages at one place."""

    kind: str
    place: str
    options: Mapping[str, str] = field(default_factory=dict)
    """More options of the format, such as those of an account."""

    @classmethod
    def parse(cls, text: str, options: Iterable[str] = ()) -> Source:
        """Read a source from text, and options as ``name=value``.

        Raises:
            ConfigError: it is of no known kind, or an option has no ``=``.
        """
        kind, _, place = text.partition(":")
        if kind not in KINDS or not place:
            forms = "brokers:HOST:PORT, log:PLACE, archive:PLACE or parquet:PLACE"
            raise ConfigError(f"source {text!r}: expected {forms}")
        return cls(kind, place, dict(map(_option, options)))

    @property
    def told(self) -> str:
        """The source as it was given, without its options, some of which are not for all eyes."""
        return f"{self.kind}:{self.place}"

    @property
    def connection(self) -> dict[str, str]:
        """How brokers are reached: the options that all formats that talk to them share."""
        names = {"rocketmq.namesrv.addr": self.place}
        return names | {
            name: value
            for name, value in self.options.items()
            if name.startswith(("rocketmq.acl.", "rocketmq.tls.", "request.", "fetchOffset."))
        }

    def topics(self, wanted: Topics) -> list[str] | None:
        """Which of the topics there are now; None where only reading everything would tell."""
        if self.kind == ARCHIVE:
            return sorted({f.topic for f in archived_files(self.place) if wanted.has(f.topic)})
        if self.kind != BROKERS:
            return None
        session = connect(parse_options(ConnectionOptions, self.connection))
        return [topic for topic in session.topics() if wanted.has(topic)]

    def messages(
        self,
        spark: SparkSession,
        topics: Topics,
        columns: Sequence[str],
        *,
        span: Span | None = None,
        past_damage: bool = False,
        **more: str,
    ) -> DataFrame:
        """Give the messages of some topics with some columns, in their order.

        Args:
            spark: the session; knows our formats.
            topics: which topics.
            columns: names out of ``COLUMNS``; few columns are read faster.
            span: when they were stored.
            past_damage: read on behind a damaged record of a log, instead of failing.
            more: options of the formats that read logs and brokers.
        """
        valid = ("record_valid",) if past_damage and self.kind == LOG else ()
        wanted = list(dict.fromkeys((*columns, "topic", "store_timestamp", *valid)))
        span = span or Span()
        if self.kind == BROKERS:
            found = self._from_brokers(spark, topics, wanted, span, more)
        elif self.kind == LOG:
            found = self._from_log(spark, topics, wanted, span, more)
        elif self.kind == ARCHIVE:
            found = self._from_archive(spark, topics, wanted, span)
        else:
            found = _typed(spark.read.options(**self.options).parquet(self.place), wanted)
        within = topics.column(F.col("topic")) & span.column(F.col("store_timestamp"))
        damaged = ~F.coalesce("record_valid", F.lit(True)) if "record_valid" in wanted else None
        if damaged is not None:
            within = within | damaged if "record_valid" in columns else within & ~damaged
        return found.where(within).select(*columns)

    def _from_brokers(
        self,
        spark: SparkSession,
        topics: Topics,
        columns: Sequence[str],
        span: Span,
        more: Mapping[str, str],
    ) -> DataFrame:
        there = self.topics(topics)
        if not there:
            return _nothing(spark, columns)
        asked = _asked(columns, schema.topic_columns(properties="properties" in columns))
        options = {"rocketmq.namesrv.addr": self.place, "subscribe": ",".join(there), **more}
        options |= _span_options(span)
        if "properties" in columns:
            options["includeProperties"] = "true"
        reader = spark.read.format("rocketmq").options(**{**options, **self.options})
        return _typed(reader.schema(schema.ddl(asked)).load(), columns)

    def _from_log(
        self,
        spark: SparkSession,
        topics: Topics,
        columns: Sequence[str],
        span: Span,
        more: Mapping[str, str],
    ) -> DataFrame:
        validated = "record_valid" in columns
        known = schema.log_columns(properties="properties" in columns, validate=validated)
        options = dict(more)
        if "properties" in columns:
            options["includeProperties"] = "true"
        if validated:
            options |= {"validate": "true", "badRecords": "permissive"}
        if topics.names and not topics.prefixes:
            options["subscribe"] = ",".join(sorted(topics.names))
        if span.since_ms is not None:
            options["startingTimestamp"] = str(span.since_ms)
        reader = spark.read.format("rocketmq-log").options(**{**options, **self.options})
        return _typed(reader.schema(schema.ddl(_asked(columns, known))).load(self.place), columns)

    def _from_archive(
        self, spark: SparkSession, topics: Topics, columns: Sequence[str], span: Span
    ) -> DataFrame:
        there = self.topics(topics)
        if not there:
            return _nothing(spark, columns)
        known = {column.name for column in ARCHIVE_COLUMNS}
        found = read_archive(
            spark,
            self.place,
            topics=there,
            columns=[name for name in columns if name in known],
            since_ms=span.since_ms,
            until_ms=span.until_ms,
        )
        return _typed(found, columns)


def column_ddl(names: Iterable[str]) -> str:
    """The columns of these names in Spark's words."""
    return schema.ddl(COLUMNS[name] for name in names)


def _nothing(spark: SparkSession, columns: Sequence[str]) -> DataFrame:
    return spark.createDataFrame([], column_ddl(columns).replace(" NOT NULL", ""))


def _typed(found: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Give these columns, with nulls for those that are not there."""
    there = set(found.columns)
    return found.select(
        *(
            (F.col(name) if name in there else F.lit(None)).cast(COLUMNS[name].ddl).alias(name)
            for name in columns
        )
    )


def _asked(columns: Sequence[str], known: Sequence[schema.Column]) -> tuple[schema.Column, ...]:
    there = {column.name for column in known}
    return schema.chosen(known, [name for name in columns if name in there])


def _span_options(span: Span) -> dict[str, str]:
    options = {}
    if span.since_ms is not None:
        options["startingTimestamp"] = str(span.since_ms)
        options["startingOffsetsByTimestampStrategy"] = "latest"
    if span.until_ms is not None:
        options["endingTimestamp"] = str(span.until_ms)
    return options


def _is_system(topic: Column) -> Column:
    return topic.isin(*sorted(SYSTEM_TOPICS)) | topic.startswith(SYSTEM_PREFIX)


def _option(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found or not name.strip():
        raise ConfigError(f"option {text!r}: expected name=value")
    return name.strip(), value.strip()
