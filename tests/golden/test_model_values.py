"""Names, flags and delay levels, with the verdicts of RocketMQ's Java code."""

from __future__ import annotations

import pytest

from cometmq.model import property_names
from cometmq.model.delay import DelayLevels
from cometmq.model.errors import ConfigError, InvalidNameError
from cometmq.model.flags import pull_sys_flag, transaction_type
from cometmq.model.namespace import namespace_of, without_namespace, wrap_namespace
from cometmq.model.topic import (
    HALF_TOPIC,
    MAPPING_TOPIC,
    OP_HALF_TOPIC,
    PRODUCER_SESSION_TOPIC,
    SEND_FORBIDDEN_TOPICS,
    SYSTEM_TOPICS,
    check_group_name,
    check_topic_name,
    is_system_topic,
)
from golden.later import LATER_PARTS
from golden.recordings import VERSIONS, values

for_each_version = pytest.mark.parametrize("version", VERSIONS)
ONLY_IN_5 = {"CHECKPOINT_TOPIC"}
ONLY_OURS = {MAPPING_TOPIC, PRODUCER_SESSION_TOPIC}


def accepts_topic(name: str) -> bool:
    try:
        check_topic_name(name)
    except InvalidNameError:
        return False
    return True


def accepts_group(name: str) -> bool:
    try:
        check_group_name(name)
    except InvalidNameError:
        return False
    return True


@for_each_version
def test_names_of_topics_and_groups(version: str) -> None:
    for case in values(version, "topic_names")["cases"]:
        name = case["topic"]
        assert accepts_topic(name) == case["valid"] == (case["client_check"] == "ok"), name
        assert accepts_group(name) == (case["client_group_check"] == "ok"), name
        assert (name in SEND_FORBIDDEN_TOPICS) == case["send_forbidden"], name
        if name not in ONLY_IN_5 or version == "5.3.3":
            assert is_system_topic(name) == case["system"], name


@for_each_version
def test_lists_of_topics_with_a_meaning(version: str) -> None:
    recorded = values(version, "topic_names")
    later = ONLY_IN_5 if version == "4.9.7" else set()

    assert SYSTEM_TOPICS - later == set(recorded["system_topics"])
    assert set(recorded["send_forbidden_topics"]) == SEND_FORBIDDEN_TOPICS - ONLY_OURS


@for_each_version
def test_namespaces(version: str) -> None:
    for case in values(version, "misc")["namespaces"]:
        namespace, resource = case["namespace"], case["resource"]
        assert wrap_namespace(namespace, resource) == case["wrapped"], case
        assert without_namespace(resource) == case["without"], case
        assert namespace_of(resource) == case["namespace_of"], case
        if case["without_given"] is not None:
            assert without_namespace(resource, namespace) == case["without_given"], case


@for_each_version
def test_flags_of_pulls(version: str) -> None:
    for case in values(version, "misc")["pull_sys_flags"]:
        flag = case.pop("sys_flag")
        assert pull_sys_flag(**case) == flag, case


@for_each_version
def test_each_part_of_a_mixed_file_is_tested_or_named_for_later(version: str) -> None:
    tested = {"namespaces", "pull_sys_flags"} | (
        {"recall_handles"} if version == "5.3.3" else set()
    )
    later = set(LATER_PARTS["misc"])
    assert set(values(version, "misc")) <= tested | later
    assert not tested & later


@for_each_version
def test_delay_levels(version: str) -> None:
    for case in values(version, "delay_levels")["cases"]:
        if not case["ok"]:
            with pytest.raises(ConfigError):
                DelayLevels.parse(case["levels"])
            continue
        levels = DelayLevels.parse(case["levels"])
        assert levels.highest == case["max_level"], case
        delays_ms = {level: levels.delay_ms(int(level)) for level in case["table_ms"]}
        assert delays_ms == case["table_ms"]


@for_each_version
def test_names_and_flags_of_transactions(version: str) -> None:
    recorded = values(version, "transaction")

    assert recorded["half_topic"] == HALF_TOPIC
    assert recorded["op_topic"] == OP_HALF_TOPIC
    for case in recorded["sys_flags"]:
        flag = case["sys_flag"]
        assert transaction_type(flag) == case["transaction_value"]


def test_names_of_properties() -> None:
    recorded = values("5.3.3", "transaction")
    ours = {
        value
        for name, value in vars(property_names).items()
        if name.isupper() and isinstance(value, str)
    }

    assert set(recorded["message_property_names"]) <= ours
    assert set(recorded["reserved_property_names"]) == property_names.RESERVED, (
        set(recorded["reserved_property_names"]) ^ property_names.RESERVED
    )
    assert recorded["transaction_id_property"] == property_names.TRANSACTION_ID
