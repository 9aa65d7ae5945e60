"""A server's certificate, and the authority that issued it."""

import ssl
from pathlib import Path

import pytest

from http1.tls.certificate import ServedCertificate
from http1.tls.pinned import trusting
from support.network.tls_server import AUTHORITY, issued, write


@pytest.fixture
def certificate(tmp_path: Path) -> ServedCertificate:
    return ServedCertificate(*write(tmp_path, issued()))


@pytest.fixture
def authority(tmp_path: Path) -> ssl.SSLContext:
    file = tmp_path / "ca.crt"
    file.write_bytes(AUTHORITY.certificate)
    return trusting(file)
