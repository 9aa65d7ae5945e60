"""The key of agents' proxies: derived from that of secrets, kept where gateways find it, and read again there."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.app import app
from controller.live.proxy_keys import ProxyKeys
from controller.secrets_key import KEY_FILE, drop_old_keys, open_keys, proxy_keys, renew_key
from controller.settings import ControllerSettings
from controller.store.access.proxy_secrets import PURPOSE
from controller.store.access.secret_keys import SecretKeys, new_key, parse_keys
from gateway.settings import GatewaySettings


def settings(folder: Path, **fields: object) -> ControllerSettings:
    return ControllerSettings(data_dir=folder, **fields)  # type: ignore[arg-type]


def gateway(**fields: object) -> GatewaySettings:
    return GatewaySettings(database_url="postgresql://h/d", **fields)  # type: ignore[arg-type]


def test_a_gateway_opens_what_the_controller_has_sealed(tmp_path: Path) -> None:
    keys = open_keys(settings(tmp_path))
    file = tmp_path / "proxy.key"
    file.write_text("\n".join(proxy_keys(settings(tmp_path))))
    sealed = keys.branch(PURPOSE).seal("a", "secret")
    assert ProxyKeys(file).keys.open("a", keys.branch(PURPOSE).current, sealed) == "secret"
    assert set(keys.ids).isdisjoint(ProxyKeys(file).keys.ids)
    assert keys.texts()[0] not in file.read_text()


async def test_a_gateway_reads_its_file_again(tmp_path: Path) -> None:
    file = tmp_path / "proxy.key"
    mine = ProxyKeys(file)
    assert mine.keys.ids == (), "a controller that starts later writes it"
    old, new = new_key(), new_key()
    for texts in ([old], [new, old]):
        file.write_text("\n".join(texts))
        await mine.refresh()
        assert mine.keys.ids == SecretKeys(lambda texts=texts: parse_keys(",".join(texts))).ids  # type: ignore[misc]
    known = mine.keys.ids
    for damaged in ("not a key", ""):
        file.write_text(damaged)
        await mine.refresh()
        assert mine.keys.ids == known
    file.unlink()
    await mine.refresh()
    assert mine.keys.ids == known


class Denied(type(Path())):  # type: ignore[misc]
    """A file that this account may not read, until it may. The account of tests may read all."""

    allowed = False

    def open(self, *args: object, **fields: object) -> object:
        if not Denied.allowed:
            raise PermissionError(13, "Permission denied", str(self))
        return super().open(*args, **fields)


async def test_a_file_that_becomes_readable_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Denied, "allowed", True)
    file = Denied(tmp_path / "proxy.key")
    mine = ProxyKeys(file)
    monkeypatch.setattr(Denied, "allowed", False)
    (tmp_path / "proxy.key").write_text(new_key())
    await mine.refresh()
    assert mine.keys.ids == ()
    monkeypatch.setattr(Denied, "allowed", True)
    await mine.refresh()
    assert mine.keys.ids == SecretKeys(lambda: parse_keys(file.read_text())).ids


async def test_a_gateway_starts_where_it_may_not_read_a_file_that_no_setting_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Denied(tmp_path / "proxy.key")
    (tmp_path / "proxy.key").write_text(new_key())
    monkeypatch.setattr(Denied, "allowed", False)
    with pytest.raises(PermissionError):
        ProxyKeys(file)
    mine = ProxyKeys(file, named=False)
    assert mine.keys.ids == ()
    monkeypatch.setattr(Denied, "allowed", True)
    await mine.refresh()
    assert len(mine.keys.ids) == 1


@pytest.mark.parametrize("text", ["not a key", "c2hvcnQ=", ""])
def test_a_malformed_file_is_refused_at_the_start(tmp_path: Path, text: str) -> None:
    file = tmp_path / "proxy.key"
    file.write_text(text)
    with pytest.raises(ValueError, match="key"):
        ProxyKeys(file)


def test_a_gateway_on_the_controllers_host_finds_it(tmp_path: Path) -> None:
    assert gateway(data_dir=tmp_path).proxy_keys_at == tmp_path / "proxy.key"
    assert gateway(controller="/run/g/controller.sock").proxy_keys_at == Path("/run/g/proxy.key")
    assert gateway(controller="http://a:1").proxy_keys_at is None
    for controller in ("/run/g/controller.sock", "http://a:1"):
        assert gateway(controller=controller, proxy_key_file=Path("/k")).proxy_keys_at == Path("/k")


def test_a_key_under_which_something_is_sealed_is_kept(tmp_path: Path) -> None:
    given = settings(tmp_path)
    keys = open_keys(given)
    first = keys.branch(PURPOSE).current
    for _ in range(2):
        renew_key(given, keys)
    drop_old_keys(given, keys, {first, keys.current})
    assert len((tmp_path / KEY_FILE).read_text().split()) == 2
    assert first in keys.branch(PURPOSE).ids
    drop_old_keys(given, keys, {keys.current})
    assert (len(keys.ids), len(keys.branch(PURPOSE).ids)) == (1, 1)


def test_the_verb_prints_what_other_hosts_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GPUWARD_")]:
        monkeypatch.delenv(name)
    none = CliRunner().invoke(app, ["secret", "proxy-key", "--data-dir", str(tmp_path)])
    assert (none.exit_code, none.stdout) == (1, "")
    assert not (tmp_path / KEY_FILE).exists(), "nothing is made"
    keys = open_keys(settings(tmp_path))
    other = tmp_path / "other.key"
    other.write_text(new_key())
    assert CliRunner().invoke(app, ["secret", "proxy-key", "--data-dir", str(tmp_path)]).stdout.split() == [
        *keys.branch(PURPOSE).texts()
    ]
    printed = CliRunner().invoke(app, ["secret", "proxy-key", "--key-file", str(other)]).stdout.split()
    assert printed == [*open_keys(settings(tmp_path, secrets_key_file=other)).branch(PURPOSE).texts()]
