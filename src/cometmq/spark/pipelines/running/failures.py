"""The cause of a failed pipeline in one line.

Spark's exceptions contain the stacks of Python and Java, and the plan of the query. The error that
a driver or an executor raised is one line among them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from cometmq.model.errors import ConfigError
from cometmq.spark.errors import OptionError

WRONG_USAGE = (ConfigError, OptionError)
_PACKAGES = ("pyspark", "py4j")
_OURS = re.compile(r"^cometmq\.(?:\w+\.)*(\w+): (.+)$", re.MULTILINE)
_ANY = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception)): (.+)$", re.MULTILINE)


class Failure(NamedTuple):
    """What went wrong."""

    kind: str
    """Name of the exception class."""
    text: str
    wrong_usage: bool
    """Whether a setting or an option is wrong."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def is_from_spark(problem: BaseException) -> bool:
    """Whether Spark raised this: a query, a job or the connection to the JVM failed."""
    return type(problem).__module__.partition(".")[0] in _PACKAGES


def failure_of(problem: BaseException) -> Failure:
    """Return what an exception reports, without Spark's stacks."""
    kind, text = type(problem).__name__, str(problem)
    if not is_from_spark(problem):
        return Failure(kind, text, isinstance(problem, WRONG_USAGE))
    causes = _OURS.findall(text) or _ANY.findall(text)
    if causes:
        kind, text = causes[-1]
    else:
        text = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return Failure(kind, text, kind in {each.__name__ for each in WRONG_USAGE})
