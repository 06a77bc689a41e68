"""TLS, SASL and addresses for the connection by which a worker joins the others: librdkafka's settings, in the words of Python.

The engines' connections are librdkafka's and take the settings as they are. Faust's is Python's own: what Python's `ssl` can do has the
same effect there, what it cannot do is refused at the start. What librdkafka does not heed (`ssl.*` without TLS, settings of another SASL
mechanism) is no matter here either.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final, NamedTuple

from streams.log.kafka_settings import SettingsProblem

PROTOCOLS: Final = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
TRUE: Final = frozenset(("true", "t", "1"))
FALSE: Final = frozenset(("false", "f", "0"))
"""Booleans as librdkafka 2.16 takes them, in any case; yes and no it refuses."""
BUNDLES: Final = ("/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/cert.pem")
"""Where systems keep whom they trust. Librdkafka looks there; a Python that was built elsewhere knows places of its own only."""
FAMILIES: Final[Mapping[str, socket.AddressFamily]] = {
    "any": socket.AF_UNSPEC,
    "v4": socket.AF_INET,
    "v6": socket.AF_INET6,
}
_DONE: Final = frozenset(
    (
        "ssl.ca.location", "ssl.ca.pem", "ssl.crl.location", "ssl.cipher.suites", "ssl.endpoint.identification.algorithm",
        "ssl.certificate.location", "ssl.certificate.pem", "ssl.key.location", "ssl.key.pem", "ssl.key.password",
        # Without the keystore, which is refused, its password opens nothing.
        "ssl.keystore.password",
    )
)  # fmt: skip
_CONFIGURED: Final = "a file that OPENSSL_CONF names, with {} in the section of system_default, which holds for all of this process"
_INSTEAD: Final[Mapping[str, str]] = {
    "ssl.keystore.location": "ssl.certificate.location and ssl.key.location, both with the file that `openssl pkcs12 -in KEYSTORE -out "
    "client.pem` makes, and ssl.key.password",
    "ssl.curves.list": _CONFIGURED.format("Groups"),
    "ssl.sigalgs.list": _CONFIGURED.format("SignatureAlgorithms"),
    "ssl.providers": "a file that OPENSSL_CONF names, with a section of providers",
    "ssl.engine.location": "ssl.key.location, with the key in a file",
    "ssl.engine.id": "ssl.key.location, with the key in a file",
}


class Security(NamedTuple):
    """How a connection is made safe: `tls` is None without TLS, `mechanism` None without SASL."""

    tls: ssl.SSLContext | None = None
    mechanism: str | None = None
    username: str | None = None
    password: str | None = None


def security(options: Mapping[str, str]) -> Security:
    """What librdkafka's settings ask for. Raises SettingsProblem for what Python cannot do, with what can be said instead."""
    protocol = options.get("security.protocol", "plaintext").lower()
    if protocol not in PROTOCOLS:
        raise SettingsProblem(f"security.protocol={protocol}: known are plaintext, ssl, sasl_plaintext and sasl_ssl")
    context = _tls(options) if protocol.endswith("ssl") else None
    if not protocol.startswith("sasl"):
        return Security(context)
    # Two names of one setting: librdkafka goes by the last that it is told.
    mechanism = [value for name, value in [("", "GSSAPI"), *options.items()] if name in {"", "sasl.mechanism", "sasl.mechanisms"}][-1]
    if mechanism not in MECHANISMS:
        raise SettingsProblem(f"sasl.mechanism={mechanism}: the stream processor's workers can do PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512")
    return Security(context, mechanism, options.get("sasl.username"), options.get("sasl.password"))


def address_family(options: Mapping[str, str]) -> socket.AddressFamily:
    """Which addresses of a broker are tried. Raises SettingsProblem."""
    given = options.get("broker.address.family", "any")
    if given.lower() not in FAMILIES:
        raise SettingsProblem(f"broker.address.family={given}: known are {', '.join(FAMILIES)}")
    return FAMILIES[given.lower()]


