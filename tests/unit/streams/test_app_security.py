"""What a worker's own connection makes of librdkafka's settings for TLS, SASL and addresses, shown by handshakes."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from streams import app_security
from streams.app_security import address_family, resolve_only, security
from streams.log.kafka_settings import SettingsProblem

NAME = "broker.example"
PASSWORD = "opens-the-key"
AUTHORITY = """\
[ca]
default_ca = ours
[ours]
database = {folder}/index
crlnumber = {folder}/number
default_md = sha256
default_crl_days = 2
"""


class Certificates:
    """An authority; `broker`, `revoked` and `client`, which it vouches for; `stranger`, which nobody does: NAME.pem and NAME.key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._new("ca", "-x509", "-days", "2", "-nodes", "-subj", "/CN=ca")
        self._new("stranger", "-x509", "-days", "2", "-nodes", "-subj", "/CN=stranger", "-addext", f"subjectAltName=DNS:{NAME}")
        for name in ("broker", "revoked"):
            self._new(name, "-nodes", "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{NAME}")
        self._new("client", "-passout", f"pass:{PASSWORD}", "-subj", "/CN=client")
        for name in ("broker", "revoked", "client"):
            request = ["-in", self.path(f"{name}.pem"), "-out", self.path(f"{name}.signed"), "-copy_extensions", "copy", "-days", "2"]
            self.openssl("x509", "-req", *request, "-CA", self.path("ca.pem"), "-CAkey", self.path("ca.key"), "-CAcreateserial")
            (folder / f"{name}.signed").replace(folder / f"{name}.pem")
        (folder / "index").touch()
        (folder / "number").write_text("01\n")
        (folder / "ca.conf").write_text(AUTHORITY.format(folder=folder))
        by = ["-config", self.path("ca.conf"), "-cert", self.path("ca.pem"), "-keyfile", self.path("ca.key")]
        self.openssl("ca", *by, "-revoke", self.path("revoked.pem"))
        self.openssl("ca", *by, "-gencrl", "-out", self.path("crl.pem"))
        (folder / "hashed").mkdir()
        shutil.copy(folder / "ca.pem", folder / "hashed")
        self.openssl("rehash", self.path("hashed"))

    def _new(self, name: str, *arguments: str) -> None:
        kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        self.openssl("req", *kind, "-keyout", self.path(f"{name}.key"), "-out", self.path(f"{name}.pem"), *arguments)

    def openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()

    def broker(self, name: str = "broker", *, asks: bool = False) -> ssl.SSLContext:
        """A broker's side, which may ask who comes."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.path(f"{name}.pem"), self.path(f"{name}.key"))
        if asks:
            context.load_verify_locations(self.path("ca.pem"))
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def met(self, options: Mapping[str, str], broker: ssl.SSLContext | None = None, name: str = NAME) -> str:
        """What comes of a handshake with a broker: "" if it succeeds, else why not. The broker has the authority's word unless told."""
        context = security({"security.protocol": "SSL", **options}).tls
        assert context is not None
        to_broker, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(to_client, to_broker, server_hostname=name)
        server = (broker or self.broker()).wrap_bio(to_broker, to_client, server_side=True)
        try:
            for _ in range(3):
                for side in (client, server):
                    with suppress(ssl.SSLWantReadError):
                        side.do_handshake()
        except ssl.SSLError as problem:
            return str(problem)
        return ""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: apt install openssl")
    return Certificates(tmp_path_factory.mktemp("certificates"))


def test_an_authority_may_be_a_text_a_file_or_a_folder(made: Certificates) -> None:
    ways = {
        "ssl.ca.pem": "# from T\u00fcrkiye\n" + made.text("stranger.pem") + made.text("ca.pem"),
        "ssl.ca.location": made.path("ca.pem"),
    }
    folder = {"ssl.ca.location": made.path("hashed")}

    for way in ({name: value} for name, value in ways.items()):
        assert made.met(way) == ""
    assert made.met(folder) == ""
    assert "certificate verify failed" in made.met(folder, made.broker("stranger"))
    assert "certificate verify failed" in made.met({"ssl.ca.location": made.path("ca.pem")}, made.broker("stranger"))


