"""Remoting: asyncio carries commands between peers, in both directions over one connection."""

from cometmq.remoting.client import RemotingClient
from cometmq.remoting.config import RemotingSettings, TlsClientSettings, TlsSettings
from cometmq.remoting.connection import Connection
from cometmq.remoting.errors import (
    CallTimeoutError,
    ConnectError,
    ConnectionLostError,
    TooManyCallsError,
    check,
)
from cometmq.remoting.hooks import OutgoingCall, RpcHook
from cometmq.remoting.peer import Peer
from cometmq.remoting.requests import Request, RequestHandler, Response, SuccessFormat, exclusive
from cometmq.remoting.server import RemotingServer
from cometmq.remoting.tasks import Supervisor
from cometmq.remoting.tls import outgoing_context

__all__ = [
    "RemotingServer",
    "RemotingClient",
    "Connection",
    "Peer",
    "Request",
    "Response",
    "SuccessFormat",
    "exclusive",
    "RequestHandler",
    "RpcHook",
    "OutgoingCall",
    "Supervisor",
    "RemotingSettings",
    "TlsSettings",
    "TlsClientSettings",
    "outgoing_context",
    "check",
    "ConnectError",
    "CallTimeoutError",
    "ConnectionLostError",
    "TooManyCallsError",
]
