# cython: language_level=3
"""Matches messages from compiled code, as RocketMQ's loop is compiled by its JVM."""

from cometmq.sql92.expression cimport Expression


def count_matches(Expression expression, list messages):
    """Return how many property strings match."""
    cdef Py_ssize_t matching = 0
    cdef bytes data
    for data in messages:
        matching += expression.matches_in(data, 0, len(data))
    return matching
