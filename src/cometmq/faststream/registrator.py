"""What brokers and routers have: subscribers and publishers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack, cast

from faststream._internal.broker.registrator import Registrator
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber.call_item import CallsCollection

from cometmq.faststream.config import (
    RocketBrokerConfig,
    RocketPublisherConfig,
    RocketPublisherSpecificationConfig,
    RocketSubscriberConfig,
    RocketSubscriberSpecificationConfig,
)
from cometmq.faststream.options import PublisherOptions, SubscriberOptions
from cometmq.faststream.publisher import Publisher, RocketPublisherSpecification
from cometmq.faststream.subscriber import (
    RocketSubscriberSpecification,
    Subscriber,
    check_options,
)

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant
    from faststream._internal.types import BrokerMiddleware


class RocketRegistrator(Registrator[Any, RocketBrokerConfig]):
    """Registers subscribers and publishers."""

    def subscriber(  # type: ignore[override]
        self, topic: str, **options: Unpack[SubscriberOptions]
    ) -> Subscriber:
        """Subscribe handlers to a topic; the result is their decorator.

        Args:
            topic: the topic, without the prefixes of routers.
            options: see `SubscriberOptions`.

        Raises:
            SetupError: options exclude each other.
        """
        outer = cast("RocketBrokerConfig", self.config)
        config = RocketSubscriberConfig(
            topic=topic,
            options=options,
            no_reply=options.get("no_reply", False),
            _ack_policy=options.get("ack_policy", EMPTY),
            _outer_config=outer,
        )
        calls: CallsCollection[Any] = CallsCollection()
        described = RocketSubscriberSpecificationConfig(
            topic=topic,
            options=options,
            title_=options.get("title"),
            description_=options.get("description"),
            include_in_schema=options.get("include_in_schema", True),
        )
        made = Subscriber(config, RocketSubscriberSpecification(outer, described, calls), calls)
        check_options(topic, made)
        super().subscriber(made, persistent=options.get("persistent", True))
        return made.add_call(
            parser_=options.get("parser") or self._parser,
            decoder_=options.get("decoder") or self._decoder,
            codec_=options.get("codec"),
            dependencies_=options.get("dependencies", ()),
        )

    def publisher(  # type: ignore[override]
        self, topic: str, **options: Unpack[PublisherOptions]
    ) -> Publisher:
        """Return a publisher to a topic: a decorator that sends what a handler returns.

        Args:
            topic: the topic, without the prefixes of routers.
            options: see `PublisherOptions`.
        """
        outer = cast("RocketBrokerConfig", self.config)
        described = RocketPublisherSpecificationConfig(
            topic=topic,
            options=options,
            schema_=options.get("schema"),
            title_=options.get("title"),
            description_=options.get("description"),
            include_in_schema=options.get("include_in_schema", True),
        )
        made = Publisher(
            RocketPublisherConfig(topic=topic, options=options, _outer_config=outer),
            RocketPublisherSpecification(outer, described),
        )
        super().publisher(made, persistent=options.get("persistent", True))
        return made

    def include_router(
        self,
        router: Registrator[Any, Any],
        *,
        prefix: str = "",
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        include_in_schema: bool | None = None,
    ) -> None:
        """Include the subscribers and publishers of a router."""
        if not isinstance(router, RocketRegistrator):
            raise TypeError(
                f"include_router got a {type(router).__name__}, expected a RocketRouter"
            )
        super().include_router(
            router,
            prefix=prefix,
            dependencies=dependencies,
            middlewares=middlewares,
            include_in_schema=include_in_schema,
        )
