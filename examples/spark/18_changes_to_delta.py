"""Apply a database's changes to a Delta table: JSON of Debezium or of Canal in a topic.

The table has one row for each id, and each change is applied once, in the order of the database,
however often it comes. A deleted row stays as a mark without its values, so that an older change
that comes again does not bring it back: query ``WHERE NOT deleted``. Envelopes that are damaged are
in the table ``[table]_damaged``. Run: ``spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0
examples/spark/18_changes_to_delta.py [debezium or canal] [name server] [topic] [table]
[always or once] [batch] [batches between compactions]``.
"""

import sys

from pyspark.sql import DataFrame

from cometmq.spark.sessions import local_session

SOURCE = "orders"  # the table of the database
COLUMNS = {"id": "BIGINT", "customer": "STRING", "state": "STRING", "amount": "DECIMAL(12, 2)"}
POSITION = "topic STRING, broker_name STRING, queue_id INT, queue_offset BIGINT"
MARKS_DAYS = 30  # longer than the age of an older change that comes again


def struct(kinds: dict[str, str], needed: str = "") -> str:
    fields = (f"{name}: {kind}{' NOT NULL' * (name == needed)}" for name, kind in kinds.items())
    return f"STRUCT<{', '.join(fields)}>"


ROW = struct(COLUMNS, "id")
TEXTS = dict.fromkeys(COLUMNS, "STRING")  # all values of Canal are texts
ENVELOPES = {
    "debezium": f"op STRING NOT NULL, ts_ms BIGINT, before {ROW}, after {ROW},"
    " source STRUCT<table: STRING, lsn: BIGINT, ts_ms: BIGINT> NOT NULL",
    "canal": "type STRING NOT NULL, table STRING, es BIGINT, ts BIGINT,"
    f" data ARRAY<{struct(TEXTS, 'id')}>, old ARRAY<{struct(TEXTS)}>",
}
# Each envelope as changes: the row of an id, whether it is deleted, and its version. Versions of
# one id are compared from left to right.
CHANGES = {
    "debezium": """
        SELECT coalesce(value.after, value.before) AS row, value.op = 'd' AS deleted,
            named_struct('committed', coalesce(value.source.lsn, value.source.ts_ms, 0),
                'read', coalesce(value.ts_ms, 0), 'queue_offset', queue_offset, 'nth', 0) AS version
        FROM envelopes
        WHERE value.op IN ('c', 'r', 'u', 'd') AND value.source.table = '{source}'""",
    # The array ``old`` has what an update changed. An id in it is that of a row that is gone.
    "canal": """
        WITH rows AS (
            SELECT value, queue_offset, nth, CAST(new AS {row}) AS new,
                CAST(get(value.old, nth).id AS BIGINT) AS old_id
            FROM envelopes LATERAL VIEW posexplode(value.data) AS nth, new
            WHERE value.type IN ('INSERT', 'UPDATE', 'DELETE') AND value.table = '{source}'
        )
        SELECT change.row, change.deleted,
            named_struct('committed', coalesce(value.es, 0), 'read', coalesce(value.ts, 0),
                'queue_offset', queue_offset, 'nth', 2 * nth + change.last) AS version
        FROM rows LATERAL VIEW explode(array(
            named_struct('row', new, 'deleted', value.type = 'DELETE', 'last', 1),
            named_struct('row', named_struct({old}), 'deleted', true, 'last', 0)
        )) AS change
        WHERE change.row.id IS NOT NULL""",
}


def main(
    envelope: str = "debezium",
    name_server: str = "127.0.0.1:9876",
    topic: str = "changes",
    table: str = "orders_now",
    how: str = "once",
    batch: str = "100000",
    compact_every: str = "100",
) -> None:
    spark = local_session(
        **{
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }
    )
    target, damaged = f"delta.`{table}`", f"delta.`{table}_damaged`"
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items() if name != "id")
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {target} (id BIGINT NOT NULL, {columns}, deleted BOOLEAN,"
        " version STRUCT<committed: BIGINT, read: BIGINT, queue_offset: BIGINT, nth: INT>)"
        " USING delta"
    )
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {damaged} ({POSITION}, value_error STRING, body BINARY)"
        " USING delta"
    )
    old = ", ".join(
        f"'{name}', " + ("old_id" if name == "id" else f"CAST(NULL AS {kind})")
        for name, kind in COLUMNS.items()
    )
    changes = CHANGES[envelope].format(source=SOURCE, row=struct(COLUMNS), old=old)
    values = ", ".join(
        f"IF(newest.deleted AND '{name}' <> 'id', NULL, newest.row.{name}) AS {name}"
        for name in COLUMNS
    )

    def apply(envelopes: DataFrame, number: int) -> None:
        session = envelopes.sparkSession
        envelopes.persist()
        envelopes.createOrReplaceTempView("envelopes")
        session.sql(f"""
            MERGE INTO {damaged} AS there USING (
                SELECT topic, broker_name, queue_id, queue_offset, value_error, body
                FROM envelopes WHERE value_error IS NOT NULL
            ) AS new
            ON there.topic = new.topic AND there.broker_name = new.broker_name
                AND there.queue_id = new.queue_id AND there.queue_offset = new.queue_offset
            WHEN NOT MATCHED THEN INSERT *""")
        # MERGE takes one change for an id: the newest.
        session.sql(f"""
            MERGE WITH SCHEMA EVOLUTION INTO {target} AS there USING (
                SELECT {values}, newest.deleted, newest.version FROM (
                    SELECT max_by(struct(*), version) AS newest FROM ({changes}) GROUP BY row.id
                )
            ) AS new
            ON there.id = new.id
            WHEN MATCHED AND new.version > there.version THEN UPDATE SET *
            WHEN NOT MATCHED THEN INSERT *""")
        envelopes.unpersist()
        # Only between two micro-batches: a MERGE fails if the files that it reads are replaced.
        if (number + 1) % int(compact_every) == 0:
            age = f"unix_millis(current_timestamp() - INTERVAL {MARKS_DAYS} DAYS)"
            session.sql(f"DELETE FROM {target} WHERE deleted AND version.read < {age}")
            session.sql(f"OPTIMIZE {target}")
            session.sql(f"VACUUM {target}")

    messages = (
        spark.readStream.format("rocketmq")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", batch)
        .option("payload.format", "json")
        .option("payload.schema", ENVELOPES[envelope])
        .load()
    )
    writer = messages.writeStream.foreachBatch(apply)
    writer = writer.option("checkpointLocation", f"{table}/_checkpoint")
    if how == "once":
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()
    print(f"{spark.sql(f'SELECT * FROM {target} WHERE NOT deleted').count()} rows in {table}")


if __name__ == "__main__":
    main(*sys.argv[1:])
