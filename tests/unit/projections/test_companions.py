"""What rows of several partitions say together of the doubles, which span them."""

from __future__ import annotations

from projections.companions import Doubles, newest
from projections.open_finding import OpenFinding
from schemas.findings import LeakConfirmed


def known(instance_id: str) -> OpenFinding:
    record = LeakConfirmed(
        finding_id=f"double-claim/{instance_id}",
        kind="double-claim",
        node_id="a",
        instance_id=instance_id,
        partition=0,
        offset=1,
        time_ms=1,
        since_ms=1,
        suspected_ms=1,
    )
    return OpenFinding(record, 0)


def test_the_newest_doubles_count_and_of_each_word_the_last_whoever_heard_it() -> None:
    """Two processes had the partitions; each counted its own changes, and heard what the other did not."""
    mine = {"i": ("", 5), "j": ("known", 3), "l": ("b", 6), "m": ("", 7)}
    other = {"i": ("of before", 4), "k": ("ours", 2), "l": ("a", 6), "m": ("taken back while the log's clock stood", 7)}
    here = Doubles(7, {"i": known("i")}, {f"double-claim/{name}": word for name, word in mine.items()})
    there = Doubles(3, {"k": known("k")}, {f"double-claim/{name}": word for name, word in other.items()})

    found = newest([there, here])

    assert found == newest([here, there])
    assert (found.changes, sorted(found.open)) == (7, ["i"])
    words = {"i": ("", 5), "j": ("known", 3), "k": ("ours", 2), "l": ("b", 6), "m": ("", 7)}
    assert found.words == {f"double-claim/{name}": word for name, word in words.items()}
    assert newest([]) == Doubles()
