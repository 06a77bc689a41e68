"""Results as large as their topic takes: what they say stands before what it rests on."""

from __future__ import annotations

from schemas.codec import decode, encode
from schemas.resources import Resources, Shortfall
from schemas.results import ClaimOutcome, Decision, InstancesPlaced, Placement, PlacementFailed
from schemas.topics import RESULTS, TOPICS, VERDICTS
from streams.evidence import IN_FULL_MAX, verdict_within_bounds, within_bounds

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


def test_a_verdict_has_the_shortfalls_that_there_is_room_for_the_first_nodes_first() -> None:
    long = tuple(Shortfall(resource="numa_threads", needed=number, detail="y" * 9000) for number in range(40))
    refused = ClaimOutcome(outcome="refused", claim_id="c", tried=tuple(f"n{number}" for number in range(9)), shortfalls=(long,) * 9)

    verdict = verdict_within_bounds(refused)

    assert TOPICS[VERDICTS].value_bytes_max - 9000 < len(encode(verdict)) <= TOPICS[VERDICTS].value_bytes_max
    counts = [len(shortfalls) for shortfalls in verdict.shortfalls]
    assert (verdict.tried, len(counts), counts[:5], counts[-1]) == (refused.tried, 9, [40] * 5, 0)
    assert [lack.needed for lack in verdict.shortfalls[0]] == [lack.needed for lack in long]
