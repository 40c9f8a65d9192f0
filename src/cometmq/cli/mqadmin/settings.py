"""Commands about settings of brokers and name servers, and about the key-value table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from cometmq.cli.mqadmin.brokers import banners
from cometmq.cli.mqadmin.call import Call, CommandError


async def get_broker_config(call: Call) -> None:
    """Show the settings of one broker, or of all brokers of a cluster."""
    if not (call.has("b") or call.has("c")):
        return
    for banner, broker in await banners(call):
        print(banner)
        settings = await call.admin.broker_config(broker)
        if settings:
            print_settings(settings)
        else:
            print(f"Broker[{broker}] has no config property!")
        print()


def print_settings(settings: dict[str, str]) -> None:
    """Print settings by name."""
    for name, value in settings.items():
        print("%-50s=  %s" % (name, value))


async def update_broker_config(call: Call) -> None:
    """Change one setting of running brokers."""
    everywhere = call.true("a")
    for broker in await (call.chosen_brokers() if everywhere else call.chosen_masters()):
        await call.admin.set_broker_config(broker, {call.text("k"): call.text("v")})
        print(f"update broker config success, {broker}")


def _name_servers(call: Call) -> list[str]:
    servers = list(call.admin.name_servers)
    if not servers:
        raise CommandError("no name server is given: expected -n or NAMESRV_ADDR")
    return servers


async def show_config(servers: list[str], read: Callable[[str], Awaitable[dict[str, str]]]) -> None:
    """Show the settings of servers."""
    for server in servers:
        settings = await read(server)
        print(f"============{server}============")
        print_settings(settings)


async def update_config(
    call: Call,
    servers: list[str],
    change: Callable[[str, dict[str, str]], Awaitable[None]],
    kind: str,
) -> None:
    """Change one setting of servers of a kind."""
    key, value = call.text("k"), call.text("v")
    for server in servers:
        await change(server, {key: value})
    print(f"update {kind} config success![{', '.join(servers)}]\n{key} : {value}")


async def get_namesrv_config(call: Call) -> None:
    """Show the settings of the name servers."""
    await show_config(_name_servers(call), call.admin.name_server_config)


async def update_namesrv_config(call: Call) -> None:
    """Change one setting of running name servers."""
    servers = _name_servers(call)
    await update_config(call, servers, call.admin.set_name_server_config, "name server")


async def update_kv_config(call: Call) -> None:
    """Write an entry of the key-value table."""
    await call.admin.kv_put(call.text("s"), call.text("k"), call.text("v"))
    print("create or update kv config to namespace success.")


async def delete_kv_config(call: Call) -> None:
    """Delete an entry of the key-value table."""
    await call.admin.kv_delete(call.text("s"), call.text("k"))
    print("delete kv config from namespace success.")


async def wipe_write_perm(call: Call) -> None:
    """Remove the write permission of a broker's topics, in each name server."""
    broker = call.text("b")
    for server in _name_servers(call):
        count = await call.admin.stop_writing(broker, servers=[server])
        print(f"wipe write perm of broker[{broker}] in name server[{server}] OK, {count}")


async def add_write_perm(call: Call) -> None:
    """Restore the write permission of a broker's topics, in each name server."""
    broker = call.text("b")
    for server in _name_servers(call):
        count = await call.admin.resume_writing(broker, servers=[server])
        print(f"add write perm of broker[{broker}] in name server[{server}] OK, {count}")
