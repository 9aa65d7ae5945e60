"""Reserved flags, and those that Gpuward emits, against the real argument parsers of vLLM, SGLang and Transformers."""

import json
from typing import Any

import pytest

from controller.engines.arguments.options import Options
from controller.engines.arguments.privileges import OPTIONS
from controller.engines.arguments.switches import TRANSFORMERS_SWITCHES
from controller.engines.servers.sglang import SglangEngine
from controller.engines.servers.vllm import VllmEngine
from flags.conftest import SERVERS, Parser, read, refused, taken_for_another
from flags.emitted import Emitted, emitted
from flags.write_server_flags import FILE, tables

BOTH = [(engine, server) for engine, servers in SERVERS.items() for server in servers]
# Not a flag of the parser, but known nevertheless: SGLang's program takes this one away before it parses the rest.
# The second one was vLLM's until 0.9, and its refusal says what to write instead.
# Of the others, one is by position since 5.5, one was of 4.57.
BESIDE_THE_PARSER = {"sglang": {"model-type"}, "vllm": {"device"}, "transformers": {"force-model", "torch-dtype"}}
NEWER = {  # what the older version refuses of what is emitted
    "vllm-0.11.2": ("--nnodes", "--node-rank", "--master-addr", "--master-port"),  # gangs need 0.12
    "sglang-0.5.5": ("--no-enable-tf32-matmul",),  # of a user's args
    "transformers-5.5.0": ("--reasoning", "--chat-template-kwargs"),  # likewise
}


def reserved(table: Options, name: str) -> bool:
    option = table.destination(name)
    return option in table.limits or option in table.privileged


def off(name: str, names: frozenset[str]) -> bool:
    """Whether a spelling only switches off what another one of the same destination switches on."""
    for inverse in (name.removeprefix("no-"), "enable-" + name.removeprefix("disable-")):
        if inverse != name and inverse in names:
            return True
    return False


@pytest.mark.parametrize(("engine", "server"), BOTH)
def test_no_spelling_of_a_reserved_destination_passes(engine: str, server: str) -> None:
    table, found = OPTIONS[engine], []
    for dest, names in read(server).options.items():
        if any(reserved(table, name) for name in names):
            found += [(dest, name) for name in sorted(names) if not reserved(table, name) and not off(name, names)]
    assert not found, "these set a reserved destination: list them in the engine's options"


@pytest.mark.parametrize(("engine", "server"), BOTH)
def test_what_switches_off_is_the_only_thing_that_passes(engine: str, server: str) -> None:
    """`no-x: false` would switch x on again."""
    table, found = OPTIONS[engine], []
    for names in read(server).options.values():
        for name in names:
            if not reserved(table, name) and any(reserved(table, one) for one in names):
                found += [] if refused(engine, name, False) else [name]
    assert not found


@pytest.mark.parametrize(("engine", "server"), BOTH)
def test_no_beginning_of_a_reserved_spelling_passes(engine: str, server: str) -> None:
    """Argparse takes any beginning that only one destination has."""
    parser, table, found = read(server), OPTIONS[engine], []
    for name, dest in parser.names.items():
        if not reserved(table, name):
            continue
        for length in range(1, len(name)):
            beginning = name[:length].rstrip("-")
            if beginning and beginning not in parser.names and parser.meant(beginning) == {dest}:
                found += [] if refused(engine, beginning, "1") else [beginning]
    assert not found


@pytest.mark.parametrize(("engine", "server"), BOTH)
def test_no_flag_is_taken_for_the_beginning_of_another(engine: str, server: str) -> None:
    assert [name for name in sorted(read(server).long) if taken_for_another(engine, name)] == []


