"""Accepts or refuses a command, given what the journal knows. Pure.

A start is refused if it is late (a higher epoch is known) or conflicts with a claim. A refused start stays refused,
because the controller gives its claims to others. A stop is refused for an old term only: stopping an old epoch is
harmless, and the controller needs the confirmation to release its claims.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from agent.state.process_records import ProcessKey, ProcessRecord, RefusalCode
from schemas.wire import Command, ReportedGpu, StartOrder, StopOrder

_SAFE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")  # it names a folder


@dataclass(frozen=True, slots=True)
class AgentState:
    """`devices` are the GPUs as last read, by UUID; `live` is the live part of `processes`."""

    highest_term: int
    epochs: Mapping[str, int]
    processes: Mapping[ProcessKey, ProcessRecord]
    live: Collection[ProcessRecord]
    devices: Mapping[str, ReportedGpu]
    shutting_down: bool = False


@dataclass(frozen=True, slots=True)
class Refuse:
    """Report the reason, and do nothing else."""

    code: RefusalCode
    message: str


@dataclass(frozen=True, slots=True)
class Spawn:
    """Journal the intent, then start the process."""

    key: ProcessKey
    order: StartOrder


@dataclass(frozen=True, slots=True)
class Stop:
    """Journal the stop, then stop the process."""

    key: ProcessKey
    order: StopOrder


@dataclass(frozen=True, slots=True)
class RecordNeverStarted:
    """Record the process as exited, so that a later start is not executed."""

    key: ProcessKey


@dataclass(frozen=True, slots=True)
class ReportAgain:
    """Already done: accept again and repeat the report."""

    key: ProcessKey


Action = Refuse | Spawn | Stop | RecordNeverStarted | ReportAgain


def decide(state: AgentState, command: Command) -> Action:
    key = ProcessKey(command.instance, command.epoch, command.rank)
    if command.term < state.highest_term:
        return Refuse("old_term", f"term {command.term} is over: term {state.highest_term} was seen")
    if not _SAFE_ID.fullmatch(command.instance):
        return Refuse(
            "bad_command", f"instance: must consist of letters, digits, '.', '_' and '-', got {command.instance!r}"
        )
    if command.verb == "stop":
        return _stop(state, key, command.stop)
    return _start(state, key, command.start)


def refused_record(command: Command, refusal: Refuse, boot_id: str) -> ProcessRecord | None:
    """The record that keeps a refused start refused when the command is repeated; None: nothing is recorded.

    The controller takes a refused start as final, except for an old term: then it repeats the start in its own term.
    """
    if command.verb == "stop" or refusal.code in ("old_term", "old_epoch"):
        return None
    return ProcessRecord(
        instance=command.instance,
        epoch=command.epoch,
        rank=command.rank,
        state="exited",
        reason="gone",
        message=refusal.message,
        boot_id=boot_id,
        refusal=refusal.code,
        acked=True,
    )


def _stop(state: AgentState, key: ProcessKey, order: StopOrder | None) -> Action:
    if order is None:
        return Refuse("bad_command", "stop: is required with verb stop")
    known = state.processes.get(key)
    if known is None:
        return RecordNeverStarted(key)
    return Stop(key, order) if known.alive else ReportAgain(key)


def _start(state: AgentState, key: ProcessKey, order: StartOrder | None) -> Action:
    if order is None:
        return Refuse("bad_command", "start: is required with verb start")
    known = state.processes.get(key)
    if known is not None:
        return ReportAgain(key) if known.refusal is None else Refuse(known.refusal, known.message)
    known_epoch = state.epochs.get(key.instance, 0)
    if key.epoch < known_epoch:
        return Refuse("old_epoch", f"epoch {key.epoch} of {key.instance} is over: epoch {known_epoch} was seen")
    if state.shutting_down:
        return Refuse("shutting_down", "the agent is shutting down")
    return _invalid(order) or _conflict(state, key, order) or Spawn(key, order)


def _invalid(order: StartOrder) -> Refuse | None:
    if not order.argv or not order.argv[0]:
        return Refuse("bad_command", "argv: is empty; name the program to run")
    if any("\x00" in text for text in (*order.argv, *order.env, *order.env.values())):
        return Refuse("bad_command", "argv or env: contains a NUL character; remove it")
    if any(not name or "=" in name for name in order.env):
        return Refuse("bad_command", "env: a variable's name is empty or contains '='; rename it")
    if order.probe is not None and not order.needs_port:
        return Refuse("bad_command", "probe: needs a port; set needs_port or remove the probe")
    devices = [claim.device for claim in order.claims]
    if len(set(devices)) != len(devices):
        return Refuse("bad_command", "claims: name the same device twice; name each once")
    return None


def _conflict(state: AgentState, key: ProcessKey, order: StartOrder) -> Refuse | None:
    for record in state.live:
        if (record.instance, record.rank) == (key.instance, key.rank):
            return Refuse("claim_conflict", f"epoch {record.epoch} of {key.instance} still runs here ({record.state})")
    for claim in order.claims:
        device = state.devices.get(claim.device)
        if device is None:
            return Refuse("unknown_device", f"unknown GPU {claim.device}")
        if device.mig_mode:
            return Refuse("unknown_device", f"GPU {claim.device} is in MIG mode and cannot be claimed whole")
        held_mib, holder, exclusive = _held(state.live, claim.device)
        if holder and (exclusive or claim.exclusive):
            return Refuse("claim_conflict", f"GPU {claim.device}: exclusive, and {holder} holds it")
        if held_mib + claim.memory_mib > device.memory_mib:
            return Refuse(
                "claim_conflict",
                f"GPU {claim.device}: {held_mib} MiB held + {claim.memory_mib} MiB requested > {device.memory_mib} MiB",
            )
    return None


def _held(live: Iterable[ProcessRecord], device: str) -> tuple[int, str, bool]:
    """Memory claimed on a device in MiB, a holder of it ("" if none), and whether a claim is exclusive."""
    held_mib, holder, exclusive = 0, "", False
    for record in live:
        for claim in record.claims:
            if claim.device == device:
                held_mib += claim.memory_mib
                holder = record.instance
                exclusive = exclusive or claim.exclusive
    return held_mib, holder, exclusive
