"""What the pages say must hold: links, manifests, commands and quoted messages."""

import ast
import re
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest

from agent.host_inventory.installed_engines import PROGRAMS
from cli.text.scaling import notes
from cli.transport.paths import parse
from controller.engines import simulated
from schemas.api.deployments import DeploymentView
from schemas.manifest.deployment import IN_PLACE_FIELDS
from schemas.manifest.parse import parse_manifests
from support.builders.api_objects import deployment
from support.command_texts import assert_is_a_command, commands_of
from support.pages import DESIGN, DOCS, ROOT, Fence, anchors, fences, links, pages, prose

YAML = [fence for page in pages() for fence in fences(page, "yaml")]
SHELL = [fence for page in pages() for fence in fences(page, "sh")]
PACKAGES = ("agent", "cli", "controller", "schemas")
MESSAGE_PAGES = (DOCS / "troubleshooting.md",)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for target in links(page):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.is_file(), f"{page.name}: {target}"
        assert not page.is_relative_to(DOCS) or file.is_relative_to(DOCS), f"{page.name}: {target} leaves the site"
        assert not anchor or anchor in anchors(file), f"{page.name}: {target} has no such heading"


@pytest.mark.parametrize("page", [p for p in pages() if p.name != "ARCHITECTURE.md"], ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"(?<![\w/])((?:agent|bench|cli|controller|deploy|schemas|tests)/[\w/]*\w\.\w+)", text)
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_every_page_is_on_the_first_page_and_in_the_navigation() -> None:
    assert "docs/index.md" in {target.partition("#")[0] for target in links(ROOT / "README.md")}
    first = set(links(DOCS / "index.md"))
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in DOCS.glob("*.md"):
        assert page.name in first | {"index.md"}, page
        assert f"- {page.name}\n" in listed, page


@pytest.mark.parametrize("page", sorted(DESIGN.glob("*.md")), ids=lambda page: page.name)
def test_a_design_page_is_short_is_found_and_names_folders_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert f"docs/design/{page.name}" in set(links(ROOT / "ARCHITECTURE.md"))
    assert f"- design/{page.name}\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert list(fences(page, "mermaid"))
    named = re.findall(r"`((?:agent|bench|cli|controller|deploy|gateway|http1|schemas|tests|ui)/[\w/]*)`", text)
    assert named
    assert [name for name in named if not (ROOT / name).is_dir()] == []


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_the_readmes_picture_is_a_small_png() -> None:
    (name,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    picture = (ROOT / name).read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) <= 150_000


@pytest.mark.parametrize("fence", [f for f in YAML if f.note is None], ids=lambda fence: fence.where)
def test_a_manifest_of_a_page_is_valid(fence: Fence) -> None:
    parse_manifests(fence.text)


def test_only_other_files_are_no_manifests() -> None:
    assert [f.where for f in YAML if f.note is not None and f.note[0] != "not a manifest"] == []
    assert [f.where for f in YAML if f.note is not None and "kind:" in f.text] == []


def test_what_is_not_run_says_why() -> None:
    assert [f.where for f in SHELL if f.note is not None and (f.note[0] != "not run" or not f.note[1])] == []


def test_the_fields_that_change_in_place_are_listed() -> None:
    page = prose(DOCS / "manifests.md")
    (listed,) = re.findall(r"^(`replicas`[^.]*)\schange in place\.", page, flags=re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", listed)) == IN_PLACE_FIELDS


def test_the_arguments_of_the_simulated_engine_are_listed() -> None:
    _, _, section = prose(DOCS / "manifests.md").partition("## Simulated engine")
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert set(re.findall(r"`(\w+)`", " ".join(cells))) == set(simulated.ARGS)


def test_the_programs_of_the_engines_are_listed() -> None:
    page = prose(DOCS / "manifests.md")
    for engine, program in PROGRAMS.items():
        assert f"| `{engine}` | `{program}` |" in page


def test_each_way_in_which_a_model_is_not_there_is_listed_as_ps_shows_it() -> None:
    """With the command of that line as the way back, or a request."""
    _, _, section = prose(DOCS / "scaling.md").partition("## When a model is not there")
    rows = [line.strip("| ").split(" | ") for line in section.partition("\n## ")[0].splitlines() if "`chat: " in line]
    listed = {line.strip("`"): back for line, _, _, back in rows}
    ways = (("stopped", "user"), ("stopped", "policy"), ("asleep", "autoscaler"), ("stopped", ""))
    for phase, source in ways:
        raw = deployment("chat", phase, spec={"replicas": 1 if source else 0})
        at = datetime(2026, 11, 22, tzinfo=UTC)
        raw["status"]["intents"] = [{"source": source, "max_replicas": 0, "created_at": at}] if source else []
        (line,) = notes([parse(DeploymentView, raw)])
        back = "a request" if phase == "asleep" else re.findall(r"gpuward \w+ chat(?: \d)?", line)[0]
        assert back in listed.pop(line)
    assert listed == {}


# Commands


@pytest.mark.parametrize("fence", SHELL, ids=lambda fence: fence.where)
def test_the_commands_of_a_block_exist(fence: Fence) -> None:
    for words in commands_of(fence.text):
        assert_is_a_command(words, fence.where)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_the_commands_in_the_text_exist(page: Path) -> None:
    for found in re.finditer(r"`(gpuward [^`]+)`", prose(page)):
        for words in commands_of(found[1].replace("\n", " ")):
            assert_is_a_command(words, page.name)


def test_a_command_that_does_not_exist_is_found() -> None:
    (words,) = commands_of("echo x | .venv/bin/gpuward appply -f - --wait  # a comment")
    assert words == ["appply", "-f", "-", "--wait"]
    with pytest.raises(AssertionError, match="no such verb"):
        assert_is_a_command(words, "here")
    with pytest.raises(AssertionError, match="--wit"):
        assert_is_a_command(["apply", "--wit"], "here")


# Messages that a page quotes


@cache
def texts_of_the_source() -> str:
    """Every text of the packages, what f-strings fill in left out as a line break."""
    found: list[str] = []
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            found += [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return "\n".join([*found, (ROOT / "Makefile").read_text(encoding="utf-8")])


def quoted_messages(page: Path) -> list[str]:
    """The first columns' quotations that are sentences rather than codes."""
    cells = [line.split("|")[1] for line in prose(page).splitlines() if line.startswith("| ")]
    quoted = [text for cell in cells for text in re.findall(r"`([^`]+)`", cell)]
    return [
        text for text in quoted if " " in text and "fit:" not in text and not text.startswith(("gpuward", "docker"))
    ]


@pytest.mark.parametrize("page", MESSAGE_PAGES, ids=lambda page: page.name)
def test_a_quoted_message_is_one_of_ours(page: Path) -> None:
    messages = quoted_messages(page)
    assert messages
    for message in messages:
        for part in message.split("…"):
            words = part.removesuffix("http://").strip()
            assert words in texts_of_the_source(), f"{page.name} quotes {message!r}: {words!r} is not in the source"