@pytest.mark.parametrize("engine", SERVERS)
def test_each_listed_flag_is_known_to_a_version(engine: str) -> None:
    table, parsers = OPTIONS[engine], [read(server) for server in SERVERS[engine]]
    listed = {*table.names, *table.short, *table.exact} - BESIDE_THE_PARSER[engine]
    unknown = [
        name for name in sorted(listed)
        if not any(name in parser.names or len(parser.meant(name)) == 1 for parser in parsers)
    ]  # fmt: skip
    assert not unknown, "no version knows them: misspelt, or gone for a year"


@pytest.mark.parametrize("engine", SERVERS)
def test_aliases_are_of_one_destination(engine: str) -> None:
    """A second spelling that belongs to another destination would be judged by the wrong rule."""
    table, found = OPTIONS[engine], []
    for server in SERVERS[engine]:
        names = read(server).names
        for name, option in {**table.aliases, **table.short}.items():
            if name in names and option in names and names[name] != names[option]:
                found.append((server, name, option))
    assert [one for one in found if one[1] != "O"] == []  # vLLM's -O was of compilation-config, later a level


@pytest.mark.parametrize("engine", [VllmEngine(), SglangEngine()], ids=lambda one: one.name)
def test_switches_with_a_negated_form_are_those_of_the_parsers(engine: VllmEngine | SglangEngine) -> None:
    negated, plain = set(), set()
    for server in SERVERS[engine.name]:
        parser = read(server)
        for name, dest in parser.names.items():
            if name.startswith("no-") and parser.names.get(name[3:]) == dest:
                negated.add(name[3:])
        plain |= {one for dest in parser.switches for one in parser.options[dest] if one in parser.long}
    assert engine.table.switches == negated
    assert (engine.table.plain_switches or frozenset()) <= plain - negated


def test_switches_of_transformers_are_those_of_the_parsers() -> None:
    parsers = [read(server) for server in SERVERS["transformers"]]
    negated = {name[3:] for parser in parsers for name in parser.names if name.startswith("no-")}
    assert negated == TRANSFORMERS_SWITCHES


def takes(server: str, parser: Parser, one: Emitted, answer: dict[str, Any]) -> str | None:
    """What is wrong with the answer to one list; None: nothing."""
    if "error" in answer and any(flag in one.argv for flag in NEWER.get(server, ())):
        return None
    if "error" in answer:
        return f"{one.name}: {answer['error']}"
    flags = [part.removeprefix("--").partition("=")[0] for part in one.argv if part.startswith("--")]
    short = [flag for flag in flags if flag not in parser.names]
    return f"{one.name}: abbreviated: {short}" if short else None


@pytest.mark.parametrize(("engine", "server"), BOTH)
def test_the_parser_takes_every_list_that_is_emitted(engine: str, server: str) -> None:
    lists = emitted(engine)
    parser = read(server, tuple(tuple(one.argv) for one in lists))
    wrong = [takes(server, parser, one, answer) for one, answer in zip(lists, parser.parsed, strict=True)]
    assert [one for one in wrong if one] == []
    assert len(lists) >= 15


@pytest.mark.parametrize(("engine", "server"), [one for one in BOTH if one[0] != "transformers"])
def test_what_bounds_the_claim_arrives(engine: str, server: str) -> None:
    """The destinations themselves hold what Gpuward wrote: nothing later on the line overrides it."""
    lists = emitted(engine)
    share, flag = {
        "vllm": ("gpu_memory_utilization", "--gpu-memory-utilization"),
        "sglang": ("mem_fraction_static", "--mem-fraction-static"),
    }[engine]
    parser = read(server, tuple(tuple(one.argv) for one in lists))
    for one, answer in zip(lists, parser.parsed, strict=True):
        if flag not in one.argv or "set" not in answer:
            continue
        written = float(one.argv[one.argv.index(flag) + 1])
        # A value that is the default is not listed as set.
        assert answer["set"].get(share, written) == written, one.name
        assert one.argv.count(flag) == 1


def test_the_table_of_flags_is_that_of_the_parsers() -> None:
    assert json.loads(FILE.read_text()) == tables(), "run make server-flags"
