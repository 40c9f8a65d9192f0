"""The errors of the Spark formats; each text names the topic, the queue and the range.

SourceError               the base of these errors
├── OptionError           an option is unknown, missing, has the wrong type or contradicts another
├── DataLossError         rows to read are missing
│   └── GoneError         the queue, its topic or its read permission was removed
├── UnreachableError      a name server or a broker did not respond, after all retries
├── RangeError            a range of a queue or a file is shorter than planned
├── BadRecordError        bytes are not a valid record
├── RowError              a row is not valid as a message
├── DeliveryError         messages were not acknowledged in time, or were refused
├── FencedError           a newer attempt of the same task writes its rows
├── NotExactlyOnceError   brokers, rights or rows do not allow a write with delivery=exactly-once
└── PlaceError            a file or directory does not belong to a store

Spark shows the text of an error only, and carries errors between processes: so each one is made
of one text and nothing else.
"""

from __future__ import annotations

from cometmq.model.errors import CometError


class SourceError(CometError):
    """A format cannot do what was asked."""


class OptionError(SourceError):
    """An option is unknown, missing, of the wrong kind or at odds with another."""


class DataLossError(SourceError):
    """Rows that were asked for are not there any more."""


class GoneError(DataLossError):
    """A queue, its topic or the right to read it is gone for good."""


class UnreachableError(SourceError):
    """A name server or a broker did not answer, however often it was asked."""


class RangeError(SourceError):
    """A range of a queue or a file came out shorter than it was planned."""


class BadRecordError(SourceError):
    """Bytes that should be a record are not one."""


class RowError(SourceError):
    """A row cannot become a message."""


class DeliveryError(SourceError):
    """Messages were not acknowledged in time, or were refused; the text says if any is stored."""


class FencedError(SourceError):
    """A newer attempt of the same task writes its rows; this one cannot send any more."""


class NotExactlyOnceError(SourceError):
    """Rows cannot be written exactly once; the text has the reason."""


class PlaceError(SourceError):
    """A file or directory is not what a store's should be."""
