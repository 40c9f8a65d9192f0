"""Deletes the queues of topics; the records stay until their log files expire."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from cometmq.store.errors import StoreUnavailableError
from cometmq.store.lifecycle.remover import Remover
from cometmq.store.paths import StorePaths
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.dispatch import QueueTable
from cometmq.system.files import Files

logger = logging.getLogger(__name__)


class TopicDeletion:
    """Deletes topics, also topics that a start has found again in the log.

    Args:
        table: the queues.
        files, paths: the file system, and the paths of the store.
        remover: deletes the directories.
        now_ms: returns the wall clock; it is part of the names of directories to delete.
    """

    def __init__(
        self,
        table: QueueTable,
        files: Files,
        paths: StorePaths,
        remover: Remover,
        now_ms: Callable[[], int],
    ) -> None:
        self._table = table
        self._files = files
        self._paths = paths
        self._remover = remover
        self._now_ms = now_ms
        self._renamed = 0
        self._exists: Callable[[str], bool] | None = None
        self._new: list[str] = []

    def expect(self, exists: Callable[[str], bool]) -> None:
        """Delete the new topics that do not exist, those noted before included.

        Args:
            exists: returns whether a topic exists.
        """
        self._exists = exists
        new, self._new = self._new, []
        self.check_new(new)

    def check_new(self, topics: Iterable[str]) -> None:
        """Check topics that the log has and the queues had not; until `expect` they are noted."""
        if self._exists is None:
            self._new.extend(topics)
            return
        for topic in topics:
            if not self._exists(topic):
                self.delete(topic)

    def delete(self, topic: str) -> bool:
        """Delete the queues of a topic; return whether it had any.

        Raises:
            StoreUnavailableError: the disk refused; the topic keeps its queues.
        """
        found = self._table.topics.get(topic)
        if found is None:
            return False
        queues = list(found.queues.values())
        try:
            for queue in queues:  # or a flush would write its units into a new topic of this name
                queue.write_and_release_buffer()
            directories = [
                self._rename(path)
                # The queues behind these: without its extension units a topic is whole.
                for path in (
                    self._paths.topic_ext(topic),
                    self._paths.topic(topic),
                    self._paths.topic_batches(topic),
                )
                if self._files.exists(path)
            ]
        except OSError as problem:
            raise StoreUnavailableError(
                f"cannot delete the queues of topic {topic}: {problem}"
            ) from problem
        del self._table.topics[topic]
        self._remover.run(partial(_close_all, queues))
        for path in directories:
            self._remover.remove_tree(path)
        logger.info("topic deleted topic=%s queues=%d", topic, len(queues))
        return True

    def _rename(self, path: Path) -> Path:
        """Rename a directory that is to be deleted, so that its name is free at once."""
        self._files.make_dirs(self._paths.deleted)
        self._renamed += 1
        target = self._paths.deleted / f"{self._now_ms()}-{self._renamed}"
        self._files.rename(path, target)
        return target


def _close_all(queues: Iterable[ConsumeQueue]) -> None:
    for queue in queues:
        queue.close()
