"""Settings made in programs."""

from __future__ import annotations

import pytest

from cometmq.client.settings import ClientSettings, ProducerSettings, PullSettings, PushSettings
from cometmq.model.errors import ConfigError


@pytest.mark.parametrize("kind", [ClientSettings, ProducerSettings, PullSettings, PushSettings])
def test_defaults_are_in_their_ranges(kind: type) -> None:
    assert kind() == kind()


@pytest.mark.parametrize(
    ("kind", "values", "reason"),
    [
        (ProducerSettings, {"retries": -1}, "retries=-1: expected a whole number"),
        (ProducerSettings, {"compress_level": 10}, "compress_level=10: .* from 0 to 9"),
        (PullSettings, {"pull_batch": 0}, "pull_batch=0: .* from 1 to 1024"),
        (ClientSettings, {"heartbeat_ms": 0}, "heartbeat_ms=0"),
    ],
)
def test_a_value_out_of_its_range_is_refused(
    kind: type, values: dict[str, int], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        kind(**values)