def test_a_text_goes_before_a_file_and_an_empty_one_is_none(made: Certificates) -> None:
    stranger = {"ssl.ca.location": made.path("stranger.pem")}

    assert made.met({**stranger, "ssl.ca.pem": made.text("ca.pem")}) == ""
    assert "certificate verify failed" in made.met({**stranger, "ssl.ca.pem": ""})


@pytest.mark.parametrize("place", [{}, {"ssl.ca.location": "probe"}])
def test_without_an_authority_the_system_says_whom_it_trusts(
    made: Certificates, monkeypatch: pytest.MonkeyPatch, place: dict[str, str]
) -> None:
    before = made.met(place)
    monkeypatch.setattr(app_security, "BUNDLES", ("/nowhere/ca.pem", made.path("ca.pem")))

    assert "certificate verify failed" in before
    assert made.met(place) == ""


@pytest.mark.parametrize("value", ["false", "False", "F", "0"])
def test_a_broker_is_not_checked_where_that_is_asked_for_in_any_of_librdkafkas_words(made: Certificates, value: str) -> None:
    assert made.met({"enable.ssl.certificate.verification": value}, made.broker("stranger"), "another.example") == ""


@pytest.mark.parametrize("value", ["true", "TRUE", "t", "1"])
def test_a_broker_is_checked_else(made: Certificates, value: str) -> None:
    assert "certificate verify failed" in made.met({"enable.ssl.certificate.verification": value})


@pytest.mark.parametrize("value", ["none", "None"])
def test_a_brokers_name_is_checked_unless_told_otherwise(made: Certificates, value: str) -> None:
    trusting = {"ssl.ca.location": made.path("ca.pem")}

    assert "Hostname mismatch" in made.met(trusting, name="another.example")
    assert made.met({**trusting, "ssl.endpoint.identification.algorithm": value}, name="another.example") == ""


