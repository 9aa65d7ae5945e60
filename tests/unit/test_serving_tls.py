"""What the controller says of the ends of its certificates."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from controller.decide.attention import find_attention
from controller.domain.attention import AttentionSnapshot
from controller.serving_tls import ServingTls, serving_tls
from controller.settings import ControllerSettings
from http1.tls.authority import Authority
from http1.tls.issue import Issued, issue_server, make_authority
from http1.tls.pinned import trusting

NOW = datetime.now(UTC)


def own(folder: Path, issued: Issued, authority: Issued) -> ServingTls:
    (folder / "server.pem").write_bytes(issued.certificate + issued.key)
    (folder / "ca.crt").write_bytes(authority.certificate)
    settings = ControllerSettings(
        data_dir=folder, tls_cert=folder / "server.pem", tls_key=folder / "server.pem", tls_ca=folder / "ca.crt"
    )
    found = serving_tls(settings)
    assert found is not None
    return found


def codes(tls: ServingTls) -> list[str]:
    facts = AttentionSnapshot(NOW, certificates=tls.certificates(tls.authority_ends()))
    return sorted(entry.code for entry in find_attention(facts))


def test_an_authority_of_the_data_folder_ends_in_ten_years(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.make(NOW)
    authority.issue_own((), NOW)
    tls = serving_tls(ControllerSettings(data_dir=tmp_path))
    assert tls is not None
    ends = tls.authority_ends()
    assert ends is not None
    assert timedelta(days=3640) < ends - NOW < timedelta(days=3651)
    assert codes(tls) == []


def test_what_ends_soon_is_told_of_certificate_and_authority(tmp_path: Path) -> None:
    short = make_authority(NOW, days=89)
    tls = own(tmp_path, issue_server(short, ["localhost"], NOW, days=13), short)
    assert codes(tls) == ["authority_ends", "certificate_ends"]
    (tmp_path / "server.pem").write_text("nothing")
    tls.certificate.look()
    assert codes(tls) == ["authority_ends", "certificate_ends", "certificate_not_replaced"]


def test_a_file_with_two_authorities_is_trusted_for_both(tmp_path: Path) -> None:
    first, second = make_authority(NOW), make_authority(NOW)
    both = tmp_path / "both.crt"
    both.write_bytes(first.certificate + second.certificate)
    assert len(trusting(both).get_ca_certs()) == 2
