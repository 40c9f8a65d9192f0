"""Subscribers and publishers that a broker includes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Unpack

from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.constants import EMPTY

from cometmq.faststream.config import RocketBrokerConfig
from cometmq.faststream.options import (
    PublisherOptions,
    RegistratorOptions,
    SubscriberOptions,
)
from cometmq.faststream.registrator import RocketRegistrator

if TYPE_CHECKING:
    pass


class RocketPublisher(ArgsContainer):
    """A publisher of a `RocketRoute`; arguments as for `RocketRegistrator.publisher`."""

    def __init__(self, topic: str, **options: Unpack[PublisherOptions]) -> None:
        super().__init__(topic, **options)


class RocketRoute(SubscriberRoute):
    """A handler of a router; arguments as for `RocketRegistrator.subscriber`."""

    def __init__(
        self,
        call: Callable[..., Any],
        topic: str,
        *,
        publishers: Iterable[RocketPublisher] = (),
        **options: Unpack[SubscriberOptions],
    ) -> None:
        super().__init__(call, topic, publishers=publishers, **options)


class RocketRouter(RocketRegistrator, BrokerRouter[Any, RocketBrokerConfig]):
    """Subscribers and publishers whose topics have a prefix.

    Args:
        prefix: before each topic; letters, digits, ``-``, ``_``, ``%`` and ``|``.
        handlers: routes instead of decorators.
        routers: further routers that it includes.
        include_in_schema: whether the AsyncAPI document has them.
        options: for all its subscribers; see `RegistratorOptions`.
    """

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[RocketRoute] = (),
        *,
        routers: Iterable[RocketRegistrator] = (),
        include_in_schema: bool | None = None,
        **options: Unpack[RegistratorOptions],
    ) -> None:
        super().__init__(
            handlers=handlers,
            config=RocketBrokerConfig(
                prefix=prefix,
                ack_policy=options.get("ack_policy", EMPTY),
                broker_dependencies=options.get("dependencies", ()),
                broker_middlewares=options.get("middlewares", ()),
                broker_parser=options.get("parser"),
                broker_decoder=options.get("decoder"),
                include_in_schema=include_in_schema,
            ),
            routers=routers,
        )
