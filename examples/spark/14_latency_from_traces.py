"""Print the latencies of messages, and what was not consumed or consumed twice, from traces.

Run: ``python examples/spark/14_latency_from_traces.py [name server] [trace topic]``.
"""

import sys

from pyspark.sql import functions as f

from cometmq.spark import traces
from cometmq.spark.sessions import local_session


def main(name_server: str = "127.0.0.1:9876", trace_topic: str = "RMQ_SYS_TRACE_TOPIC") -> None:
    spark = local_session()
    reader = spark.read.format("rocketmq").option("nameServer", name_server)
    records = traces.records(reader.option("subscribe", trace_topic).load()).cache()
    for row in traces.latencies(records).orderBy("step", f.desc("p99")).collect():
        print(
            f"{row.step} {row.topic} by {row.group}: {row['count']} in {row.p50} ms (p50),"
            f" {row.p99} ms (p99), {row.failed} failed"
        )
    lost = traces.unconsumed(records).groupBy("topic", "group", "reason").count()
    for row in lost.orderBy("topic", "group", "reason").collect():
        print(f"{row['count']} messages of {row.topic} not consumed by {row.group}: {row.reason}")
    print(f"{traces.consumed_twice(records).count()} messages consumed twice")


if __name__ == "__main__":
    main(*sys.argv[1:])
