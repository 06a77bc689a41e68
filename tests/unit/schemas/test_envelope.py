"""Headers: those of CloudEvents' Kafka binding, as others read them."""

from __future__ import annotations

import re

from schemas.envelope import Envelope, from_headers, to_headers

# RFC 3986: the characters of a URI reference, and what is percent-encoded.
URI = re.compile(rb"(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-F]{2})+")
HEADERS = {"ce_specversion", "ce_id", "ce_source", "ce_type", "content-type"}


def test_what_a_cloud_event_must_say_is_said_and_nothing_that_is_empty() -> None:
    headers = dict(to_headers(Envelope(event_id="e1", event_type="claim-requested", source="claimlog/scheduler/s1")))

    assert set(headers) == HEADERS
    assert (headers["ce_specversion"], headers["content-type"], headers["ce_type"]) == (
        b"1.0",
        b"application/json",
        b"claimlog.claim-requested",
    )
    assert headers["ce_source"] == b"claimlog/scheduler/s1"


def test_a_source_is_a_uri_reference_whatever_the_name_of_its_process() -> None:
    for name in ("rack 7 #3", "n\N{LATIN SMALL LETTER O WITH DIAERESIS}rd", "50%", 'qemu+tls://c01.example/system?x="1"', "a\nb"):
        envelope = Envelope(event_id="e1", event_type="claim-requested", source=f"claimlog/scheduler/{name}")

        headers = to_headers(envelope)

        assert URI.fullmatch(dict(headers)["ce_source"])
        assert from_headers(headers) == envelope
