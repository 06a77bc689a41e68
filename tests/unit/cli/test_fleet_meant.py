"""What a record of settings says itself, and what it only repeats: its header."""

from __future__ import annotations

import pytest

from projections.node import Node
from schemas.inventory import OperatorFields, ResourceRule
from streams.cli.fleet.meant import RULE_FIELDS, Meant, header, said_at

RATIO, RESERVED = ("memory_mib", "ratio_milli"), ("memory_mib", "reserved")


def test_what_a_record_says_and_what_it_puts_back_is_read_as_it_was_written() -> None:
    text = header([RATIO], {RESERVED: 4711})

    assert text == "memory_mib.ratio_milli memory_mib.reserved@4711"
    assert said_at(text, 5000) == {RATIO: 5000, RESERVED: 4711}


def test_a_record_without_the_header_says_all_that_it_has() -> None:
    assert said_at("", 7) == dict.fromkeys(RULE_FIELDS, 7)


@pytest.mark.parametrize("first", ["", "x", "-1", "7", "1²", "٣", "9" * 5000])
def test_where_a_word_was_said_first_is_a_place_in_front_of_the_record_or_it_is_passed_over(first: str) -> None:
    assert said_at(f"memory_mib.reserved@{first} memory_mib.ratio_milli", 7) == {RATIO: 7}


@pytest.mark.parametrize("word", ["memory_mib", "memory_mib.size", "zone.name", "memory_mib.reserved.more", ".", "@3"])
def test_a_name_that_no_rule_has_is_passed_over(word: str) -> None:
    assert said_at(f"{word} memory_mib.ratio_milli", 7) == {RATIO: 7}


def test_a_word_that_is_put_back_late_is_not_taken_for_a_newer_one() -> None:
    its = Meant(Node("c01"))
    its.hear(OperatorFields(memory_mib=ResourceRule(reserved=64)), {RESERVED: 10})
    its.hear(OperatorFields(memory_mib=ResourceRule(reserved=32)), {RESERVED: 9})

    assert its.node.rule("memory_mib").reserved == 64
    assert its.lacking(Node("c01")) == (OperatorFields(memory_mib=ResourceRule(reserved=64)), {RESERVED: 10})


def test_what_was_taken_back_of_earlier_words_is_not_put_back_by_who_did_not_hear_them() -> None:
    """Whoever took it back did, and puts it back: it was not said to what end it stood there."""
    node = Node("c01")
    node.configure(OperatorFields(memory_mib=ResourceRule(reserved=64)))
    its = Meant(node)
    its.hear(OperatorFields(memory_mib=ResourceRule(ratio_milli=1500)), {RATIO: 10})
    node.configure(OperatorFields(memory_mib=ResourceRule(ratio_milli=1500)))

    assert its.node.rule("memory_mib") == ResourceRule(ratio_milli=1500, reserved=64)
    assert its.lacking(node) == (OperatorFields(), {})
