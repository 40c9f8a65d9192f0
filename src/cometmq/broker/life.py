"""The life of a broker's features: what each does when the broker starts, changes and stops.

A feature is built with the core and with the features that it depends on, so the order in which
they are built is that of their dependencies. A broker calls, one after the other,

    start               before requests are accepted           in that order
    serve, begin        once the broker listens                in that order
    refuse              to take no more work                   in that order
    end                 to end work of the broker's own        dependents first
    drain               to respond to what waits               all at the same time
    leave               before connections are closed          in that order
    close               after connections are closed           all at the same time
    save                the last: write files and close them   in that order

and in between, at any time, what has happened: `role_changed`, `settings_changed`,
`connection_closed`, `before_truncation`. A feature leaves out the hooks that it does not need.

If a feature fails, the others are called all the same, except where something must not go on then:
the start, `before_sends` and `before_truncation`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from cometmq.broker.address import Endpoint
from cometmq.remoting import Connection
from cometmq.remoting.features import Feature
from cometmq.remoting.jobs import JobRunner

if TYPE_CHECKING:
    from cometmq.access.rights import Rights
    from cometmq.broker.cold_reads import ColdReads
    from cometmq.broker.core import Core

log = logging.getLogger(__name__)

JOBS_S = 0.5
"""How long a stop waits for jobs."""


class BrokerFeature:
    """One feature of a broker. Its attributes are what it offers to the features built after it.

    Args:
        core: of the broker.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    async def start(self) -> None:
        """Do what has to be done before the broker listens."""

    def serve(self, endpoint: Endpoint) -> Feature:
        """Return the request handlers, jobs and fast path.

        Args:
            endpoint: where the broker listens.
        """
        return Feature({})

    def rights(self) -> Mapping[int, Rights]:
        """Return what the requests need that it serves with any settings.

        They are the `RIGHTS` of the module ``rights`` in the folder of the feature, which a broker
        loads only if it checks requests.
        """
        name = f"{type(self).__module__.rpartition('.')[0]}.rights"
        if find_spec(name) is None:
            return {}
        rights: Mapping[int, Rights] = import_module(name).RIGHTS
        return rights

    async def begin(self, endpoint: Endpoint) -> None:
        """Begin what needs the broker to listen; requests are handled meanwhile."""

    # --- what happens -----------------------------------------------------------------------------

    def role_changed(self) -> None:
        """Take notice of another role; a new master does not accept sends yet."""

    async def before_sends(self) -> None:
        """Do what a new master does before it accepts sends; cancelled if the role changes."""

    async def take_over(self) -> None:
        """Do what a new master does after that; cancelled if the role changes."""

    async def settings_changed(self, changes: Mapping[str, str]) -> None:
        """Apply changed settings to what holds copies of them."""

    def connection_closed(self, connection: Connection) -> None:
        """Forget what belongs to a connection that has closed."""

    def before_truncation(self, log_end: int) -> None:
        """Forget what counts on records of the log that are about to be truncated.

        Raises:
            StoreError: the disk refused; the log is not truncated.
        """

    # --- the end ----------------------------------------------------------------------------------

    def refuse(self) -> None:
        """Take no more work."""

    async def end(self) -> None:
        """End the work that no request waits for."""

    async def drain(self) -> None:
        """Respond to what waits."""

    async def leave(self) -> None:
        """Give up the role: from now on another broker may be elected the master."""

    async def close(self) -> None:
        """End what the last requests may have needed."""

    def save(self) -> None:
        """Write to the files of this feature, and close them; called also after failures."""


class Ports(Protocol):
    """The ports of a broker, as far as its features end before they are closed."""

    def stop_accepting(self) -> None:
        """Accept no more connections."""

    async def stop(self) -> None:
        """Close all connections, once their requests are handled."""


class RoleChanges(Protocol):
    """Lets the features follow the role."""

    async def stop(self) -> None:
        """Follow it no more."""