def test_a_certificate_and_its_key_may_be_texts_or_files_and_no_text_is_left_behind(
    made: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    trusting, asking = {"ssl.ca.location": made.path("ca.pem"), "ssl.key.password": PASSWORD}, made.broker(asks=True)
    certificates = ({"ssl.certificate.pem": made.text("client.pem")}, {"ssl.certificate.location": made.path("client.pem")})
    keys = ({"ssl.key.pem": made.text("client.key")}, {"ssl.key.location": made.path("client.key")})

    ends = [made.met({**trusting, **certificate, **key}, asking) for certificate in certificates for key in keys]

    assert ends == ["", "", "", ""]
    assert "peer did not return a certificate" in made.met(trusting, asking).lower()
    assert list(tmp_path.iterdir()) == []


def test_the_file_that_a_refused_keystore_is_to_be_made_into_is_good(made: Certificates) -> None:
    keystore, client = made.path("client.p12"), made.path("from-keystore.pem")
    words = ["-passin", f"pass:{PASSWORD}", "-passout", f"pass:{PASSWORD}"]
    made.openssl("pkcs12", "-export", "-in", made.path("client.pem"), "-inkey", made.path("client.key"), "-out", keystore, *words)
    trusting = {"ssl.ca.location": made.path("ca.pem"), "ssl.key.password": PASSWORD}
    with pytest.raises(SettingsProblem) as refused:
        made.met({**trusting, "ssl.keystore.location": keystore, "ssl.keystore.password": PASSWORD})

    made.openssl("pkcs12", "-in", keystore, "-out", client, *words)

    assert "`openssl pkcs12 -in KEYSTORE -out client.pem`" in str(refused.value)
    assert made.met({**trusting, "ssl.certificate.location": client, "ssl.key.location": client}, made.broker(asks=True)) == ""


def test_a_broker_whose_certificate_was_revoked_is_not_trusted(made: Certificates) -> None:
    trusting = {"ssl.ca.location": made.path("ca.pem")}

    assert made.met(trusting, made.broker("revoked")) == ""
    assert "certificate revoked" in made.met({**trusting, "ssl.crl.location": made.path("crl.pem")}, made.broker("revoked"))
    assert made.met({**trusting, "ssl.crl.location": made.path("crl.pem")}) == ""


def test_ciphers_are_those_that_were_said(made: Certificates) -> None:
    broker, trusting = made.broker(), {"ssl.ca.location": made.path("ca.pem")}
    broker.maximum_version = ssl.TLSVersion.TLSv1_2
    broker.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")

    assert made.met({**trusting, "ssl.cipher.suites": "ECDHE-ECDSA-AES128-GCM-SHA256"}, broker) == ""
    assert "no shared cipher" in made.met({**trusting, "ssl.cipher.suites": "ECDHE-ECDSA-AES256-GCM-SHA384"}, broker).lower()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("ssl.keystore.location", "client.p12", "use ssl.certificate.location and ssl.key.location"),
        ("ssl.curves.list", "P-256", "OPENSSL_CONF"),
        ("ssl.sigalgs.list", "RSA+SHA256", "OPENSSL_CONF"),
        ("ssl.providers", "legacy", "OPENSSL_CONF"),
        ("ssl.engine.location", "engine.so", "use ssl.key.location"),
        ("ssl.of.a.later.librdkafka", "x", "leave it out for them"),
        ("enable.ssl.certificate.verification", "yes", "expected true or false"),
        ("ssl.ca.location", "/nowhere/ca.pem", "No such file"),
        ("ssl.ca.pem", "no certificate", "cadata"),
        ("ssl.crl.location", "/nowhere/crl.pem", "No such file"),
        ("ssl.cipher.suites", "none-such", "cipher"),
        ("ssl.certificate.location", "/nowhere/client.pem", "No such file"),
        ("ssl.key.location", "/nowhere/client.key", "add ssl.certificate.location"),
    ],
)
def test_what_python_cannot_do_is_refused_by_name_and_without_tls_it_is_no_matter(name: str, value: str, says: str) -> None:
    with pytest.raises(SettingsProblem) as refused:
        security({"security.protocol": "SSL", name: value})

    assert str(refused.value).startswith(name)
    assert says in str(refused.value)
    assert security({"security.protocol": "plaintext", name: value}) == (None, None, None, None)


def test_a_key_that_does_not_fit_is_refused_and_not_shown(made: Certificates) -> None:
    options = {"ssl.certificate.pem": made.text("broker.pem"), "ssl.key.pem": made.text("ca.key")}

    with pytest.raises(SettingsProblem) as refused:
        made.met(options)

    assert str(refused.value).startswith("ssl.certificate.pem, ssl.key.pem: ")
    assert "BEGIN" not in str(refused.value)


def test_of_the_two_names_of_a_mechanism_the_last_one_counts_as_for_librdkafka() -> None:
    options = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p"}

    assert security(options) == (None, "PLAIN", "u", "p")
    assert security({**options, "sasl.mechanisms": "SCRAM-SHA-256"}).mechanism == "SCRAM-SHA-256"


@pytest.mark.parametrize("mechanism", ["GSSAPI", "OAUTHBEARER", "AWS_MSK_IAM"])
def test_a_mechanism_that_workers_cannot_do_is_refused_with_those_they_can(mechanism: str) -> None:
    with pytest.raises(SettingsProblem, match=r"sasl\.mechanism=.*can do PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512"):
        security({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism})


def test_names_have_addresses_of_the_family_that_was_said_and_no_other() -> None:
    async def reached(family: socket.AddressFamily) -> bool:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        resolve_only(loop, family)
        try:
            transport, _ = await loop.create_connection(asyncio.Protocol, "localhost", server.sockets[0].getsockname()[1])
        except OSError:
            return False
        finally:
            server.close()
        transport.close()
        return True

    families = [address_family(said) for said in ({}, {"broker.address.family": "V4"}, {"broker.address.family": "v6"})]

    assert [asyncio.run(reached(family)) for family in families] == [True, True, False]
    with pytest.raises(SettingsProblem, match=r"broker\.address\.family=ipv4: known are any, v4, v6"):
        address_family({"broker.address.family": "ipv4"})
