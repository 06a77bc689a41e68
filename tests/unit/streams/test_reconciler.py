"""The reconciler: one observation in, one record of `claims` out, computed from it alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.audits import AuditFailed, HypervisorAudited, InstanceReport
from schemas.claims import InstanceObserved, NodeObserved
from schemas.codec import Unreadable, decode_keyed, encode
from schemas.envelope import Envelope, Headers, from_headers, to_headers
from schemas.inventory import Hypervisor
from schemas.lifecycle import LifecycleRecord
from schemas.partitioner import partition_of
from schemas.resources import ObservedResources
from schemas.topics import AUDITS, CLAIMS, LIFECYCLE
from streams.log.base import Message, Record
from streams.reconciler import CHANGES, reconcile

PARTITIONS = 8
NUMBERS = st.integers(0, 1 << 50)
# A lone surrogate has no UTF-8, so no message can carry one.
UTF8_NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
REPORTS = st.builds(
    InstanceReport,
    instance_id=UTF8_NAMES,
    resources=st.builds(ObservedResources, vcpus=st.none() | NUMBERS, memory_mib=st.none() | NUMBERS),
    pinned_cpus=st.lists(st.integers(0, 512), max_size=4).map(tuple),
)
SEQUENCE: dict[str, Any] = {"node_id": UTF8_NAMES, "producer": UTF8_NAMES, "epoch": NUMBERS, "counter": NUMBERS}
TIMES: dict[str, Any] = {"taken_at_ms": NUMBERS, "mono_ms": NUMBERS}
FULL_AUDITS = st.builds(
    HypervisorAudited,
    **SEQUENCE,
    **TIMES,
    digest=UTF8_NAMES,
    complete=st.booleans(),
    hypervisor=st.builds(Hypervisor, vcpus=st.none() | NUMBERS, memory_mib=NUMBERS),
    instances=st.lists(REPORTS, max_size=4).map(tuple),
    unknown_instances=st.lists(UTF8_NAMES, max_size=2).map(tuple),
)
UNCHANGED_AUDITS = st.builds(HypervisorAudited, **SEQUENCE, **TIMES, digest=UTF8_NAMES)
FAILED_AUDITS = st.builds(AuditFailed, **SEQUENCE, **TIMES, reason=st.just("") | UTF8_NAMES, unknown_since_ms=NUMBERS)
EVENTS = st.sampled_from(LifecycleRecord.__args__).flatmap(
    lambda cls: st.builds(cls, **SEQUENCE, event_time_ms=NUMBERS, instance=REPORTS, claim_id=st.none() | UTF8_NAMES, resync=st.booleans())
)
OBSERVATIONS = FULL_AUDITS | UNCHANGED_AUDITS | FAILED_AUDITS | EVENTS


def appended(observation: Any, *, headers: Headers = (), offset: int = 7) -> Record:
    """The observation as it stands in its topic."""
    topic = AUDITS if isinstance(observation, HypervisorAudited | AuditFailed) else LIFECYCLE
    key = observation.node_id.encode()
    return Record(topic, partition_of(key, PARTITIONS), offset, 1_000, key, encode(observation), headers)


def audit(node_id: str = "n1") -> HypervisorAudited:
    return HypervisorAudited(node_id=node_id, producer="p", epoch=1, counter=2, taken_at_ms=3, mono_ms=4, digest="d")


@given(OBSERVATIONS, st.integers(0, 1 << 40))
def test_every_observation_becomes_one_readable_claims_record_of_its_node(observation: Any, offset: int) -> None:
    source = appended(observation, offset=offset)

    message = reconcile(source, PARTITIONS)

    assert isinstance(message, Message)
    assert (message.topic, message.key, message.partition) == (CLAIMS, source.key, source.partition)
    record = decode_keyed(CLAIMS, message.key, message.value)
    assert isinstance(record, NodeObserved | InstanceObserved)
    assert (record.node_id, record.producer, record.epoch, record.counter) == (
        observation.node_id, observation.producer, observation.epoch, observation.counter,
    )  # fmt: skip


@given(OBSERVATIONS)
def test_the_same_observation_twice_gives_the_same_bytes(observation: Any) -> None:
    source = appended(observation)

    assert reconcile(source, PARTITIONS) == reconcile(msgspec.structs.replace(source, time_ms=9_999_999), PARTITIONS)


@given(FULL_AUDITS)
def test_nothing_of_a_full_audit_is_lost(observation: HypervisorAudited) -> None:
    message = reconcile(appended(observation), PARTITIONS)

    assert isinstance(message, Message)
    carried = decode_keyed(CLAIMS, message.key, message.value)
    assert {name: getattr(carried, name) for name in observation.__struct_fields__} == msgspec.structs.asdict(observation)
    assert carried.failed == ""


@given(EVENTS)
def test_nothing_of_an_event_is_lost_and_its_type_becomes_the_change(observation: Any) -> None:
    message = reconcile(appended(observation), PARTITIONS)

    assert isinstance(message, Message)
    carried = decode_keyed(CLAIMS, message.key, message.value)
    assert {name: getattr(carried, name) for name in observation.__struct_fields__} == msgspec.structs.asdict(observation)
    assert carried.change == CHANGES[type(observation)]


@given(FAILED_AUDITS)
def test_a_failed_audit_is_carried_as_a_failure_even_without_words(observation: AuditFailed) -> None:
    message = reconcile(appended(observation), PARTITIONS)

    assert isinstance(message, Message)
    carried = decode_keyed(CLAIMS, message.key, message.value)
    assert carried.failed == (observation.reason or "no reason given")
    assert (carried.complete, carried.instances, carried.unknown_since_ms) == (False, None, observation.unknown_since_ms)


def test_each_life_cycle_event_has_its_change() -> None:
    assert set(CHANGES) == set(LifecycleRecord.__args__)


def test_headers_name_position_and_cause_and_carry_trace_and_correlation_on() -> None:
    theirs = Envelope(event_id="evt-1", event_type="hypervisor-audited", source="p", correlation_id="req-9", traceparent="00-ab-cd-01")
    headers = to_headers(theirs)

    message = reconcile(appended(audit(), headers=headers), PARTITIONS)

    assert isinstance(message, Message)
    envelope = from_headers(message.headers)
    assert envelope == Envelope(
        event_id=f"{AUDITS}/{message.partition}@7",
        event_type="node-observed",
        source="claimlog/reconciler",
        time_ms=3,
        subject="n1",
        correlation_id="req-9",
        causation_id="evt-1",
        traceparent="00-ab-cd-01",
    )


def test_without_headers_the_cause_is_the_position() -> None:
    message = reconcile(appended(audit()), PARTITIONS)

    assert isinstance(message, Message)
    assert from_headers(message.headers).causation_id == f"{AUDITS}/{message.partition}@7"


def test_a_key_in_a_partition_not_its_own_is_unreadable() -> None:
    source = appended(audit())
    elsewhere = msgspec.structs.replace(source, partition=(source.partition + 1) % PARTITIONS)

    verdict = reconcile(elsewhere, PARTITIONS)

    assert isinstance(verdict, Unreadable)
    assert verdict.kind == "wrong-partition"
    assert f"belongs to partition {source.partition} of 8, got {elsewhere.partition}" in verdict.reason


def test_a_record_under_another_nodes_key_is_unreadable() -> None:
    key = b"n2"
    source = Record(AUDITS, partition_of(key, PARTITIONS), 0, 0, key, encode(audit("n1")))

    verdict = reconcile(source, PARTITIONS)

    assert verdict == Unreadable("wrong-key", "expected the key b'n1' of this hypervisor-audited, got b'n2'")


@given(st.binary(max_size=300))
def test_bytes_that_are_no_observation_are_unreadable(value: bytes) -> None:
    verdict = reconcile(Record(LIFECYCLE, 0, 0, 0, b"n1", value), 1)

    assert isinstance(verdict, Unreadable)


def test_an_event_that_outgrows_the_limit_on_its_way_is_unreadable() -> None:
    """`instance-observed` and its `change` are longer than `instance-arrived`: right at the limit there is no room for them."""
    large = InstanceReport(instance_id="i1", pinned_cpus=(1,) * 130_950)
    event = LifecycleRecord.__args__[0](node_id="n1", producer="p", epoch=1, counter=1, event_time_ms=1, instance=large)
    room = (256 << 10) - len(encode(event))
    full = msgspec.structs.replace(event, producer="p" * (room + 1))
    source = Record(LIFECYCLE, 0, 0, 0, b"n1", encode(full))
    assert room < 254
    assert len(source.value) == 256 << 10

    verdict = reconcile(source, 1)

    assert isinstance(verdict, Unreadable)
    assert verdict.kind == "too-large"


def test_a_topic_that_is_not_observed_is_a_mistake_in_the_wiring() -> None:
    with pytest.raises(ValueError, match="claims/0@0: the reconciler reads hypervisor-audits and instance-lifecycle only"):
        reconcile(Record(CLAIMS, 0, 0, 0, b"n1", b"{}"), 1)
