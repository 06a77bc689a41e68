"""Quantities as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.units import mib_text
from streams.cli.given import timegrammar
from streams.cli.printed import units

MIB = {"MiB": 1, "GiB": 1024, "TiB": 1024 * 1024}


@pytest.mark.parametrize(
    ("amount_mib", "text"),
    [(0, "0 MiB"), (512, "512 MiB"), (1024, "1 GiB"), (1536, "1.5 GiB"), (1280, "1.25 GiB"), (1204, "1,204 MiB"),
     (23353, "23,353 MiB"), (-46683, "-46,683 MiB"), (-2048, "-2 GiB"), (1 << 20, "1 TiB"), (1023 * 1024, "1,023 GiB")],
)  # fmt: skip
def test_memory_is_shown_exactly(amount_mib: int, text: str) -> None:
    assert mib_text(amount_mib) == text


@given(st.integers(-(1 << 40), 1 << 40))
def test_no_shown_amount_is_rounded(amount_mib: int) -> None:
    number, unit = mib_text(amount_mib).replace(",", "").split()

    assert float(number) * MIB[unit] == amount_mib


def test_what_was_added_or_taken_has_its_sign() -> None:
    assert [units.signed(mib_text(amount)) for amount in (-512, 0, 512)] == ["-512 MiB", "0 MiB", "+512 MiB"]
    assert [units.signed(units.count(amount)) for amount in (-1, 0, 1234)] == ["-1", "0", "+1,234"]


@pytest.mark.parametrize(
    ("length_ms", "text"),
    [(0, "0s"), (850, "850ms"), (45_999, "45s"), (60_000, "1m"), (192 * 60_000, "3h12m"),
     (86_400_000, "1d"), (90_000_000, "1d1h"), (-5_000, "-5s")],
)  # fmt: skip
def test_a_span_has_its_two_largest_units(length_ms: int, text: str) -> None:
    assert units.span(length_ms) == text


def test_an_age_is_counted_from_now() -> None:
    assert [units.age(then_ms, 10_000) for then_ms in (None, 4_000, 10_000, 15_000)] == ["never", "6s", "0s", "in 5s"]
    assert [units.ago(then_ms, 10_000) for then_ms in (None, 4_000, 10_000, 15_000)] == ["never", "6s ago", "0s ago", "in 5s"]


@given(st.integers(0, 253_402_300_799_999))
def test_a_shown_moment_is_read_back(time_ms: int) -> None:
    assert timegrammar.parse(units.moment(time_ms), now_ms=0) == timegrammar.Instant(time_ms)


def test_ratios() -> None:
    assert [units.ratio(milli) for milli in (None, 1000, 1500, 16_000, 999)] == ["none", "1", "1.5", "16", "0.999"]
