"""Which port of a broker to send to.

Source: MixAll.brokerVIPChannel, RocketMQ 5.3.
"""

from __future__ import annotations

VIP_PORT_STEP = 2


def vip_address(address: str) -> str:
    """Give the address of a broker's second port, which takes sends and no pulls.

    Source: MixAll.brokerVIPChannel, RocketMQ 5.3.
    """
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) - VIP_PORT_STEP}"
