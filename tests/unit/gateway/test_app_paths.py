"""Paths below `/apps/NAME`: none that a server may read otherwise leaves those that the manifest lists."""

import unicodedata
from itertools import product
from typing import Final
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gateway.admission.app_paths import app_of, is_listed, path_problem
from schemas.manifest.serving import ServingLimits


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (b"/apps/chat/render?", ("chat", b"/render?")),
        (b"/apps/chat", ("chat", b"/")),
        (b"/apps/chat/", ("chat", b"/")),
        (b"/apps/chat//x", ("chat", b"//x")),
        (b"/apps/", None),
        (b"/apps", None),
        (b"/apps//x", None),
        (b"/apps/%63hat/x", None),
        (b"/apps/../v1/models", None),
        (b"/apps/Chat/x", None),
        (b"/applications/chat/x", None),
    ],
)
def test_which_deployment_a_path_names(path: bytes, found: tuple[str, bytes] | None) -> None:
    assert app_of(path) == found


DOTS: Final = (
    *(b"..", b"%2e%2e", b".%2E", b"%2e.", b"%252e%252e", b"%25252e.", b"%c0%ae%c0%ae", b"%e0%80%ae.", b"%u002e."),
    *(b"%EF%BC%8E%ef%bc%8e", b"%E2%80%A5", b"..;", b"..;x=1", b"..%3bx", b"%20..", b"..%20", b"...", b"."),
    *(b"..#", b"..#x", b"..%23x", b"..%3f", b"..%3Fx=1", b".%23", b"%2e%2e%20%23", b"..%2523"),
)
SLASHES: Final = (
    *(b"/", b"%2f", b"%2F", b"%252f", b"\\", b"%5c", b"%255C", b"%c0%af", b"%e0%80%af", b"%ef%bc%8f", b"%EF%BC%BC"),
    b"%u2215",
)


@pytest.mark.parametrize(("dots", "slash"), list(product(DOTS, SLASHES)))
def test_no_spelling_of_dots_climbs(dots: bytes, slash: bytes) -> None:
    for path in (b"/public/" + dots + slash + b"admin", b"/public" + slash + dots + b"/admin", b"/public/x/" + dots):
        assert path_problem(path) is not None, path


@pytest.mark.parametrize("slash", SLASHES[1:])
def test_no_spelling_of_a_slash_passes(slash: bytes) -> None:
    assert path_problem(b"/public" + slash + b"admin") is not None


@pytest.mark.parametrize(
    "path",
    [
        b"//evil.example/x",
        b"/a%00b",
        b"/a%0d%0ab",
        b"/a%2500b",
        b"/a%",
        b"/a%zz",
        b"/\xc3\xa9",
        b"/a%ff",
        b"/%2525252525",
    ],
)
def test_other_ambiguous_paths_are_refused(path: bytes) -> None:
    assert path_problem(path) is not None


@pytest.mark.parametrize(
    "path",
    [
        b"/",
        b"/a/b",
        b"/a/",
        b"/a//b",
        b"/a%20b",
        b"/%C3%A9",
        b"/a.b/..c/d..",
        b"/.well-known/x",
        b"/100%25",
        b"/a;v=1/b",
    ],
)
def test_usual_paths_pass(path: bytes) -> None:
    assert path_problem(path) is None


@given(st.lists(st.sampled_from([*DOTS, *SLASHES, b"admin", b"public", b";", b"%25", b"%20", b"a"]), max_size=7))
def test_what_passes_stays_below_its_listed_path_however_it_is_decoded(pieces: list[bytes]) -> None:
    path = b"/public/" + b"".join(pieces)
    if path_problem(path) is not None:
        return
    assert is_listed(path, ["/public"])
    for _ in range(6):
        text = unicodedata.normalize("NFKC", path.decode()).replace("\\", "/")
        parts: list[str] = []
        for part in text.split("/")[1:]:
            name = part.partition(";")[0].strip()
            if name == "..":
                assert parts, path
                parts.pop()
            elif name not in ("", "."):
                parts.append(name)
        assert parts[0] == "public"
        path = unquote_to_bytes(path)


@pytest.mark.parametrize(
    ("path", "listed", "found"),
    [
        (b"/a", ["/a"], True),
        (b"/a/b", ["/a"], True),
        (b"/ab", ["/a"], False),
        (b"/%61/b", ["/a"], False),
        (b"/A", ["/a"], False),
        (b"/a;x", ["/a"], False),
        (b"/x", ["/a", "/"], True),
        (b"/", ["/a"], False),
    ],
)
def test_which_paths_are_listed(path: bytes, listed: list[str], found: bool) -> None:
    assert is_listed(path, listed) is found


@pytest.mark.parametrize("paths", [["/"], ["/a"], ["/a/b.c", "/~x"]])
def test_paths_that_a_manifest_may_list(paths: list[str]) -> None:
    limits = ServingLimits.model_validate({"apps": {"paths": paths}})
    assert limits.apps is not None
    assert limits.apps.csp == "sandbox"
    assert all(path_problem(path.encode()) is None and is_listed(path.encode(), paths) for path in limits.apps.paths)


@pytest.mark.parametrize(
    "apps",
    [
        *(
            {"paths": paths}
            for paths in ([], ["a"], ["/a/"], ["//a"], ["/a//b"], ["/.."], ["/a/../b"], ["/a/."], ["/%61"])
        ),
        *({"paths": paths} for paths in (["/a?b"], ["/a b"], ["/é"], ["/a", "/a"], ["/" + "a" * 300], ["/..."])),
        *({}, {"paths": ["/"], "csp": "off"}, {"paths": ["/"], "other": 1}, {"paths": [f"/{n}" for n in range(65)]}),
    ],
)
def test_what_a_manifest_may_not_list(apps: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ServingLimits.model_validate({"apps": apps})
