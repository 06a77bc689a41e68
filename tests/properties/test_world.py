"""The invariants of the adversarial world, with each fault alone and with all at once.

`CLAIMLOG_SOAK=1` runs three hundred worlds with all faults instead of thirty, `CLAIMLOG_SOAK=1000` a thousand.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.properties.world import FAULTS, World
from tests.properties.world_fleet import Fleet
from tests.properties.world_scheduling import populate

_SOAK = int(os.environ.get("CLAIMLOG_SOAK") or 0)
WORLDS = 30 if _SOAK == 0 else max(300, _SOAK)
REQUESTS = 60
# These faults happen to what others do: without them they would be a world without faults.
NEEDS = {"quickret": ("migrate",), "trunc": ("owners",), "zcommit": ("owners",), "dead": ("nova",), "clockfix": ("fastclk",)}


def lived(seed: int, *faults: str) -> World:
    """A world after its end."""
    world = World(seed, faults)
    Fleet(world, REQUESTS)
    populate(world)
    return world.run()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_world_with_one_kind_of_fault_keeps_every_invariant(fault: str, seed: int) -> None:
    own_seed = random.Random(f"{seed} {fault}").randrange(1 << 32)

    world = lived(own_seed, fault, *NEEDS.get(fault, ()))

    assert world.violations == {}, f"world seed {own_seed}, fault {fault}"
    assert world.seen["granted"] > 0


@pytest.mark.parametrize("number", range(WORLDS))
def test_a_world_with_all_faults_at_once_keeps_every_invariant(number: int, seed: int) -> None:
    own_seed = random.Random(f"{seed} {number}").randrange(1 << 32)
    print(f"world seed {own_seed}")

    world = lived(own_seed, *FAULTS)

    assert world.violations == {}, f"world seed {own_seed}, all faults"
    assert world.seen["granted"] > 0


def test_a_world_is_the_same_each_time_its_seed_is_given() -> None:
    one, other = lived(7, *FAULTS), lived(7, *FAULTS)

    assert [ledger.digest for ledger in one.ledgers] == [ledger.digest for ledger in other.ledgers]
