"""The engines by name: ways to the same kind of decision. A new one is a row here and must give what `reference` gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from schemas.requests import Flavor, PlacementRequested
from schemas.results import Decision
from streams.scheduling.ask import Ask
from streams.scheduling.fleet import Fleet
from streams.scheduling.policy import Policy
from streams.scheduling.reference import first_fit_select, reference_select

Engine = Callable[[Fleet, Ask, Policy, str], Decision]
"""Fleet, ask, policy and the policy's digest to a decision. Pure: the same arguments give the same decision."""


def profile_select(fleet: Fleet, ask: Ask, policy: Policy, policy_digest: str) -> Decision:
    """See `engine.profile_select`; imported when first asked, because numpy takes longer to load than most verbs to answer."""
    from streams.scheduling.profiles.engine import profile_select as select

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


def unprofiled(name: str, policy: Policy) -> str:
    """Why an engine that was chosen for its profiles looks at every node for each request all the same; empty if it does not."""
    from streams.scheduling.profiles.kinds import Unprofiled, columns

    if name not in {"auto", "profiles"}:
        return ""
    try:
        columns(policy)
    except Unprofiled as problem:
        return str(problem)
    return ""


PRACTICE = PlacementRequested(request_id="practice", flavor=Flavor(vcpus=1, memory_mib=1024, root_gib=1))
"""A request that nobody makes."""


class Practice:
    """Decides for nobody while there is nothing else to do, so that no request waits for what an engine loads and builds at first.

    Done once there are nodes, and again when there are twice as many: what is built is as large as the fleet.
    """

    def __init__(self, select: Engine, fleet: Fleet, policy: Policy, policy_digest: str) -> None:
        self._select, self._fleet, self._policy, self._policy_digest = select, fleet, policy, policy_digest
        self._nodes = 0

    def if_due(self) -> None:
        """Decide, unless that was done on as many nodes."""
        nodes = len(self._fleet.rooms())
        if nodes and nodes >= 2 * self._nodes:
            self._nodes = nodes
            ask = self._fleet.ask(PRACTICE, 0, owner="", options=self._policy.options)
            self._select(self._fleet, ask, self._policy, self._policy_digest)


def engine(name: str) -> Engine:
    """The engine of that name. Raises ValueError that lists those there are."""
    try:
        return ENGINES[name]
    except KeyError:
        raise ValueError(f"engine {name!r} is not known; known: {', '.join(ENGINES)}") from None


def before_each(decide: Engine, sign: Callable[[], object]) -> Engine:
    """`decide`, and before each decision a sign of life: a turn may have a thousand, and one may take its time."""

    def decided(fleet: Fleet, ask: Ask, policy: Policy, policy_digest: str) -> Decision:
        sign()
        return decide(fleet, ask, policy, policy_digest)

    return decided
