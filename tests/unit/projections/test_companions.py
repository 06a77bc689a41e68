"""What rows of several partitions say together of the doubles, which span them."""

from __future__ import annotations

from projections.companions import Doubles, united
from projections.open_finding import OpenFinding
from schemas.findings import LeakConfirmed


def known(instance_id: str, *, ignored: str = "") -> OpenFinding:
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
        ignored=ignored,
    )
    return OpenFinding(record, 0)


def test_the_doubles_of_all_are_known_and_each_as_the_newest_says_that_knows_it() -> None:
    """Two processes had the partitions; each knew doubles of its own, and counted its own changes."""
    here = Doubles(7, {"i": known("i"), "j": known("j")})
    there = Doubles(3, {"i": known("i", ignored="of before"), "k": known("k", ignored="known")})

    found = united([there, here])

    assert found == united([here, there])
    assert (found.changes, sorted(found.open)) == (7, ["i", "j", "k"])
    assert {name: finding.record.ignored for name, finding in found.open.items()} == {"i": "", "j": "", "k": "known"}
    assert united([]) == Doubles()
