"""A deprecated call fails the tests if it is ours, and only then."""

from __future__ import annotations

import warnings

import pytest

KINDS = (DeprecationWarning, PendingDeprecationWarning)


def warn(kind: type[Warning], module: str) -> None:
    """Warn as a call in a line of a module does."""
    warnings.warn_explicit("deprecated", kind, f"{module}.py", 1, module)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "module", ["cometmq", "cometmq.client.producer", __name__, "support.brokers.scripted"]
)
def test_a_deprecated_call_of_ours_is_an_error(kind: type[Warning], module: str) -> None:
    with pytest.raises(kind):
        warn(kind, module)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("module", ["asyncio.events", "google.protobuf", "cometmq_of_others"])
def test_a_deprecated_call_of_another_package_is_shown(kind: type[Warning], module: str) -> None:
    with warnings.catch_warnings(record=True) as shown:  # without its filters being changed
        warn(kind, module)
    assert [each.category for each in shown] == [kind]


def test_another_warning_of_another_package_is_an_error() -> None:
    with pytest.raises(ResourceWarning):
        warn(ResourceWarning, "asyncio.events")
