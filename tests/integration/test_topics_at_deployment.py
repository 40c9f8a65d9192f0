"""Runs the files, commands and example of the page about topics at deployment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.client.blocking import AdminClient, Producer
from cometmq.client.errors import TopicNotFoundError
from cometmq.testing import ThreadedCluster
from support.processes import examples
from support.processes.howto_pages import following

OFF = {"autoCreateTopicEnable": "false", "autoCreateSubscriptionGroup": "false"}
EXAMPLE = examples.FOLDER / "36_deploy_topics.py"


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster(brokers=2, settings=OFF) as running:
        yield running


def test_the_files_of_the_page_are_applied_at_each_deployment(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    with following("topics-at-deployment", tmp_path, name_servers=cluster.name_servers) as guide:
        first, second = guide.run_all(), guide.run_all()
    with AdminClient(cluster.name_servers) as admin:
        configs = admin.topic_configs("shop-orders")
        brokers = admin.cluster_info().broker_addr_table.values()
        mailing = [admin.group_config("shop-mailing", each.broker_addrs[0]) for each in brokers]

    assert first.rpartition("planned")[2] == second.rpartition("planned")[2]
    assert [config.write_queue_nums for config in configs.values()] == [8, 8]
    assert [group.retry_max_times if group else None for group in mailing] == [5, 5]


def test_the_example_creates_topics_once_and_removes_no_queue(cluster: ThreadedCluster) -> None:
    with AdminClient(cluster.name_servers) as admin, Producer(cluster.name_servers) as producer:
        for topic in ("shop-orders", "shop-order-events", "shop-mails"):
            admin.delete_topic(topic)
        with pytest.raises(TopicNotFoundError, match="no broker creates topics"):
            producer.send("shop-mails", b"hello")
        created, unchanged = (examples.run(EXAMPLE, cluster.name_servers) for _ in range(2))
        assert len(producer.fetch_queues("shop-mails")) == 8
        admin.create_topic("shop-mails", queues=5)
        with pytest.raises(AssertionError, match=r"shop-mails has 5 queues .*, expected at most 4"):
            examples.run(EXAMPLE, cluster.name_servers)

    assert created.count("created with") == 3
    assert {line.partition(": ")[2] for line in unchanged.splitlines()} == {"unchanged"}
