"""Every file that is named is read, and what is wrong in any of them changes nothing."""

import pytest

from cli.errors import CliError, UsageError
from cli.manifest.files import read_manifests
from schemas.manifest.strict_yaml import MAX_TEXT_BYTES


def manifest(name: str, **more: object) -> str:
    return f"kind: Deployment\nname: {name}\nengine: simulated\n" + "".join(f"{k}: {v}\n" for k, v in more.items())


@pytest.fixture
def folder(tmp_path):
    for name in ("b.yaml", "a.yml", "c.json"):
        (tmp_path / name).write_text(
            manifest(name[0]) if "json" not in name else '{"kind": "Deployment", "name": "c", "engine": "simulated"}'
        )
    (tmp_path / "notes.txt").write_text("not a manifest")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "d.yaml").write_text(manifest("d"))
    return tmp_path


def names(*sources: object) -> list[str]:
    return [one.name for one in read_manifests([str(source) for source in sources])]


def test_files_are_read_in_their_order(folder):
    assert names(folder / "b.yaml", folder / "a.yml") == ["b", "a"]
    assert names(folder / "b.yaml", folder / "b.yaml") == ["b"], "named twice, meant once"


def test_of_a_folder_the_manifests_are_read_by_name(folder):
    assert names(folder) == ["a", "b", "c"]
    assert names(folder / "below", folder / "a.yml") == ["d", "a"]
    with pytest.raises(UsageError, match=r"has no file whose name ends with \.yaml"):
        names(folder.parent)


def test_a_pattern_is_found_where_the_shell_did_not(folder):
    assert names(folder / "*.y*ml") == ["a", "b"]
    with pytest.raises(UsageError, match=r"no file is named like .*\*\.toml"):
        names(folder / "*.toml")
    (folder / "[x].yaml").write_text(manifest("x"))
    assert names(folder / "[x].yaml") == ["x"]


@pytest.mark.parametrize("address", ["https://example.org/a.yaml", "HTTP://example.org/a.yaml", "s3://bucket/a"])
def test_an_address_is_refused_with_a_word(address):
    with pytest.raises(UsageError, match="is an address, and none is read: download the file"):
        names(address)


def test_stdin_is_read_once(folder):
    with pytest.raises(UsageError, match="stdin"):
        names("-", folder / "a.yml", "-")


def test_problems_of_all_files_are_told_at_once(folder):
    (folder / "a.yml").write_text(manifest("a", replica=2))
    (folder / "b.yaml").write_text(manifest("b", engine="vlm").replace("engine: simulated\n", ""))
    with pytest.raises(CliError) as told:
        names(folder)
    text = str(told.value)
    assert f"a.yml is not valid; nothing was changed:\n  {folder}/a.yml:4: replica: " in text
    assert f"b.yaml is not valid; nothing was changed:\n  {folder}/b.yaml:3: engine: " in text


def test_one_name_in_two_files_is_refused(folder):
    (folder / "b.yaml").write_text(manifest("a"))
    with pytest.raises(CliError, match=r"b\.yaml: 'a' is in .*a\.yml too; nothing was changed: rename one"):
        names(folder)


def test_a_file_without_an_end_is_refused_soon():
    with pytest.raises(CliError, match="the limit is"):
        names("/dev/zero")


def test_a_file_at_the_limit_is_read(folder):
    text = manifest("a")
    (folder / "a.yml").write_text(text + "#" * (MAX_TEXT_BYTES - len(text)))
    assert names(folder / "a.yml") == ["a"]
    (folder / "a.yml").write_text(text + "#" * (MAX_TEXT_BYTES - len(text) + 1))
    with pytest.raises(CliError, match="the limit is"):
        names(folder / "a.yml")


def test_apply_and_plan_take_several(gpuward, folder):
    done = gpuward("apply", "-f", str(folder / "a.yml"), "-f", str(folder / "b.yaml"))
    assert done.exit_code == 0, done.output
    assert done.stdout == "deployment/a created\ndeployment/b created\n"
    refused = gpuward("apply", "-f", str(folder / "a.yml"), "-f", str(folder / "missing.yaml"))
    assert refused.exit_code == 2
    assert "missing.yaml cannot be read" in refused.stderr


def test_a_name_that_no_file_can_have_is_told():
    with pytest.raises(UsageError, match="cannot be read"):
        names("a" * 300)


def test_of_a_folder_hidden_files_are_left_and_suffixes_of_any_case_are_read(folder):
    (folder / "._a.yml").write_text("\x00")
    (folder / "E.YAML").write_text(manifest("e"))
    assert names(folder) == ["e", "a", "b", "c"]
