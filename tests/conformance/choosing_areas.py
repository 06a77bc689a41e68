"""What vectors say of weighing and choosing hosts, in the product's terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from projections.node import Node
from projections.room import mark_of, room
from schemas.codec import decode
from schemas.inventory import Hypervisor
from schemas.requests import Flavor, PlacementRequested
from schemas.results import PlacementFailed
from schemas.topics import RESULTS
from streams.scheduling.ask import ask_of
from streams.scheduling.choosing import draw_first, shuffled
from streams.scheduling.filters import RESTRICTIONS
from streams.scheduling.options import MULTIPLIERS
from streams.scheduling.raws import MetricMissing
from streams.scheduling.reference import run_filters
from streams.scheduling.weighers import weigh
from tests.conformance.ledger_areas import flat, in_whole, options_in
from tests.conformance.terms import HOST_NAMES, REQUEST_NAMES, ask_for, counted_alone, listed, options_of, renamed, room_of
from tests.scheduling_world import settle, world

Vector = dict[str, Any]
ERRORS = {MetricMissing: "ComputeHostMetricNotFound"}
SHUFFLES = ("shuffle_best_same_weighed_hosts", "shuffle_best_same", "shuffle_best_hosts", "shuffle_best", "shuffle_top_equal", "shuffle")
SHUFFLED = ("shuffled", "shuffle_result", "shuffle_does", "shuffle_reverses")
"""Names that vectors may have for the option, and for what a shuffle makes of the best hosts: those listed, else it turns them round."""
CLAIMS = ("claim_ok", "claim_succeeds", "claim_successful", "claim_result", "claims_ok", "claim", "claims", "claim_results", "claimed")
REFUSALS = ("claim_fails", "claim_failed", "claims_fail")
"""Names for whether Placement takes the claims, or refuses them, all or one after the other: as it does for a host without room."""
EVERY = 1_000
"""More than any vector asks for."""
REASONS = {"no-valid-node": "NoValidHost"}


def weighed(vector: Vector) -> Mapping[str, Any]:
    """Hosts through one weigher; best first, ties as they came."""
    name, given = vector["subject"], vector["given"]
    asked, config = renamed(given.get("request"), REQUEST_NAMES), flat(given.get("config"))
    hosts = [{"host": f"host{number}", **renamed(host, HOST_NAMES)} for number, host in enumerate(given["hosts"], 1)]
    if not hosts:
        return {"order": [], "weights": []}
    option, default = MULTIPLIERS[name]
    own = {option, "weight_multiplier"} if name == "MetricsWeigher" else {option}
    said = [value for key, value in config.items() if key in own and value is not None]
    multiplier = float(said[0]) if said else default
    group = asked.get("group") or {}
    rooms = [room_of(counted_alone(host, name), group.get("members") or (), group.get("policy") or "anti-affinity") for host in hosts]
    try:
        scores, _ = weigh(rooms, [(name, multiplier)], ask=ask_for(asked), options=options_of(config))
    except MetricMissing as error:
        return {"error": ERRORS[type(error)]}
    ranked = sorted(zip((host["host"] for host in hosts), scores, strict=True), key=lambda pair: -pair[1])
    (first, first_weight), (last, last_weight) = ranked[0], ranked[-1]
    return {
        "order": [host for host, _ in ranked],
        "weights": [weight for _, weight in ranked],
        "first": first,
        "first_weight": first_weight,
        "last": last,
        "last_weight": last_weight,
    }


def chosen(vector: Vector) -> Mapping[str, Any]:
    """The order of weighed hosts, and what becomes of a request of which not all instances find one."""
    if vector["subject"] == "_get_sorted_hosts":
        return _sorted(in_whole(vector["given"]))
    if vector["subject"] == "_schedule":
        return _scheduled(in_whole(vector["given"]))
    raise ValueError(f"subject {vector['subject']!r} is not known")


def selected(vector: Vector) -> Mapping[str, Any]:
    """Hosts through what a request says of hosts and nodes. One of Nova's nodes is one of ours by host and node."""
    if vector["subject"] != "get_filtered_hosts":
        raise ValueError(f"subject {vector['subject']!r} is not known")
    given = vector["given"]
    asked = given.get("request") or {}
    rooms = []
    for host, name in given["hosts"]:
        node = Node(f"{host}/{name}", hypervisor=Hypervisor(service_host=host))
        rooms.append(room(node, 0, mark_of(node.node_id)))

    def ids(names: Sequence[str]) -> tuple[str, ...]:
        """Our ids of the nodes with these names; a name that no node has stays as it is, and is the id of none."""
        return tuple(
            node_id for name in names for node_id in ([each.node_id for each in rooms if each.node_id.partition("/")[2] == name] or [name])
        )

    def wanted() -> dict[str, Any]:
        """What a destination names: a node, or a host with all of its nodes."""
        destination = asked.get("requested_destination") or asked.get("destination") or asked.get("requested_host")
        if not destination:
            return {}
        pair = (destination,) if isinstance(destination, str) else destination
        said = destination if isinstance(destination, Mapping) else dict(zip(("host", "node")[: len(pair)], pair, strict=True))
        if "host" not in said:
            return {}
        host, node = said["host"], said.get("node")
        return {"requested_nodes": (f"{host}/{node}",)} if node else {"requested_hosts": (str(host),)}

    request = PlacementRequested(
        request_id="request",
        flavor=Flavor(),
        ignored_hosts=listed(asked.get("ignore_hosts")),
        forced_hosts=listed(asked.get("force_hosts")),
        forced_nodes=ids(listed(asked.get("force_nodes"))),
        **wanted(),
    )
    ask = ask_of(request, 0, seed=0)
    prepared = [(filter_, check) for filter_ in RESTRICTIONS if (check := filter_.prepare(ask)) is not None]
    return {"hosts": [each.node_id.split("/") for each in run_filters(rooms, prepared).passed]}


