"""Run on a Spark cluster of one master and one worker, which ends with this program.

As on a large cluster, executors are separate processes.
"""

import sys

from cometmq.spark.sessions import StandaloneCluster


def main(name_server: str = "127.0.0.1:9876", topic: str = "orders") -> None:
    with StandaloneCluster(cores=1, memory="1g") as cluster:
        spark = cluster.session(**{"spark.executor.memory": "512m"})
        reader = spark.read.format("rocketmq").option("nameServer", name_server)
        tags = reader.option("subscribe", topic).schema("tags STRING").load()
        print(f"{tags.count()} messages, counted by executors of {spark.sparkContext.master}")
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
