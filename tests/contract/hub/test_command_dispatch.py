"""Commands: dispatched once woken, marked before they are sent, repeated until answered, never after their epoch."""

import asyncio

import asyncpg
import pytest

from controller.domain.access.redaction import Redaction
from controller.domain.access.secret_scopes import SecretScope
from controller.runtime import tasks as time_slice
from rig.agent import AgentDouble
from rig.agent_messages import gpu, hello, process
from schemas.wire import Command
from support.database.ledger import add_deployment, add_instance, claim
from support.leading.served_hub import HubUnderTest, eventually, start_payload


async def set_up(hub: HubUnderTest, *instances: str) -> tuple[str, AgentDouble]:
    worker = await hub.add_worker()
    agent = await hub.connect(first=hello([gpu("GPU-a")]))
    uid = await add_deployment(hub.database, "d")
    for instance in instances:
        await add_instance(hub.database, uid, instance, phase="starting", epoch=1)
        await claim(hub.database, "GPU-a", instance, 1024)
    return worker, agent


async def command_state(hub: HubUnderTest, id_: int) -> tuple[object, ...]:
    return tuple(await hub.one("select state, code from commands where id = $1", id_))


async def test_commands_arrive_in_sequence_with_the_term_and_their_answers_are_kept(hub: HubUnderTest) -> None:
    await hub.execute("update lease set term = 7")  # before a dispatch, for which a takeover would wait
    worker, agent = await set_up(hub, "i", "j")
    ids = [await hub.order(worker, "i"), await hub.order(worker, "j"), await hub.order(worker, "i", "stop")]
    got = [await agent.command() for _ in ids]
    assert [c.command_id for c in got] == ids
    assert {c.term for c in got} == {7}
    assert got[0].start is not None
    assert got[2].stop is not None
    assert await hub.value("select count(*) from commands where sent_at is not null") == 3
    await agent.answer(got[0])
    await agent.answer(got[1], "refused", code="claim_conflict", message="held")
    await eventually(lambda: hub.value("select count(*) = 2 from commands where answered_at is not null"), "answers")
    assert await command_state(hub, ids[0]) == ("accepted", "")
    assert await command_state(hub, ids[1]) == ("refused", "claim_conflict")
    # A repeated answer changes nothing.
    await agent.answer(got[1])
    await agent.answer(got[2])
    await eventually(lambda: hub.value("select count(*) = 3 from commands where answered_at is not null"), "answers")
    assert await command_state(hub, ids[1]) == ("refused", "claim_conflict")


async def test_a_command_is_marked_as_sent_before_it_is_sent(hub: HubUnderTest) -> None:
    worker, agent = await set_up(hub, "i")
    blocker = await asyncpg.connect(hub.database.dsn)
    transaction = blocker.transaction()
    await transaction.start()
    # A takeover holds the term: nothing may be sent meanwhile.
    await blocker.execute("select 1 from lease for update")
    id_ = await hub.order(worker, "i")
    waits = "select count(*) > 0 from pg_stat_activity where wait_event_type = 'Lock' and query like '%lease%'"
    await eventually(lambda: hub.value(waits), "the dispatch waits for the term")
    assert await hub.value("select sent_at is null from commands where id = $1", id_)
    await blocker.execute("update lease set term = term + 1")
    await transaction.commit()
    await blocker.close()
    assert (await agent.command()).term == 1
    assert await hub.value("select sent_at is not null from commands where id = $1", id_)


async def test_unanswered_commands_are_repeated_and_at_once_on_a_new_connection(hub: HubUnderTest) -> None:
    worker, agent = await set_up(hub, "i")
    id_ = await hub.order(worker, "i")
    first = await agent.command()
    sent_at = await hub.value("select sent_at from commands")
    again = await agent.command()
    assert (first.command_id, again.command_id) == (id_, id_)
    assert await hub.value("select extract(epoch from sent_at - $1) >= 4.9 from commands", sent_at)
    await agent.drop()
    sent_at = await hub.value("select sent_at from commands")
    back = await hub.connect(first=hello([gpu("GPU-a")]))
    command = await back.command()
    assert command.command_id == id_
    assert await hub.value("select extract(epoch from sent_at - $1) < 4.9 from commands", sent_at)
    await back.answer(command)
    await eventually(lambda: hub.value("select state = 'accepted' from commands"), "the answer")


