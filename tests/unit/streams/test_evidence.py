"""Results as large as their topic takes: what they say stands before what it rests on."""

from __future__ import annotations

from schemas.codec import decode
from schemas.resources import Resources
from schemas.results import Decision, InstancesPlaced, Placement, PlacementFailed
from schemas.topics import RESULTS, TOPICS
from streams.evidence import IN_FULL_MAX, within_bounds

LONG = "x" * 4000


def decision(number: int, *, chosen: str = "n1", texts: int = 1) -> Decision:
    return Decision(instance_id=f"i{number}", cut=(1,), overlay=(LONG,) * texts, chosen=chosen)


def test_a_result_that_its_placements_fill_goes_without_evidence() -> None:
    places = tuple(
        Placement(instance_id=f"i{number}", claim_id="c" * 255, partition=0, node_id="n" * 255, resources=Resources(vcpus=1))
        for number in range(1460)
    )
    placed = InstancesPlaced(request_id="r", owner="s", taken_up_ms=1, commit_by_ms=2, placements=places)
    assert len(within_bounds(placed)[1]) > TOPICS[RESULTS].value_bytes_max - IN_FULL_MAX * len(LONG)
    decided = InstancesPlaced(
        request_id="r", owner="s", taken_up_ms=1, commit_by_ms=2, placements=places, decisions=tuple(map(decision, range(IN_FULL_MAX)))
    )

    result, value = within_bounds(decided)

    assert (result, decode(RESULTS, value)) == (placed, placed)


def test_a_failure_whose_evidence_has_no_room_in_any_record_goes_without() -> None:
    none_found = decision(0, chosen="", texts=300)
    failed = PlacementFailed(request_id="r", owner="s", taken_up_ms=1, reason="no-valid-node", decisions=(none_found,))

    result, value = within_bounds(failed)

    assert result.decisions == ()
    assert decode(RESULTS, value) == result
