"""Signs the requests of a server to other servers, such as the requests of a slave to its master.

    innerClientAuthenticationCredentials={"accessKey":"…","secretKey":"…"}

Source: BrokerController.initialRpcHooks and AuthConfig, RocketMQ 5.3.
"""

from __future__ import annotations

import msgspec

from cometmq.model.errors import ConfigError
from cometmq.protocol.command import Command
from cometmq.protocol.signature import SigningKey, sign
from cometmq.remoting import OutgoingCall


class Credentials(msgspec.Struct, rename="camel"):
    """An account and its secret."""

    access_key: str
    secret_key: str

    def __repr__(self) -> str:
        """Return a text without the secret."""
        return f"<Credentials {self.access_key!r}>"


def credentials_of(text: str) -> Credentials:
    """Read the value of the setting.

    Raises:
        ConfigError: it is not as above; the text does not show it.
    """
    try:
        found = msgspec.json.decode(text, type=Credentials)
    except msgspec.MsgspecError:
        found = Credentials("", "")
    if not found.access_key or not found.secret_key:
        raise ConfigError(
            "innerClientAuthenticationCredentials=(hidden): expected"
            ' {"accessKey":"…","secretKey":"…"}'
        )
    return found


class RequestSigner:
    """Adds an account and its signature to each request.

    Args:
        credentials: the value of the setting.

    Raises:
        ConfigError: it is not as above; the text does not show it.
    """

    def __init__(self, credentials: str) -> None:
        account = credentials_of(credentials)
        self._access_key = account.access_key
        self._signing_key = SigningKey(account.secret_key)

    def before_request(self, address: str, call: OutgoingCall) -> None:
        """Sign the current fields and body."""
        sign(call.fields, call.body, self._access_key, self._signing_key)

    def after_response(self, address: str, call: OutgoingCall, response: Command) -> None:
        """Do nothing."""
