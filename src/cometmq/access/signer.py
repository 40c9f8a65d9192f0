"""Signs the requests of a server to other servers, such as those of a slave to its master.

    innerClientAuthenticationCredentials={"accessKey":"…","secretKey":"…"}

Source: BrokerController.initialRpcHooks and AuthConfig, RocketMQ 5.3.
"""

from __future__ import annotations

import msgspec

from cometmq.model.errors import ConfigError
from cometmq.protocol.command import Command
from cometmq.protocol.signature import SigningKey, sign
from cometmq.remoting import OutgoingCall


class _Account(msgspec.Struct, rename="camel"):
    access_key: str
    secret_key: str


class RequestSigner:
    """Adds an account and its signature to each request.

    Args:
        credentials: the value of the setting.

    Raises:
        ConfigError: it is not as above; the text does not show it.
    """

    def __init__(self, credentials: str) -> None:
        try:
            account = msgspec.json.decode(credentials, type=_Account)
        except msgspec.MsgspecError:
            account = _Account("", "")
        if not account.access_key or not account.secret_key:
            raise ConfigError(
                "innerClientAuthenticationCredentials=(hidden): expected"
                ' {"accessKey":"…","secretKey":"…"}'
            )
        self._access_key = account.access_key
        self._signing_key = SigningKey(account.secret_key)

    def before_request(self, address: str, call: OutgoingCall) -> None:
        """Sign the current fields and body."""
        sign(call.fields, call.body, self._access_key, self._signing_key)

    def after_response(self, address: str, call: OutgoingCall, response: Command) -> None:
        """Do nothing."""
