"""Cuts: the whole offset vector in one word."""

from __future__ import annotations

import string
from base64 import urlsafe_b64encode
from zlib import crc32

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from projections.cut import OFFSET_MAX, PARTITION_MAX, Cut, CutError, Place

TOPICS = st.text(min_size=1, max_size=60, alphabet=st.characters(exclude_categories=["Cs"]))
VECTORS = st.dictionaries(
    st.tuples(TOPICS | st.sampled_from(["claims", "hypervisor-audits"]), st.integers(0, 12) | st.integers(0, PARTITION_MAX)),
    st.integers(0, 300) | st.integers(0, OFFSET_MAX),
    max_size=20,
)
LEDGERS = st.text(max_size=20)
URL_SAFE = set(string.ascii_letters + string.digits + "-_:")


def armoured(body: bytes, version: int = 1) -> str:
    data = bytes([version]) + body
    return "cut:" + urlsafe_b64encode(data + crc32(data).to_bytes(4, "big")).rstrip(b"=").decode()


@given(VECTORS, LEDGERS)
@example({}, "")
@example({("claims", 0): OFFSET_MAX, ("claims", PARTITION_MAX): 0}, "7f3c")
def test_every_vector_comes_back_from_its_text(vector: dict[tuple[str, int], int], ledger_id: str) -> None:
    cut = Cut.of(vector, ledger_id)

    text = str(cut)

    assert Cut.parse(text) == cut
    assert Cut.parse(text).next_offsets == vector
    assert Cut.parse(text).may_be_of(ledger_id)
    assert set(text) <= URL_SAFE


@given(VECTORS, VECTORS, LEDGERS)
def test_equal_texts_mean_equal_cuts(one: dict[tuple[str, int], int], other: dict[tuple[str, int], int], ledger_id: str) -> None:
    assert (str(Cut.of(one, ledger_id)) == str(Cut.of(other, ledger_id))) == (one == other)


def test_a_cut_is_of_its_own_ledger_only_unless_one_of_both_has_no_name() -> None:
    cut = Cut.parse(str(Cut.of({("claims", 0): 5}, "7f3c")))

    assert [cut.may_be_of(ledger_id) for ledger_id in ("7f3c", "7f3d", "")] == [True, False, True]
    assert Cut.of({("claims", 0): 5}).may_be_of("7f3c")


@given(VECTORS, LEDGERS, st.data())
def test_a_mistyped_or_shortened_cut_is_refused(vector: dict[tuple[str, int], int], ledger_id: str, data: st.DataObject) -> None:
    text = str(Cut.of(vector, ledger_id))
    at = data.draw(st.integers(4, len(text) - 1))
    other = data.draw(st.sampled_from([character for character in URL_SAFE if character not in {text[at], ":"}]))

    for wrong in (text[:at] + other + text[at + 1 :], text[:at]):
        with pytest.raises(CutError):
            Cut.parse(wrong)


@given(st.binary(max_size=40), st.integers(0, 3))
def test_whatever_carries_a_right_checksum_is_a_cut_or_a_cut_error(body: bytes, version: int) -> None:
    text = armoured(body, version)
    try:
        cut = Cut.parse(text)
    except CutError:
        return

    assert str(cut) == text


def test_a_cut_whose_places_are_not_in_order_is_refused() -> None:
    with pytest.raises(CutError, match="not how claimlog writes this cut"):
        Cut.parse(str(Cut((Place("zz", 0, 5), Place("aa", 0, 7)), b"")))


def test_twelve_partitions_of_claims_stay_short() -> None:
    cut = Cut.of({("claims", number): 1_000_000 + number for number in range(12)}, "7f3c0b1e2d4a5968")

    assert len(str(cut)) < 80


def test_a_cut_reads_well_and_answers_for_a_partition() -> None:
    cut = Cut.of({("hypervisor-audits", 0): 220, ("claims", 1): 1790, ("claims", 0): 1841})

    assert cut.described() == "claims 0@1841 1@1790; hypervisor-audits 0@220"
    assert cut.places[0] == Place("claims", 0, 1841)
    assert cut.next_offset("claims", 1) == 1790
    assert cut.next_offset("claims", 2) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("claims/0@12", "a cut begins with 'cut:'"),
        ("cut:", "incomplete or mistyped"),
        ("cut:AAAAAA", "incomplete or mistyped"),
        ("cut:AQAA AAAA", "incomplete or mistyped|characters"),
        ("cut:ü", "characters that no cut has"),
        (armoured(b"", version=9), "version 9"),
        (armoured(b"\x01\x02\x03", version=2), "middle of its ledger's mark"),
        (armoured(b"\x06claims\x02" + b"\xff" * 10 + b"\x01"), "too large"),
        (armoured(b"\x06cla"), "ends in the middle"),
        (armoured(b"\x01a\x00"), "not how claimlog writes"),
        (armoured(b"\x02\xff\xff\x02\x00"), "not UTF-8"),
    ],
)
def test_what_is_no_cut_is_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(CutError, match=message):
        Cut.parse(text)


@pytest.mark.parametrize(
    "vector",
    [{("claims", -1): 0}, {("claims", 0): -1}, {("", 0): 0}, {("x" * 250, 0): 0}, {("claims", 0): OFFSET_MAX + 1}],
)
def test_what_no_log_can_have_is_no_cut(vector: dict[tuple[str, int], int]) -> None:
    with pytest.raises(CutError):
        Cut.of(vector)