async def test_commands_wait_for_a_disconnected_agent(hub: HubUnderTest) -> None:
    worker, agent = await set_up(hub, "i")
    await agent.drop()
    id_ = await hub.order(worker, "i")
    back = await hub.connect(first=hello([gpu("GPU-a")]))
    assert (await back.command()).command_id == id_


async def test_withdrawn_commands_are_not_sent(hub: HubUnderTest) -> None:
    worker, agent = await set_up(hub, "i", "j")
    await agent.drop()
    withdrawn = await hub.order(worker, "i")
    await hub.execute("update commands set state = 'withdrawn'")
    sent = await hub.order(worker, "j")
    back = await hub.connect(first=hello([gpu("GPU-a")]))
    assert (await back.command()).command_id == sent
    assert await command_state(hub, withdrawn) == ("withdrawn", "")


async def test_a_start_whose_process_ended_is_never_sent_again(hub: HubUnderTest) -> None:
    worker, agent = await set_up(hub, "i")
    id_ = await hub.order(worker, "i")
    await agent.command()
    await agent.send(process("i", "starting", seq=1))
    await agent.ack(1)
    await agent.drop()
    # The agent has lost its journal: the ledger counts the process as gone, and its claims may be released any moment.
    back = await hub.connect(first=hello([gpu("GPU-a")]))
    assert await hub.value("select state from processes") == "exited"
    await eventually(lambda: hub.value("select state = 'refused' from commands"), "the command is closed")
    assert await command_state(hub, id_) == ("refused", "old_epoch")
    stop = await hub.order(worker, "i", "stop")
    assert (await back.command()).command_id == stop


async def test_a_start_with_released_claims_is_never_sent(hub: HubUnderTest) -> None:
    worker, _ = await set_up(hub, "i")
    await hub.execute("delete from claims")
    id_ = await hub.order(worker, "i")
    await eventually(lambda: hub.value("select state = 'refused' from commands"), "the command is closed")
    assert await command_state(hub, id_) == ("refused", "old_epoch")
    assert await hub.value("select sent_at is null from commands")


async def test_secrets_are_filled_in_at_dispatch(hub: HubUnderTest) -> None:
    worker, agent = await set_up(hub, "i", "j")
    hub.secrets["hf"] = "hunter2"
    await hub.order(worker, "i", payload=start_payload(env_secrets={"HF_TOKEN": "hf"}))
    command = await agent.command()
    assert command.start is not None
    assert command.start.env == {"A": "plain", "HF_TOKEN": "hunter2"}
    assert "hunter2" not in str(await hub.value("select payload::text from commands"))
    read = await hub.one("select actor, action, object from audit_log")
    assert tuple(read) == ("agent:gpu-1", "secret.read", "secrets/hf/i")
    missing = await hub.order(worker, "j", payload=start_payload(env_secrets={"HF_TOKEN": "typo"}))
    await eventually(lambda: hub.value("select state = 'refused' from commands where id = $1", missing), "refused")
    row = await hub.one("select code, message from commands where id = $1", missing)
    assert row["code"] == "secret_missing"
    assert "gpuward secret set typo" in row["message"]


async def test_a_plain_value_that_is_a_secret_is_kept_out_of_logs_as_one(hub: HubUnderTest) -> None:
    worker, agent = await set_up(hub, "i")
    hub.secrets["hf"] = "hunter-of-two"
    env = {"A": "plain", "B": "hunter-of-two", "URL": "https://u:hunter-of-two@h"}
    await hub.order(worker, "i", payload=start_payload(env=env))
    command = await agent.command()
    assert command.start is not None
    assert (command.start.env, command.start.secret_env) == (env, ("B", "URL"))