class Life:
    """Calls the hooks of features.

    Args:
        features: in the order of their dependencies.
    """

    def __init__(self, features: Sequence[BrokerFeature]) -> None:
        self._features = tuple(features)
        self.jobs = JobRunner(())
        """Their work at intervals."""

    def serve(self, endpoint: Endpoint) -> list[Feature]:
        """Return what each of them serves."""
        served = [feature.serve(endpoint) for feature in self._features]
        self.jobs = JobRunner([job for each in served for job in each.jobs])
        return served

    def rights(self) -> dict[int, Rights]:
        """Return what the requests of all of them need."""
        return {code: each for feature in self._features for code, each in feature.rights().items()}

    async def start(self) -> None:
        """See `BrokerFeature.start`."""
        for feature in self._features:
            await feature.start()

    async def begin(self, endpoint: Endpoint) -> None:
        """Run the jobs; see `BrokerFeature.begin`."""
        self.jobs.start()
        for feature in self._features:
            await feature.begin(endpoint)

    def role_changed(self) -> None:
        """See `BrokerFeature.role_changed`."""
        self._tell(lambda feature: feature.role_changed())

    async def before_sends(self) -> None:
        """See `BrokerFeature.before_sends`."""
        for feature in self._features:
            await feature.before_sends()

    async def take_over(self) -> None:
        """See `BrokerFeature.take_over`."""
        await _each(self._features, lambda feature: feature.take_over())

    async def settings_changed(self, changes: Mapping[str, str]) -> None:
        """See `BrokerFeature.settings_changed`.

        Raises:
            CometError: one of them could not apply the changes, the others have.
        """
        for problem in await _each(self._features, lambda each: each.settings_changed(changes)):
            raise problem

    def connection_closed(self, connection: Connection) -> None:
        """See `BrokerFeature.connection_closed`."""
        self._tell(lambda feature: feature.connection_closed(connection))

    def before_truncation(self, log_end: int) -> None:
        """See `BrokerFeature.before_truncation`."""
        for feature in reversed(self._features):
            feature.before_truncation(log_end)

    async def stop(self, ports: Ports, roles: RoleChanges, cold_reads: ColdReads) -> None:
        """Refuse new requests, and wait for requests in progress.

        Args:
            ports: the connections.
            roles: calls the hooks for changes of the role.
            cold_reads: reads for the requests.
        """
        ports.stop_accepting()
        self._tell(lambda feature: feature.refuse())
        await roles.stop()
        await _each(reversed(self._features), lambda feature: feature.end())
        cold_reads.close()
        await all_of(feature.drain() for feature in self._features)
        await _each(self._features, lambda feature: feature.leave())
        await ports.stop()
        await all_of(feature.close() for feature in self._features)
        await self.jobs.stop(JOBS_S)

    def save(self) -> None:
        """See `BrokerFeature.save`."""
        self._tell(lambda feature: feature.save())

    def _tell(self, call: Callable[[BrokerFeature], object]) -> None:
        """Call a hook of all features in their order; a failure of one does not stop the others."""
        for feature in self._features:
            try:
                call(feature)
            except Exception:
                log.exception("a feature failed feature=%s", type(feature).__name__)


async def _each(
    features: Iterable[BrokerFeature], call: Callable[[BrokerFeature], Awaitable[None]]
) -> list[Exception]:
    """Call a hook of one feature after the other; return the failures, which stop none of them."""
    problems: list[Exception] = []
    for feature in features:
        try:
            await call(feature)
        except Exception as problem:
            log.exception("a feature failed feature=%s", type(feature).__name__)
            problems.append(problem)
    return problems


async def all_of(endings: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Close parts at the same time; a failure of one does not stop the others."""
    for outcome in await asyncio.gather(*endings, return_exceptions=True):
        if isinstance(outcome, Exception):
            log.error("a component failed during shutdown", exc_info=outcome)
