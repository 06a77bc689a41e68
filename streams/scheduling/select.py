"""The engines by name: ways to the same kind of decision. A new one is a row here and must give what `reference` gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from schemas.results import Decision
from streams.scheduling.ask import Ask
from streams.scheduling.fleet import Fleet
from streams.scheduling.policy import Policy
from streams.scheduling.reference import first_fit_select, reference_select

Engine = Callable[[Fleet, Ask, Policy, str], Decision]
"""Fleet, ask, policy and the policy's digest to a decision. Pure: the same arguments give the same decision."""


def profile_select(fleet: Fleet, ask: Ask, policy: Policy, policy_digest: str) -> Decision:
    """See `engine.profile_select`; imported when first asked, because numpy takes longer to load than most verbs to answer."""
    from streams.scheduling.engine import profile_select as select

    return select(fleet, ask, policy, policy_digest)


def auto_select(fleet: Fleet, ask: Ask, policy: Policy, policy_digest: str) -> Decision:
    """`reference_select` on a small fleet, `profile_select` on a larger one: the same decision, and its evidence names which it was."""
    select = reference_select if len(fleet.rooms()) < PROFILES_FROM else profile_select
    return select(fleet, ask, policy, policy_digest)


PROFILES_FROM = 32
"""So many nodes take the plain scan about as long as profiles take (measured); below, a look at each is quicker, and needs no numpy."""
DEFAULT = "auto"
ENGINES: Mapping[str, Engine] = {
    DEFAULT: auto_select,
    "reference": reference_select,
    "profiles": profile_select,
    "first-fit": first_fit_select,
}
"""`first-fit` weighs nothing: it shows what the log itself can do."""


def engine(name: str) -> Engine:
    """The engine of that name. Raises ValueError that lists those there are."""
    try:
        return ENGINES[name]
    except KeyError:
        raise ValueError(f"engine {name!r} is not known; known: {', '.join(ENGINES)}") from None
