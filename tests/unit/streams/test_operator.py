"""What operators say becomes records under the right key, with an id that makes a copy known for a copy."""

from __future__ import annotations

from projections.ledger import Ledger
from schemas.claims import ClaimReleased, ClaimRenewed, NodeConfigured
from schemas.codec import decode_keyed, encode
from schemas.envelope import from_headers
from schemas.inventory import OperatorFields
from schemas.requests import Flavor, PlacementCancelled, PlacementRequested
from schemas.topics import CLAIMS, REQUESTS
from streams import operator
from streams.log.base import Message
from streams.operator import Stamp

STAMP = Stamp("id-1", 1_763_716_147_000)


def read(message: Message) -> object:
    return decode_keyed(message.topic, message.key, message.value)


def test_every_word_is_a_record_of_its_topic_under_its_key() -> None:
    request = PlacementRequested(request_id="r1", flavor=Flavor(memory_mib=512))
    fields = OperatorFields(zone="east")

    assert read(operator.configure("n1", STAMP, fields=fields)) == NodeConfigured(node_id="n1", record_id="id-1", fields=fields)
    assert read(operator.release("c1", "n1", STAMP, reason="operator", note="why")) == ClaimReleased(
        node_id="n1", record_id="id-1", claim_id="c1", reason="operator", note="why"
    )
    assert read(operator.renew("c1", "n1", STAMP, ttl_ms=5)) == ClaimRenewed(node_id="n1", record_id="id-1", claim_id="c1", ttl_ms=5)
    assert read(operator.cancel("r1", STAMP, reason="typo")) == PlacementCancelled(request_id="r1", record_id="id-1", reason="typo")
    assert read(operator.ask(request, STAMP)) == request


def test_the_headers_say_who_when_and_about_what() -> None:
    message = operator.cancel("r1", STAMP)

    envelope = from_headers(message.headers)

    assert (message.topic, message.key) == (REQUESTS, b"r1")
    assert (envelope.event_id, envelope.event_type, envelope.source) == ("id-1", "placement-cancelled", "claimlog/operator")
    assert (envelope.time_ms, envelope.subject, envelope.correlation_id) == (STAMP.time_ms, "r1", "r1")


def test_a_request_has_its_own_id_so_that_asked_twice_it_is_one_event() -> None:
    request = PlacementRequested(request_id="r1", flavor=Flavor(memory_mib=512))

    first, second = (operator.ask(request, Stamp(record_id, STAMP.time_ms)) for record_id in ("a", "b"))

    assert first == second
    assert first.value == encode(request)


def test_the_same_word_folded_twice_changes_the_node_once() -> None:
    ledger = Ledger(0, 1)
    message = operator.configure("n1", STAMP, status="disabled", reason="x")

    steps = [ledger.apply(offset, STAMP.time_ms, message.key, message.value) for offset in (0, 1)]

    assert message.topic == CLAIMS
    assert [step.ignored for step in steps if step is not None] == ["", "a copy: id-1 was seen before"]
    assert (ledger.nodes["n1"].status, ledger.nodes["n1"].status_reason) == ("disabled", "x")
