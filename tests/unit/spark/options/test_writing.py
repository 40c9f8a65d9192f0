"""Options of writing: what they are by default, and what is refused."""

from __future__ import annotations

import pytest

from cometmq.spark.errors import OptionError
from cometmq.spark.options.parsing import parse_options
from cometmq.spark.options.writing import AUTO, TopicWriteOptions

GIVEN = {"nameserver": "127.0.0.1:9876"}


def parsed(**options: str) -> TopicWriteOptions:
    named = {name.replace("_", "."): text for name, text in options.items()}
    return parse_options(TopicWriteOptions, GIVEN | named)


def test_only_the_name_servers_are_needed() -> None:
    options = parsed()
    assert (options.delivery, options.acknowledge, options.topic) == (AUTO, "safe", "")
    assert options.batch_bytes == 1 << 20


def test_names_are_those_that_spark_lowers() -> None:
    options = parsed(jobid="nightly", send_batchbytes="2048", send_acknowledge="stored")
    assert (options.job_id, options.batch_bytes, options.acknowledge) == ("nightly", 2048, "stored")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"send_batchbytes": "3000000", "send_pendingbytes": "2000000"}, "at most send.pendingByt"),
        ({"send_batchbytes": "4194304"}, "send.batchBytes"),
        ({"send_acknowledge": "perhaps"}, "safe, stored"),
        ({"subscribe": "orders"}, "option subscribe is unknown"),
        ({"rocketmq_acl_secretkey": "plain"}, "is a secret"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, str], why: str) -> None:
    with pytest.raises(OptionError, match=why):
        parsed(**options)
