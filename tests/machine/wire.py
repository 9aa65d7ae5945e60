"""The wire between agents and hubs: messages arrive in order, or repeated, late, reordered or not at all."""

import random

from machine.hosts import Host, Link
from machine.world import World
from schemas.wire import CommandResult


async def agent_says(host: Host, limit: int = 1_000) -> None:
    """The agent sends its queued messages."""
    while host.link is not None and limit and (host.send_queue._messages or host.send_queue._reports):
        host.link.up.append(await host.send_queue.next())  # type: ignore[arg-type]  # these agents queue no heartbeats
        limit -= 1


def hub_hears(world: World, host: Host, limit: int = 1_000, *, repeat: bool = False, swap: bool = False) -> None:
    """Messages arrive at the hub. Reports keep their order, since acknowledgements name the last one."""
    link = host.link
    if link is None or not link.up:
        return
    arriving = [link.up.popleft() for _ in range(min(limit, len(link.up)))]
    if swap:  # answers overtake reports, or the reverse
        arriving.sort(key=lambda m: isinstance(m, CommandResult), reverse=not isinstance(arriving[0], CommandResult))
        world.tally["messages reordered"] += len(arriving) > 1
    if repeat:
        arriving += arriving
        world.tally["messages repeated"] += len(arriving) // 2
    link.controller.hear(link, arriving)


def hub_hears_late(world: World, link: Link, n: int) -> None:
    """Messages of a broken connection arrive, in any order, one of them twice."""
    messages = [*link.lost, *list(link.lost)[:1]]
    random.Random(n).shuffle(messages)  # noqa: S311 - no secret, and the same each time
    world.tally["messages late"] += len(messages)
    link.lost.clear()
    link.controller.hear(link, messages)


def agent_hears(world: World, host: Host, limit: int = 1_000, *, repeat: bool = False) -> None:
    """The agent receives the hub's messages, and at the end of a connection its reason."""
    link = host.link
    if link is None or host.frozen or host.journal is None:
        return
    while limit and link.session._outgoing and host.link is link:
        message = link.session._outgoing.popleft()
        host.hear(message)
        if repeat and host.link is link:
            world.tally["messages repeated"] += 1
            host.hear(message)
        limit -= 1
    if (link.session._ending is not None or link.hung_up) and host.link is link:
        world.drop(host, noticed=True)


def replay(world: World, host: Host, n: int) -> None:
    """A command of any age reaches the agent again; one of an old term changes nothing."""
    if host.journal is None or host.frozen or not host.history:
        return
    world.tally["commands replayed"] += 1
    order = host.history[n % len(host.history)]
    over = order.term < host.journal.host_state.highest_term
    before = dict(host.journal.processes)
    answer = host.obey(order)
    host.send_queue.add(answer)
    if over:
        world.tally["old terms refused"] += 1
        assert (answer.code, before) == ("old_term", dict(host.journal.processes)), f"{order} was obeyed"
