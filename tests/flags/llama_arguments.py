"""What llama-server's arguments are, read from the file of llama.cpp that names them (common/arg.cpp).

Each `add_opt(common_arg({"-a", "--b"}, {"--no-b"}, ... handler).set_env("LLAMA_ARG_B"))` is one. Its destinations are
the members of `params` that its handler sets. llama-server has the arguments of its own example and the common ones.
"""

import re
from dataclasses import dataclass
from pathlib import Path

_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_LIST = re.compile(r"\s*\{((?:\s*\"[^\"]*\"\s*,?)+)\}\s*,?")
_SET = re.compile(
    r"\bparams\.([A-Za-z_][\w.]*?)(?:\.(?:push_back|emplace_back|insert|back|clear|resize)\b|\s*[|+]?=[^=])"
)
_EXAMPLES = re.compile(r"set_examples\(\{([^}]*)\}")
_EXCLUDED = re.compile(r"set_excludes\(\{([^}]*)\}")


@dataclass(frozen=True)
class Argument:
    """One argument.

    Attributes:
        names: its spellings, with dashes.
        negated: those that switch it off.
        variable: of the environment, that does the same; empty: none.
        sets: members of the parameters that it sets.
        switch: it takes no value.
    """

    names: tuple[str, ...]
    negated: tuple[str, ...]
    variable: str
    sets: frozenset[str]
    switch: bool


def arguments(path: Path) -> list[Argument]:
    """llama-server's arguments."""
    text = re.sub(r"^\s*//.*$", "", path.read_text(), flags=re.MULTILINE)
    blocks = re.split(r"\badd_opt\(common_arg\(", text)[1:]
    return [_argument(block) for block in blocks if _of_server(block)]


def _of_server(block: str) -> bool:
    examples, excluded = _EXAMPLES.search(block), _EXCLUDED.search(block)
    if excluded is not None and "LLAMA_EXAMPLE_SERVER" in excluded[1]:
        return False
    return examples is None or bool(re.search(r"LLAMA_EXAMPLE_(SERVER|COMMON)\b", examples[1]))


def _argument(block: str) -> Argument:
    first = _LIST.match(block)
    if first is None:
        raise AssertionError(f"an argument without names: {block[:80]}")
    second = _LIST.match(block, first.end())
    rest = block[second.end() if second else first.end() :]
    # A switch has its help next; another argument has first the hint of its value.
    literals = re.match(r'\s*(?:"(?:[^"\\]|\\.)*"|string_format\(|std::string|[\w:]+\()', rest)
    handler = re.search(r"\[[^\]]*\]\s*\(common_params\s*&\s*\w*(,[^)]*)?\)", rest)
    env = re.search(r'set_env\("([^"]+)"\)', block)
    switch = second is not None or (handler is not None and handler[1] is None)
    if literals is None and handler is None:
        raise AssertionError(f"an argument that is not understood: {block[:200]}")
    return Argument(
        names=tuple(_STRING.findall(first[1])),
        negated=tuple(_STRING.findall(second[1])) if second else (),
        variable=env[1] if env else "",
        sets=frozenset(_SET.findall(rest)),
        switch=switch,
    )
