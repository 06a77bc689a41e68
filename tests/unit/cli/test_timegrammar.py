"""One grammar for every moment."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from projections.cut import OFFSET_MAX, Cut
from streams.cli.given.timegrammar import Instant, Moment, MomentError, parse, written

NOW_MS = 1_795_257_727_113  # 2026-11-21T10:42:07.113Z
YEAR_9999_MS = 253_402_300_799_999

UNIT_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}

PARTITIONS = st.tuples(st.sampled_from(["claims", "hypervisor-audits"]), st.integers(0, 20))
CUTS = st.dictionaries(PARTITIONS, st.integers(0, OFFSET_MAX), max_size=8)
MOMENTS: st.SearchStrategy[Moment] = st.builds(Instant, st.integers(0, YEAR_9999_MS)) | st.builds(Cut.of, CUTS)


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("now", NOW_MS),
        ("-2h", NOW_MS - 7_200_000),
        ("-1d12h", NOW_MS - 129_600_000),
        ("-1m30s", NOW_MS - 90_000),
        ("+250ms", NOW_MS + 250),
        ("2026-11-21", 1_795_219_200_000),
        ("2026-11-21T10:42:07Z", 1_795_257_727_000),
        ("2026-11-21T10:42:07.1139Z", NOW_MS),
        ("2026-11-21 10:42z", 1_795_257_720_000),
        ("2026-11-21T11:42:07.113+01:00", NOW_MS),
        ("2026-11-20T22:42:07.113-12:00", NOW_MS),
        ("2016-12-31T23:59:60Z", 1_483_228_800_000),
        ("1795257727", 1_795_257_727_000),
        ("1795257727.113", NOW_MS),
        ("1795257727113", NOW_MS),
        ("0", 0),
        (" now ", NOW_MS),
    ],
)
def test_a_time_is_read(text: str, time_ms: int) -> None:
    assert parse(text, NOW_MS) == Instant(time_ms)


@given(MOMENTS)
@example(Instant(YEAR_9999_MS))
def test_every_moment_comes_back_from_its_text(moment: Moment) -> None:
    assert parse(written(moment), NOW_MS) == moment


@given(st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30)), st.integers(-23 * 60 - 59, 23 * 60 + 59))  # noqa: DTZ001 - the zone is drawn
def test_an_offset_changes_the_text_and_not_the_moment(naive: datetime, offset_minutes: int) -> None:
    at = naive.replace(tzinfo=UTC)
    elsewhere = at.astimezone(timezone(timedelta(minutes=offset_minutes)))

    assert parse(elsewhere.isoformat(), NOW_MS) == parse(at.isoformat(), NOW_MS)


@given(st.lists(st.tuples(st.integers(0, 99), st.sampled_from(sorted(UNIT_MS))), min_size=1, max_size=5))
def test_the_steps_of_a_distance_add_up(steps: list[tuple[int, str]]) -> None:
    text = "".join(f"{number}{unit}" for number, unit in steps)

    forward, back = parse(f"+{text}", NOW_MS), parse(f"-{text}", NOW_MS)

    assert isinstance(forward, Instant)
    assert isinstance(back, Instant)
    assert forward.time_ms - NOW_MS == NOW_MS - back.time_ms
    assert forward.time_ms - NOW_MS == sum(number * UNIT_MS[unit] for number, unit in steps)


@given(st.text(max_size=40) | st.from_regex(r"[-+0-9a-zA-Z:.T ]{0,30}", fullmatch=True))
def test_any_text_is_a_moment_or_a_moment_error(text: str) -> None:
    try:
        moment = parse(text, NOW_MS)
    except MomentError:
        return

    assert parse(written(moment), 0) == moment


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("yesterday", "no time; write one of"),
        ("", "no time"),
        ("2h", "no time"),
        ("-2", "no time"),
        ("-2h5", "no time"),
        ("2026-11-21T10:42:07", "which zone.*2026-11-21T10:42:07Z for UTC"),
        ("2026-02-30", "not in the calendar"),
        ("2026-11-21T25:00Z", "not in the calendar"),
        ("-100000d", "before 1970"),
        ("20261121", "looks like a date.*2026-11-21"),
        ("2026", "looks like a date"),
        ("202611211042", "looks like a date"),
        ("1795257727113.5", "milliseconds have no fraction"),
        ("٣", "no time"),
        ("cut:AAAA", "checksum"),
    ],
)
def test_what_is_no_moment_is_refused_with_the_way_out(text: str, message: str) -> None:
    with pytest.raises(MomentError, match=message):
        parse(text, NOW_MS)
