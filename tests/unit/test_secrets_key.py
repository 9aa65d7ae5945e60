"""Where the key comes from that encrypts secrets."""

import stat
from pathlib import Path

import pytest

from controller.secrets_key import KEY_FILE, drop_old_keys, open_keys, renew_key
from controller.settings import ControllerSettings
from controller.store.access.secret_keys import SecretsKeyError, new_key


def settings(tmp_path: Path, **more: object) -> ControllerSettings:
    return ControllerSettings.model_validate({"data_dir": tmp_path, **more})


def test_the_first_start_with_the_embedded_database_makes_a_key(tmp_path: Path) -> None:
    first = open_keys(settings(tmp_path))
    file = tmp_path / KEY_FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert open_keys(settings(tmp_path)).ids == first.ids
    assert len(first.ids) == 1


def test_a_rotation_keeps_the_old_key_until_it_is_dropped(tmp_path: Path) -> None:
    its = settings(tmp_path)
    keys = open_keys(its)
    (old,) = keys.ids
    sealed = keys.seal("hf", "value")
    renew_key(its, keys)
    assert keys.current != old
    assert keys.open("hf", old, sealed) == "value"
    drop_old_keys(its, keys)
    assert keys.ids == open_keys(its).ids == (keys.current,)


def test_an_external_database_has_the_key_of_the_settings(tmp_path: Path) -> None:
    url = "postgresql://u:p@db/gpuward"
    assert open_keys(settings(tmp_path, database_url=url)).current == ""
    assert not (tmp_path / KEY_FILE).exists(), "a key that one controller made would lock out the others"
    file, text = tmp_path / "keys", new_key()
    file.write_text(text + "\n")
    by_file = open_keys(settings(tmp_path, database_url=url, secrets_key_file=file))
    assert by_file.ids == open_keys(settings(tmp_path, database_url=url, secrets_key=text)).ids


@pytest.mark.parametrize("content", ["", "not base64", "YWJj"])
def test_what_is_wrong_is_named_without_the_key(tmp_path: Path, content: str) -> None:
    file = tmp_path / "keys"
    file.write_text(content)
    with pytest.raises(SecretsKeyError, match=r"GPUWARD_SECRETS_KEY_FILE: .*32 bytes in base64"):
        open_keys(settings(tmp_path, secrets_key_file=file))
    with pytest.raises(SecretsKeyError, match="No such file"):
        open_keys(settings(tmp_path, secrets_key_file=tmp_path / "none"))


def test_two_sources_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="set one of them"):
        settings(tmp_path, secrets_key=new_key(), secrets_key_file=tmp_path / "keys")
