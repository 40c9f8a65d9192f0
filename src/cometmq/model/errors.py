"""The errors of CometMQ, from the most general to the ones that name their cause.

CometError
├── ProtocolError          the peer broke the wire format: its connection is closed
├── ResponseError          the peer said no, with a code and a remark
├── RemotingError          no answer: connecting failed, time ran out, the connection was lost
├── StoreError             the store is corrupt, full, shut or was asked for what it never had
├── InvalidMessageError    a message breaks a limit; nothing was sent or stored
├── InvalidNameError       a topic's or group's name breaks the rules
└── ConfigError            a setting is unknown or out of range

Source: ours.
"""


class CometError(Exception):
    """Any error that CometMQ raises on purpose."""


class ProtocolError(CometError):
    """The peer broke the wire format; the connection cannot go on."""


class ResponseError(CometError):
    """The peer answered with a code other than success.

    Args:
        code: the response code as on the wire.
        remark: the peer's own words, perhaps empty.
    """

    def __init__(self, code: int, remark: str = "") -> None:
        super().__init__(f"response code {int(code)}: {remark}")
        self.code = int(code)
        self.remark = remark


class RemotingError(CometError):
    """No answer came; whether the peer acted on the request is unknown."""


class StoreError(CometError):
    """The store cannot do what was asked."""


class InvalidMessageError(CometError):
    """The message breaks a limit; it was neither sent nor stored."""


class InvalidNameError(CometError):
    """The name of a topic or a group breaks the rules for names."""


class ConfigError(CometError):
    """A setting is unknown, of the wrong kind or out of range."""