def _sorted(said: Vector) -> Mapping[str, Any]:
    given = options_in(said)
    drawn_over: list[list[str]] = []

    def draw(few: Sequence[str]) -> str:
        drawn_over.append(list(few))
        picked: str = given.get("random_picks") or few[0]
        return picked

    hosts, scores = [host for host, _ in given["weighed"]], [score for _, score in given["weighed"]]
    switches = [name for name in SHUFFLES if name in given] or SHUFFLED
    if any(given.get(name) for name in switches):
        told = [given[name] for name in SHUFFLED if isinstance(given.get(name), list)]
        hosts = shuffled(hosts, scores, lambda best: told[0] if told else best[::-1])
    order = draw_first(hosts, given.get("host_subset_size") or 1, draw)
    return {"order": order, "random_over": drawn_over[0] if drawn_over else []}


def _taken(said: Any, *, refuses: bool) -> int:
    """How many claims are taken before the first that is not, which is said by `refuses`: of each in turn, or of all."""
    each = said if isinstance(said, list) else [said]
    return next((number for number, one in enumerate(each) if one is refuses), EVERY)


def _scheduled(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """A host with room for so many instances, a request for more of them, and a scheduler that works until it rests."""
    here = world(claims=1, requests=1)
    taken = [_taken(given.get(name), refuses=False) for name in CLAIMS] + [_taken(given.get(name), refuses=True) for name in REFUSALS]
    here.host("n1", vcpus=min(given["hosts_selected"], *taken))
    here.request("request", vcpus=1, count=given["num_instances"])
    scheduler = here.scheduler()
    settle(scheduler)
    (partition,) = here.log.ends(RESULTS)
    answers = [decode(RESULTS, record.value) for record in here.log.read(RESULTS, partition, 0)]
    failed = [answer for answer in answers if isinstance(answer, PlacementFailed)]
    chosen_first = [decision.chosen for answer in failed for decision in answer.decisions if decision.chosen]
    (ledger,) = here.ledgers()
    left = len(ledger.claims) + len(scheduler.placer.fleet.overlay)
    return {
        "error": REASONS[failed[0].reason] if failed else None,
        "allocations_removed": len(chosen_first) - left if failed else 0,
        "host_state_updated_reset": not left,
    }