def resolve_only(loop: asyncio.AbstractEventLoop, family: socket.AddressFamily) -> None:
    """From now on names have addresses of this family only for all that connects in this loop."""
    ask = loop.getaddrinfo

    async def asked(host: Any, port: Any, **how: Any) -> Any:
        return await ask(host, port, **how | {"family": family})

    loop.getaddrinfo = asked  # type: ignore[method-assign] # aiokafka says no family when it connects, so the loop does


def _tls(options: Mapping[str, str]) -> ssl.SSLContext:
    # An empty text is how librdkafka is told to forget a setting.
    given = {name: value for name, value in options.items() if value}
    for name in sorted(given):
        if name.startswith("ssl.") and name not in _DONE:
            instead = _INSTEAD.get(name)
            raise SettingsProblem(
                f"{name}: the connection by which the stream processor's workers join each other cannot do that; "
                + (f"use {instead}" if instead else "leave it out for them")
            )
    # Not ssl.create_default_context: from Python 3.13 on that turns certificates down that librdkafka takes.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if given.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        context.check_hostname = False
    if not _flag(given, "enable.ssl.certificate.verification"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if "ssl.cipher.suites" in given:
        with _named(given, "ssl.cipher.suites"):
            context.set_ciphers(given["ssl.cipher.suites"])
    _trust(context, given)
    if "ssl.crl.location" in given:
        with _named(given, "ssl.crl.location"):
            context.load_verify_locations(given["ssl.crl.location"])
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    _show(context, given)
    return context


def _trust(context: ssl.SSLContext, given: Mapping[str, str]) -> None:
    """Who may vouch for a broker: a text goes before a file or a folder, whose names `openssl rehash` makes, that before the system."""
    text, place = given.get("ssl.ca.pem"), given.get("ssl.ca.location", "probe")
    if text is not None:
        with _named(given, "ssl.ca.pem"):
            # Only its comments may be in other letters, and Python takes none.
            context.load_verify_locations(cadata=text.encode("ascii", "replace").decode())
    elif place != "probe":
        with _named(given, "ssl.ca.location"):
            if Path(place).is_dir():
                context.load_verify_locations(capath=place)
            else:
                context.load_verify_locations(cafile=place)
    else:
        context.load_default_certs()
        for bundle in BUNDLES:
            try:
                context.load_verify_locations(cafile=bundle)
            except OSError:
                continue
            break


def _show(context: ssl.SSLContext, given: Mapping[str, str]) -> None:
    """What a broker is shown of us, if it asks."""
    names = [name for name in ("ssl.certificate.pem", "ssl.certificate.location", "ssl.key.pem", "ssl.key.location") if name in given]
    if not names:
        return
    if not any(name.startswith("ssl.certificate.") for name in names):
        raise SettingsProblem(f"{names[0]} is a key without its certificate: add ssl.certificate.location or ssl.certificate.pem")
    with (
        _named(given, *names),
        _file(given.get("ssl.certificate.location"), given.get("ssl.certificate.pem")) as certificate,
        _file(given.get("ssl.key.location"), given.get("ssl.key.pem")) as key,
    ):
        # Without a password Python would ask for one at the terminal.
        context.load_cert_chain(certificate or "", key, given.get("ssl.key.password", ""))


@contextmanager
def _file(location: str | None, text: str | None) -> Iterator[str | None]:
    """A file to read from. Python reads certificates and keys from nothing else, so text gets one, for this user's eyes and this moment."""
    if text is None:
        yield location
        return
    with NamedTemporaryFile("w", prefix="claimlog-", suffix=".pem", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        yield file.name


@contextmanager
def _named(given: Mapping[str, str], *names: str) -> Iterator[None]:
    """Say which settings it was that Python turned down; texts are not shown, since keys are among them."""
    try:
        yield
    except (OSError, ValueError) as problem:
        shown = [name if name.endswith(".pem") else f"{name}={given[name]}" for name in names]
        raise SettingsProblem(f"{', '.join(shown)}: {problem}") from None


def _flag(given: Mapping[str, str], name: str) -> bool:
    value = given.get(name, "true").lower()
    if value not in TRUE | FALSE:
        raise SettingsProblem(f"{name}={value}: expected true or false")
    return value in TRUE
