"""Tables of the pipeline: each run adds the new orders of the topic, and makes the totals anew."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()
name_server = spark.conf.get("spark.orders.nameServer")
topic = spark.conf.get("spark.orders.topic")
ORDER = "`order` STRING NOT NULL, country STRING, amount DOUBLE NOT NULL"


@dp.temporary_view
def messages() -> DataFrame:
    return (
        spark.readStream.format("rocketmq")
        .option("nameServer", name_server)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("payload.format", "json")
        .option("payload.schema", ORDER)
        .load()
    )


@dp.table
def orders() -> DataFrame:
    good = spark.readStream.table("messages").where("value_error IS NULL")
    return good.select("broker_name", "queue_id", "queue_offset", "value.*")


@dp.table
def quarantine() -> DataFrame:
    bad = spark.readStream.table("messages").where("value_error IS NOT NULL")
    return bad.select("broker_name", "queue_id", "queue_offset", "value_error", "body")


@dp.materialized_view
def totals() -> DataFrame:
    by_country = spark.read.table("orders").groupBy("country")
    return by_country.agg(f.count("*").alias("orders"), f.sum("amount").alias("amount"))
