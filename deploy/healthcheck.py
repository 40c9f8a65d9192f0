"""Checks that servers respond to a request in time: ``healthcheck.py namesrv=9876 broker=10911``.

A server that accepts connections but does not respond fails the check.
"""

from __future__ import annotations

import socket
import sys

from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import decode_command, encode_command, request
from cometmq.protocol.frame import FrameDecoder

TIMEOUT_S = 5.0
REQUESTS = {
    "namesrv": RequestCode.GET_BROKER_CLUSTER_INFO,
    "broker": RequestCode.GET_BROKER_RUNTIME_INFO,
}


def check(server: str, port: int, timeout_s: float = TIMEOUT_S) -> None:
    """Send the server a read-only request; raise OSError unless it succeeds."""
    decoder = FrameDecoder()
    with socket.create_connection(("127.0.0.1", port), timeout_s) as connection:
        connection.sendall(encode_command(request(REQUESTS[server])))
        while (frame := decoder.next_frame()) is None:
            received = connection.recv(65536)
            if not received:
                raise OSError("it closed the connection")
            decoder.receive(received)
    response = decode_command(frame)
    if response.code != ResponseCode.SUCCESS:
        raise OSError(f"it responded with code {response.code}: {response.remark}")


def main(arguments: list[str]) -> int:
    """Check every server; name those that fail."""
    failed = 0
    for argument in arguments:
        server, _, port = argument.partition("=")
        if server not in REQUESTS or not port.isdecimal():
            print(f"{argument!r}: expected namesrv=PORT or broker=PORT", file=sys.stderr)
            return 2
        try:
            check(server, int(port))
        except OSError as error:
            print(f"{server} on port {port} does not serve: {error}", file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
