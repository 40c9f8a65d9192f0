"""Who shares an instance, and when it is closed; nothing here connects to anybody."""

from __future__ import annotations

import pytest

from cometmq.client import AdminClient, ClientClosedError, ClientError, ClientInstance, Producer
from cometmq.client.config import ClientSettings
from cometmq.client.registry import lease

NOBODY = "127.0.0.1:1"
NAMED = ClientSettings(client_ip="10.0.0.1", instance_name="shop")


async def test_objects_with_one_client_id_share_an_instance_until_the_last_one_leaves() -> None:
    first, second = lease(NOBODY, settings=NAMED), lease(NOBODY, settings=NAMED)
    assert first.instance is second.instance
    assert first.instance.client_id == "10.0.0.1@shop"

    await first.open()
    await second.open()
    await first.close()
    assert second.instance.running
    await second.close()

    assert second.instance.closed
    assert lease(NOBODY, settings=NAMED).instance is not second.instance


async def test_objects_without_a_name_each_have_an_instance() -> None:
    assert lease(NOBODY).instance is not lease(NOBODY).instance


async def test_a_lent_instance_is_left_open() -> None:
    async with ClientInstance(NOBODY) as instance:
        async with AdminClient(instance=instance):
            pass
        assert instance.running
    with pytest.raises(ClientClosedError):
        await instance.start()


async def test_a_second_producer_of_a_group_is_refused_and_the_first_goes_on() -> None:
    async with Producer(NOBODY, group="g", client=NAMED):
        with pytest.raises(ClientError, match="has a Producer of g already"):
            await Producer(NOBODY, group="g", client=NAMED).start()
        held = lease(NOBODY, settings=NAMED).instance
        assert held.running
    assert held.closed


async def test_what_members_share_is_made_once() -> None:
    async with ClientInstance(NOBODY) as instance:
        assert instance.shared(list, list) is instance.shared(list, list)