async def test_a_scope_that_was_changed_meanwhile_refuses_the_start(hub: HubUnderTest) -> None:
    worker, _ = await set_up(hub, "i")
    hub.secrets["hf"], hub.scopes["hf"] = "hunter2", SecretScope(("team-a-*",))
    id_ = await hub.order(worker, "i", payload=start_payload(env_secrets={"HF_TOKEN": "hf"}))
    await eventually(lambda: hub.value("select state = 'refused' from commands where id = $1", id_), "refused")
    message = await hub.value("select message from commands where id = $1", id_)
    assert "secret 'hf' is for deployments named team-a-*" in message
    assert "hunter2" not in message
    assert await hub.value("select code from commands where id = $1", id_) == "secret_forbidden"


async def test_a_deleted_secret_does_not_free_what_may_run(hub: HubUnderTest) -> None:
    worker, agent = await set_up(hub, "i")
    hub.secrets["hf"] = "hunter2"
    await hub.order(worker, "i", payload=start_payload(env_secrets={"HF_TOKEN": "hf"}))
    await agent.command()
    del hub.secrets["hf"]
    await agent.drop()
    back = await hub.connect(first=hello([gpu("GPU-a")]))
    await eventually(lambda: hub.value("select count(*) > 0 from events where reason = 'order_not_sent'"), "the event")
    assert await hub.value("select state from commands") == "open"
    hub.secrets["hf"] = "hunter3"
    command = await back.command()
    assert command.start is not None
    assert command.start.env["HF_TOKEN"] == "hunter3"


async def test_an_invalid_stored_command_is_refused(hub: HubUnderTest) -> None:
    worker, agent = await set_up(hub, "i", "j")
    bad = await hub.order(worker, "i", payload={"argv": "not a list"})
    good = await hub.order(worker, "j")
    assert (await agent.command()).command_id == good
    await eventually(lambda: hub.value("select state = 'refused' from commands where id = $1", bad), "refused")


async def test_more_commands_than_one_batch_all_arrive_in_sequence(hub: HubUnderTest) -> None:
    names = [f"i-{n:03}" for n in range(300)]
    worker, agent = await set_up(hub)
    uid = await hub.value("select uid::text from deployments")
    async with hub.database.transaction() as c:
        await c.execute(
            """insert into instances (id, deployment_uid, revision, phase, epoch)
               select n, $1::uuid, 1, 'stopping', 1 from unnest($2::text[]) n""",
            uid,
            names,
        )
        await c.execute(
            """insert into commands (worker_id, instance_id, epoch, rank, verb, payload)
               select $1::uuid, n, 1, 0, 'stop', '{"drain_time_s": 1}' from unnest($2::text[]) n""",
            worker,
            names,
        )
    hub.hub.wake("command", None)
    got: list[Command] = [await agent.command() for _ in names]
    assert [c.instance for c in got] == names


async def test_equal_variables_are_judged_once_and_the_loop_has_its_turn_between_commands(
    hub: HubUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, judged = 0, []

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def holds(_: Redaction, text: str) -> bool:
        judged.append((text, turns))
        return False

    monkeypatch.setattr(Redaction, "holds", holds)
    monkeypatch.setattr(time_slice, "_SLICE_S", 0)
    worker, agent = await set_up(hub, "i", "j", "k")
    await agent.drop()

    async def disconnected() -> bool:
        return not hub.hub.connected()

    await eventually(disconnected, "the hub has seen the end of the connection")
    for name in ("i", "j", "k"):
        await hub.order(worker, name, payload=start_payload(env={"OF_ALL": "equal", "OWN": name}))
    beside = asyncio.create_task(take_turns())
    try:
        back = await hub.connect(first=hello([gpu("GPU-a")]))
        commands = [await back.command() for _ in range(3)]
    finally:
        beside.cancel()
    assert [c.start.env["OWN"] for c in commands if c.start is not None] == ["i", "j", "k"]
    assert sorted(text for text, _ in judged) == ["equal", "i", "j", "k"]
    assert len({turn for _, turn in judged}) == 3, "one for each command"
