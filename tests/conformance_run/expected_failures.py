"""Tests of the conformance suites that fail because the server does not have a feature yet.

All of them are strict: a listed test that passes is an error, so remove the lines of a feature
when you build it. They run in every tier, because they fail at the server's first refusal. Only
the tests in ``SLOW_TO_FAIL``, which wait for their timeout, are left to ``make test-all``
(``COMETMQ_TIER=all``): other tests of the same features run in every tier.
"""

from __future__ import annotations

from expectations import Expected

EXPECTED = {"protocol": Expected()}
"""By suite; see ``run.py``."""

SLOW_TO_FAIL: tuple[str, ...] = ()
"""Expected failures that take five seconds and more each."""
