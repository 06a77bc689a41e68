"""What the profile engine knows of filters, and what it says of a policy that it has no profiles for."""

from __future__ import annotations

import pytest
from msgspec import structs

from streams.scheduling.filters import FILTERS
from streams.scheduling.options import Options
from streams.scheduling.policy import DEFAULT, POLICIES, Multiplied, Policy
from streams.scheduling.profiles.kinds import KNOWN, SLOW
from streams.scheduling.select import unprofiled


def test_of_every_filter_it_is_known_what_it_reads() -> None:
    """One that is forgotten would be taken for somebody's own code, and make every decision look at every node."""
    assert FILTERS.keys() <= KNOWN | SLOW
    assert not KNOWN & SLOW


@pytest.mark.parametrize("name", POLICIES)
def test_no_policy_that_comes_along_makes_an_engine_look_at_every_node(name: str) -> None:
    assert unprofiled("profiles", POLICIES[name]) == ""


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (
            structs.replace(DEFAULT, filters=(*DEFAULT.filters, "TypeAffinityFilter")),
            "TypeAffinityFilter reads the flavor of every instance",
        ),
        (structs.replace(DEFAULT, filters=(*DEFAULT.filters, "mine:filter")), "mine:filter is code of its own"),
        (
            structs.replace(DEFAULT, weighers=(Multiplied(weigher="ImagePropertiesWeigher", multiplier=1.0),)),
            "ImagePropertiesWeigher reads the image of every instance",
        ),
        (structs.replace(DEFAULT, options=Options(host_subset_size=2)), "Nova's order of equal nodes needs all of them"),
    ],
)
def test_a_policy_that_has_no_profiles_says_why(policy: Policy, why: str) -> None:
    assert [unprofiled(name, policy) for name in ("profiles", "auto", "reference")] == [why, why, ""]
