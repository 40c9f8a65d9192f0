"""The request modes: which groups read which topics by pop, as an operator has set.

    messageRequestMode.json := {"messageRequestModeMap": {topic: {group: mode}}}
    mode := {topic, consumerGroup, mode, popShareQueueNum}

A change is visible once it is on disk. Slaves copy the table from their master.
Source: MessageRequestModeManager, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from cometmq.broker.thread_calls import NextCall
from cometmq.model.errors import ResponseError, StoreError
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.fastjson import FastJsonError
from cometmq.protocol.lenient import read_struct
from cometmq.remoting.slices import Slices
from cometmq.store.config_files import JsonFile

if TYPE_CHECKING:
    from cometmq.protocol.bodies.pop import (
        MessageRequestModeSerializeWrapper,
        SetMessageRequestModeRequestBody,
    )

    Modes = dict[str, dict[str, SetMessageRequestModeRequestBody]]

MODES_MAX: Final = 100_000


class RequestModes:
    """The request modes of all topics and groups.

    Args:
        file: messageRequestMode.json.
    """

    def __init__(self, file: JsonFile) -> None:
        self._file = file
        self._table: Modes = {}
        self._content: Modes = {}
        """What is written next."""
        self._changing = asyncio.Lock()
        self._write = NextCall(lambda: file.save(_body(self._content)))

    def load(self) -> None:
        """Read the file.

        Raises:
            StoreError: it cannot be read.
        """
        content = self._file.load()
        try:
            if content is not None:
                from cometmq.protocol.bodies.pop import MessageRequestModeSerializeWrapper

                wrapper = read_struct(content, MessageRequestModeSerializeWrapper)
                self._table = wrapper.message_request_mode_map
        except FastJsonError as problem:
            raise StoreError(f"{self._file.path}: {problem}") from problem

    def find(self, group: str, topic: str) -> SetMessageRequestModeRequestBody | None:
        """Return the mode that was set for a group and a topic."""
        return self._table.get(topic, {}).get(group)

    def body(self) -> MessageRequestModeSerializeWrapper:
        """Return the table."""
        return _body(self._table)

    async def set(self, mode: SetMessageRequestModeRequestBody) -> None:
        """Set the mode of a group and a topic.

        Raises:
            StoreError: the file cannot be written; nothing was changed.
            ResponseError: there are too many.
        """
        async with self._changing:
            count = sum(map(len, self._table.values()))
            if count >= MODES_MAX and self.find(mode.consumer_group, mode.topic) is None:
                raise ResponseError(
                    ResponseCode.SYSTEM_ERROR,
                    f"{count} request modes, expected less than {MODES_MAX}",
                )
            groups = {**self._table.get(mode.topic, {}), mode.consumer_group: mode}
            await self._replace({**self._table, mode.topic: groups})

    async def copy(self, table: Modes) -> bool:
        """Take over the table of the master of this slave; return whether anything changed.

        Raises:
            StoreError: the file cannot be written; nothing was changed.
        """
        async with self._changing:
            if table == self._table:
                return False
            await self._replace(table)
            return True

    async def forget(self, *, topic: str = "", group: str = "") -> None:
        """Remove the modes of a topic or of a group that was deleted.

        Raises:
            StoreError: the file cannot be written; nothing was changed.
        """
        async with self._changing:
            table = dict(self._table)
            table.pop(topic, None)
            async for name, groups in Slices().each(self._table.items()):
                if group in groups:
                    table[name] = {each: mode for each, mode in groups.items() if each != group}
                    if not table[name]:
                        del table[name]
            if table != self._table:
                await self._replace(table)

    async def _replace(self, table: Modes) -> None:
        self._content = table
        await self._write()
        self._table = table


def _body(table: Modes) -> MessageRequestModeSerializeWrapper:
    from cometmq.protocol.bodies.pop import MessageRequestModeSerializeWrapper

    return MessageRequestModeSerializeWrapper(message_request_mode_map=table)
