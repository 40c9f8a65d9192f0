"""The refusals of producer sessions: what was met, what was expected, and what to do."""

from __future__ import annotations

from typing import Final

from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import ResponseCode

EPOCH_MAX: Final = 2**62
BROKERS_CHARS_MAX: Final = 16_384
"""The longest list of the brokers of a session, with a separator for each."""


class FencedError(ResponseError):
    """Another attempt has opened the session with this epoch or a newer one.

    Args:
        topic, name: the session.
        epoch: the epoch of the request.
        newest: the newest epoch.
    """

    def __init__(self, topic: str, name: str, epoch: int, newest: int) -> None:
        super().__init__(
            ResponseCode.PRODUCER_FENCED,
            f"producer session {name} of topic {topic}: epoch {epoch} is fenced, a newer attempt"
            f" has epoch {newest}; this attempt cannot send any more",
        )
        self.newest = newest


def fenced(topic: str, name: str, epoch: int, newest: int) -> ResponseError:
    """Return the refusal of a send of an attempt that is not the newest."""
    return FencedError(topic, name, epoch, newest)


def unknown(topic: str, name: str, epoch: int, newest: int | None) -> ResponseError:
    """Return the refusal of a send with an epoch that the broker has not given or lost."""
    known = "the session is not known here" if newest is None else f"the newest is {newest}"
    return ResponseError(
        ResponseCode.PRODUCER_SESSION_UNKNOWN,
        f"producer session {name} of topic {topic}: epoch {epoch} is unknown, {known}: open it"
        " again, and read back what is stored",
    )


def batch_old(topic: str, name: str, batch: int, newest: int) -> ResponseError:
    """Return the refusal of an opening for an older batch."""
    return ResponseError(
        ResponseCode.PRODUCER_BATCH_OLD,
        f"producer session {name} of topic {topic}: batch {batch} is older than batch {newest}, for"
        " which the session was opened: expected that batch or a newer one",
    )


def not_owned(epoch: int) -> ResponseError:
    """Return the refusal of an epoch that no broker has given."""
    return ResponseError(
        ResponseCode.INVALID_PARAMETER, f"epoch {epoch}, expected at most {EPOCH_MAX}"
    )


def too_many_brokers(topic: str, name: str, count: int, chars: int) -> ResponseError:
    """Return the refusal of an opening at too many brokers."""
    return ResponseError(
        ResponseCode.INVALID_PARAMETER,
        f"producer session {name} of topic {topic}: {count} brokers with {chars} characters,"
        f" expected at most {BROKERS_CHARS_MAX} characters, over all attempts of a batch",
    )


def sessions_full(count: int, most: int, topic: str, of_topic: int, part: int) -> ResponseError:
    """Return the refusal of one more session."""
    return ResponseError(
        ResponseCode.PRODUCER_SESSIONS_FULL,
        f"{count} producer sessions, {of_topic} of topic {topic}: expected less than {most}, and"
        f" less than {part} of one topic; producerSessionsMax allows more, and with"
        " producerSessionExpiryMs unused ones are forgotten earlier",
    )
