"""The errors of the Spark formats; each text names the topic, the queue and the range.

Spark shows only the text of an error, and pickles errors: each one is made of one text alone.
"""

from __future__ import annotations

from cometmq.model.errors import CometError


class SourceError(CometError):
    """The base of the errors of the formats."""


class OptionError(SourceError):
    """An option is unknown, missing, has the wrong type or contradicts another."""


class DataLossError(SourceError):
    """Rows to read are missing."""


class GoneError(DataLossError):
    """A queue, its topic or its read permission was removed."""


class UnreachableError(SourceError):
    """A name server or a broker did not respond, after all retries."""


class RangeError(SourceError):
    """A range of a queue or a file is shorter than planned."""


class BadRecordError(SourceError):
    """Bytes are not a valid record."""


class RowError(SourceError):
    """A row is not valid as a message."""


class DeliveryError(SourceError):
    """Messages were not acknowledged in time, or were refused; the text says if any is stored."""


class FencedError(SourceError):
    """A newer attempt of the same task writes its rows; this one cannot send any more."""


class NotExactlyOnceError(SourceError):
    """Brokers, rights or rows do not allow a write with ``delivery=exactly-once``."""


class PlaceError(SourceError):
    """A file or directory does not belong to a store."""
