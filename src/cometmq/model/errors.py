"""The base classes of all errors.

CometError
├── ProtocolError          the peer violated the wire format; its connection is closed
├── ResponseError          the peer refused a request, with a code and a remark
├── RemotingError          no response: connecting failed, timeout, connection lost
├── StoreError             the store is corrupt, full, closed or locked
├── InvalidMessageError    a message breaks a limit; nothing was sent or stored
├── InvalidNameError       a topic's or group's name breaks the rules
├── InvalidMessageIdError  a text is not the id of a message
└── ConfigError            a setting is unknown or out of range
"""


class CometError(Exception):
    """The base of every error that CometMQ raises.

    Example:
        try:
            await producer.send(Message(topic="no blanks", body=b"42"))
        except CometError as error:
            print(error)
    """


class ProtocolError(CometError):
    """The peer violated the wire format; the connection is closed.

    Example:
        try:
            await consumer.pull(queue, 0)
        except ProtocolError as error:
            print(error)
    """


CODE_NAMES: dict[int, str] = {}
"""RocketMQ's names of response codes. `cometmq.protocol.codes`, which has them, fills it."""


class ResponseError(CometError):
    """The response has a code other than success.

    Args:
        code: the response code as on the wire.
        remark: the text of the peer, perhaps empty.

    Example:
        try:
            await admin.consumer_connections("no-such-group")
        except ResponseError as error:
            print(error.code, error.remark)
    """

    def __init__(self, code: int, remark: str = "") -> None:
        super().__init__(code, remark)
        self.code = int(code)
        self.remark = remark
        self.address = ""
        """The server that refused; empty if it is not known."""

    def __str__(self) -> str:
        name = CODE_NAMES.get(self.code)
        code = f"response code {self.code}" + (f" ({name})" if name else "")
        return f"{code}{f' of {self.address}' if self.address else ''}: {self.remark}"


class RemotingError(CometError):
    """No response; it is unknown whether the peer processed the request.

    Example:
        try:
            await admin.broker_runtime_info("127.0.0.1:1")
        except RemotingError as error:
            print(error)
    """


class StoreError(CometError):
    """The base of the errors of stores.

    Example:
        damaged = folder / "client-1" / "audit" / "offsets.json"
        damaged.parent.mkdir(parents=True)
        damaged.write_text("{")
        try:
            await LocalOffsetStore(folder, "client-1", "audit").load()
        except StoreError as error:
            print(error)
    """


class InvalidMessageError(CometError):
    """The message breaks a limit; not sent.

    Example:
        try:
            await producer.send(Message(topic="orders", body=b""))
        except InvalidMessageError as error:
            print(error)
    """


class InvalidNameError(CometError):
    """The name of a topic or a group is invalid.

    Args:
        remark: RocketMQ's words, which servers respond.
        met: what they do not say, such as the name.

    Example:
        try:
            await producer.send(Message(topic="no blanks", body=b"42"))
        except InvalidNameError as error:
            print(error)
    """

    def __init__(self, remark: str, met: str = "") -> None:
        super().__init__(remark + met)
        self.remark = remark


class InvalidMessageIdError(CometError):
    """The text is not the id of a message.

    Example:
        try:
            await admin.message_at("no-id")
        except InvalidMessageIdError as error:
            print(error)
    """


class ConfigError(CometError):
    """A setting is unknown, has the wrong type or is out of range.

    Example:
        try:
            Producer(name_server, group="shop", retries=-1)
        except ConfigError as error:
            print(error)
    """
