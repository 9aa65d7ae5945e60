"""An order against what the journal knows: what to do about it. Pure.

Starts are refused when they are late (a lower epoch than one seen) or would double a claim; a refused start stays so,
since the controller gives its claims to others. Stops are refused for an old term only: to stop an old epoch harms
nothing, and the controller needs the confirmation to release its claims.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from agent.records import Key, ProcessRecord, RefusalCode
from schemas.wire import Command, DeviceFacts, StartOrder, StopOrder

_SAFE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")  # it names a folder


@dataclass(frozen=True, slots=True)
class View:
    """What the decision rests on. `devices` are the GPUs as last read, by UUID."""

    highest_term: int
    epochs: Mapping[str, int]
    processes: Mapping[Key, ProcessRecord]
    devices: Mapping[str, DeviceFacts]
    shutting_down: bool = False


@dataclass(frozen=True, slots=True)
class Refuse:
    """Do nothing and say why."""

    code: RefusalCode
    message: str


@dataclass(frozen=True, slots=True)
class Spawn:
    """Journal the intent, then start the process."""

    key: Key
    order: StartOrder


@dataclass(frozen=True, slots=True)
class Stop:
    """Journal the stop, then carry it out."""

    key: Key
    order: StopOrder


@dataclass(frozen=True, slots=True)
class Entomb:
    """Record that this process never was and never shall be: its start may still be on the way."""

    key: Key


@dataclass(frozen=True, slots=True)
class Repeat:
    """Already done: accept again and send the present report again."""

    key: Key


Action = Refuse | Spawn | Stop | Entomb | Repeat


def decide(view: View, command: Command) -> Action:
    """What to do about one command."""
    key = Key(command.instance, command.epoch, command.rank)
    if command.term < view.highest_term:
        return Refuse("old_term", f"term {command.term} is over: term {view.highest_term} was seen")
    if not _SAFE_ID.fullmatch(command.instance):
        return Refuse("bad_command", f"instance {command.instance!r} is no id; use letters, digits, '.', '_' and '-'")
    if command.verb == "stop":
        return _stop(view, key, command.stop)
    return _start(view, key, command.start)


def tombstone(command: Command, refused: Refuse, boot_id: str) -> ProcessRecord | None:
    """What is kept of a refused start, so that no repeated copy of it is carried out; None: nothing.

    The controller takes a refused start for one that never shall be. But for an old term, which says nothing about the
    order: it comes again under the present one.
    """
    if command.verb == "stop" or refused.code in ("old_term", "old_epoch"):
        return None
    return ProcessRecord(
        instance=command.instance,
        epoch=command.epoch,
        rank=command.rank,
        state="exited",
        reason="gone",
        message=refused.message,
        boot_id=boot_id,
        refusal=refused.code,
        acked=True,
    )


def _stop(view: View, key: Key, order: StopOrder | None) -> Action:
    if order is None:
        return Refuse("bad_command", "stop: the order is missing")
    known = view.processes.get(key)
    if known is None:
        return Entomb(key)
    return Stop(key, order) if known.alive else Repeat(key)


def _start(view: View, key: Key, order: StartOrder | None) -> Action:
    if order is None:
        return Refuse("bad_command", "start: the order is missing")
    known = view.processes.get(key)
    if known is not None:
        return Repeat(key) if known.refusal is None else Refuse(known.refusal, known.message)
    seen = view.epochs.get(key.instance, -1)
    if key.epoch < seen:
        return Refuse("old_epoch", f"epoch {key.epoch} of {key.instance} is over: epoch {seen} was seen")
    if view.shutting_down:
        return Refuse("shutting_down", "the agent is shutting down")
    return _malformed(order) or _conflict(view, key, order) or Spawn(key, order)


def _malformed(order: StartOrder) -> Refuse | None:
    if not order.argv or not order.argv[0]:
        return Refuse("bad_command", "argv: is empty; name the program to run")
    if any("\x00" in text for text in (*order.argv, *order.env, *order.env.values())):
        return Refuse("bad_command", "argv or env: holds a NUL character; remove it")
    if any(not name or "=" in name for name in order.env):
        return Refuse("bad_command", "env: a variable's name is empty or holds '='; rename it")
    if order.probe is not None and not order.needs_port:
        return Refuse("bad_command", "probe: needs a port; set needs_port or remove the probe")
    devices = [claim.device for claim in order.claims]
    if len(set(devices)) != len(devices):
        return Refuse("bad_command", "claims: name the same device twice; name each once")
    return None


def _conflict(view: View, key: Key, order: StartOrder) -> Refuse | None:
    live = [record for record in view.processes.values() if record.alive]
    for record in live:
        if (record.instance, record.rank) == (key.instance, key.rank):
            return Refuse("claim_conflict", f"epoch {record.epoch} of {key.instance} still runs here ({record.state})")
    for claim in order.claims:
        device = view.devices.get(claim.device)
        if device is None:
            return Refuse("unknown_device", f"no GPU {claim.device} is known here")
        if device.mig_mode:
            return Refuse("unknown_device", f"GPU {claim.device} is in MIG mode and cannot be claimed whole")
        held_mib, holder, alone = _held(live, claim.device)
        if holder and (alone or claim.exclusive):
            return Refuse("claim_conflict", f"GPU {claim.device}: exclusive, and {holder} holds it")
        if held_mib + claim.memory_mib > device.memory_mib:
            return Refuse(
                "claim_conflict",
                f"GPU {claim.device}: {held_mib} MiB held + {claim.memory_mib} MiB asked > {device.memory_mib} MiB",
            )
    return None


def _held(live: Iterable[ProcessRecord], device: str) -> tuple[int, str, bool]:
    """Memory claimed on a device in MiB, one of its holders ("" if none), and whether a holder has it alone."""
    held_mib, holder, alone = 0, "", False
    for record in live:
        for claim in record.order.claims if record.order else ():
            if claim.device == device:
                held_mib += claim.memory_mib
                holder = record.instance
                alone = alone or claim.exclusive
    return held_mib, holder, alone
