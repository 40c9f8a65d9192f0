"""Replaces the ``cython`` module if hot code runs interpreted and Cython is not installed.

Compiled modules never import it.
"""


class cython:  # noqa: N801 (the name of the module that it replaces)
    """The part of Cython's module that interpreted code uses."""

    compiled = False
    """Whether the importing module is compiled."""
