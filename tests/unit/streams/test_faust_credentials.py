"""TLS and SASL of the client library as Faust takes them."""

from __future__ import annotations

import ssl

import pytest

from streams.app import _credentials
from streams.log.kafka_settings import SettingsProblem


def test_plain_text_needs_nothing() -> None:
    assert _credentials({"client.id": "x"}) is None


def test_a_name_and_password_over_tls_are_handed_on() -> None:
    options = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "u", "sasl.password": "p"}

    made = _credentials(options)

    assert (made.username, made.password, made.mechanism.value, made.protocol.value) == ("u", "p", "SCRAM-SHA-512", "SASL_SSL")
    assert made.ssl_context.verify_mode == ssl.CERT_REQUIRED


def test_tls_without_a_check_of_the_broker_must_be_asked_for() -> None:
    checked = _credentials({"security.protocol": "ssl"})
    unchecked = _credentials({"security.protocol": "ssl", "enable.ssl.certificate.verification": "false"})

    assert (checked.context.check_hostname, unchecked.context.check_hostname) == (True, False)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"security.protocol": "tls"}, "known are plaintext"),
        ({"security.protocol": "sasl_plaintext", "sasl.mechanism": "GSSAPI"}, "can do PLAIN"),
        ({"security.protocol": "ssl", "ssl.ca.location": "/nowhere/ca.pem"}, r"ssl\.ca\.location"),
    ],
)
def test_what_faust_cannot_do_is_refused_with_what_it_can(options: dict[str, str], says: str) -> None:
    with pytest.raises(SettingsProblem, match=says):
        _credentials(options)
