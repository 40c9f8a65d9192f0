"""Shows the right line for an attribute that other libraries' classes have."""

from __future__ import annotations

from typing import NoReturn


class Missing:
    """An attribute that other libraries' classes have and this class lacks.

    Reading it raises an AttributeError that shows the right line. With a ``__getattr__`` instead,
    Python would read every attribute of the class more slowly.

    Args:
        name: the attribute.
        line: the line to write instead.
    """

    def __init__(self, name: str, line: str) -> None:
        self._name = name
        self._line = line

    def __get__(self, instance: object, owner: type) -> NoReturn:
        text = f"{owner.__name__!r} object has no attribute {self._name!r}: write {self._line}"
        raise AttributeError(text)
