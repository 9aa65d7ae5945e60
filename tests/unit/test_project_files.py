"""What the files for contributors and for code hosts name exists: targets, scripts, Pythons, folders, programs."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from schemas.version import __version__
from support.command_texts import assert_is_a_command, commands_of
from support.pages import ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = [file for file in sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")) if file.name != "config.yml"]
HOOKS = ROOT / ".pre-commit-config.yaml"
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
SUPPORTED = SpecifierSet(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"])


def read(file: Path) -> Any:
    return yaml.load(file.read_text(encoding="utf-8"), yaml.BaseLoader)  # noqa: S506 - 3.10 stays a text


def commands(file: Path) -> Iterator[str]:
    """The commands of a workflow, each value of a matrix filled in."""
    for job in read(file)["jobs"].values():
        matrix = job.get("strategy", {}).get("matrix", {})
        for step in job["steps"]:
            command = step.get("run", "")
            names = re.findall(r"\$\{\{ matrix\.(\w+) \}\}", command)
            values = matrix[names[0]] if names else [""]
            yield from (re.sub(r"\$\{\{ matrix\.\w+ \}\}", value, command) for value in values)


def make_targets(command: str) -> list[str]:
    words = command.split()
    return [w for w in words[1:] if "=" not in w and not w.startswith("-")] if words[:1] == ["make"] else []


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_a_workflow_runs_targets_and_scripts_that_exist(file: Path) -> None:
    ran = [command for command in commands(file) if command]
    assert any(make_targets(command) or command.startswith(".ci/") for command in ran)
    for command in ran:
        assert set(make_targets(command)) <= TARGETS, command
        if command.startswith("."):
            script = ROOT / command.split()[0]
            assert script.is_file()
            assert script.stat().st_mode & 0o100, command


def test_clean_removes_each_ignored_folder_but_what_python_writes_everywhere() -> None:
    lines = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    ignored = {line.strip("/") for line in lines if not line.startswith("#")} - {"__pycache__", "*.egg-info"}
    shown = subprocess.run(["make", "-n", "clean"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ignored <= set(shown.stdout.split())


def test_a_change_runs_the_quick_targets_that_need_environments_of_their_own() -> None:
    ran = {target for command in commands(GITHUB / "workflows/checks.yml") for target in make_targets(command)}
    assert {"test-flags", "test-clients", "test-helm"} <= ran


def test_every_supported_python_from_the_lowest_is_tried() -> None:
    pythons = [
        Version(one) for one in read(GITHUB / "workflows/checks.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    ]
    assert all(one in SUPPORTED for one in pythons)
    lowest = min(pythons)
    assert Version(f"{lowest.major}.{lowest.minor - 1}") not in SUPPORTED
    assert [one.minor for one in pythons] == list(range(lowest.minor, lowest.minor + len(pythons)))


def test_dependabot_finds_what_it_updates() -> None:
    looked_for = {"pip": "*.txt", "npm": "package-lock.json", "github-actions": ".github/workflows/*.yml"}
    updates = read(GITHUB / "dependabot.yml")["updates"]
    assert {update["package-ecosystem"] for update in updates} == set(looked_for)
    for update in updates:
        folder = ROOT / update["directory"].lstrip("/")
        assert list(folder.glob(looked_for[update["package-ecosystem"]])), update
        for path in update.get("exclude-paths", ()):
            assert list(folder.glob(path)), path


@pytest.mark.parametrize("file", FORMS, ids=lambda file: file.name)
def test_a_form_names_commands_that_exist(file: Path) -> None:
    form = read(file)
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    for found in re.findall(r"`(gpuward [^`]+)`", file.read_text(encoding="utf-8")):
        for words in commands_of(found):
            assert_is_a_command(words, file.name)


def test_the_hooks_run_programs_that_make_setup_installs() -> None:
    entries = [hook["entry"].split() for repo in read(HOOKS)["repos"] for hook in repo["hooks"]]
    assert entries
    for program, *arguments in entries:
        assert set(make_targets(" ".join([program, *arguments]))) <= TARGETS
        if program != "make":
            assert Path(sys.executable).with_name(Path(program).name).exists(), program


def test_the_version_has_a_section_in_the_changelog_and_the_newest_come_first() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    unreleased, *released = re.findall(r"^## \[([^\]]+)\]", text, flags=re.MULTILINE)
    assert unreleased == "Unreleased"
    assert __version__ in released
    assert released == sorted(released, key=Version, reverse=True)
    groups = set(re.findall(r"^### (.+)$", text, flags=re.MULTILINE))
    assert groups <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="attributes are Git's")
def test_generated_files_are_marked_and_no_others() -> None:
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    given = "\n".join(file for file in files if file)
    command = ["git", "check-attr", "--stdin", "linguist-generated"]
    answer = subprocess.run(command, cwd=ROOT, input=given, capture_output=True, text=True, check=True).stdout
    marked = {line.split(": ")[0] for line in answer.splitlines() if line.endswith(": set")}
    built = {file for file in given.split("\n") if file.startswith(("controller/dashboard/files/", "locks/"))}
    assert built <= marked
    assert {"ui/src/api/schema.d.ts", "ui/package-lock.json", "schemas/variable_names.py"} <= marked
    written = {
        f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md") if "<!-- Written by `make" in page.read_text()
    }
    boards = {file for file in given.split("\n") if file.startswith("deploy/grafana/") and file.endswith(".json")}
    assert {file for file in marked - built if file.startswith(("docs/", "deploy/"))} == written | boards | {
        "docs/estimates.md"
    }
