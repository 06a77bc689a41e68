"""The raw figures that weighers read of a node; more of it is better, before any multiplier.

Source of Nova's thirteen: Nova 34, scheduler weights. The absolute ones read how full a node would be with the instance on it, in parts
of 1.
"""

from __future__ import annotations

from collections.abc import Callable
from math import floor

from projections.node import amounts_of
from projections.room import Room, in_use
from schemas.inventory import Hypervisor
from schemas.resources import RESOURCES
from streams.scheduling.aggregates import override
from streams.scheduling.ask import Ask
from streams.scheduling.image_properties import read
from streams.scheduling.options import MULTIPLIERS, Options, settings

Raw = Callable[[Room], float]

DEVICES_MAX = 100
"""From 99 free PCI devices on, more make no difference (Nova)."""
BIN_PACK_MOST = 18.0
"""Nomad's score runs from 0 for an empty node to 18 for a full one."""
POWER_STEPS = 4096
POWERS = tuple(10.0 ** (step / POWER_STEPS) for step in range(POWER_STEPS + 1))
"""10 to the power of each step from 0 to 1."""


class MetricMissing(ValueError):
    """A node does not report a metric that the policy's weight setting requires."""


def nothing(_: Room) -> float:
    """No difference between nodes."""
    return 0.0


def io_ops(room: Room) -> float:
    """Builds, moves and snapshots at work."""
    return float(room.io_ops)


def stepped_io_ops(_: Ask | None, options: Options) -> Raw:
    """The same, rounded down to multiples of `io_ops_step`."""
    step = options.io_ops_step
    return io_ops if step <= 1 else lambda room: float(room.io_ops // step * step)


def num_instances(room: Room) -> float:
    """Instances on the node."""
    return float(len(room.instances))


def hypervisor_version(room: Room) -> float:
    """The hypervisor's version as a number."""
    return float(_host(room).hypervisor_version)


def failed_builds(room: Room) -> float:
    """Builds that failed since the last that did not."""
    return float(_host(room).failed_builds)


def pci(room: Room) -> float:
    """100 less the free PCI devices: nodes without any are kept for those who want none, and those with few are filled first.

    What own claims in flight would be granted is not free, as in Nova, whose HostState takes the devices of its choices.
    """
    host = _host(room)
    if not (host.pci_pools or host.pci_devices):
        return float(DEVICES_MAX)
    free = sum(pool.count for pool in host.pci_pools)
    if host.pci_devices:
        free += room.standing().devices_free
    return float(DEVICES_MAX - min(free, DEVICES_MAX - 1))


def soft_affinity(ask: Ask | None, _: Options) -> Raw:
    """Members of the request's soft-affinity group on the node."""
    group = ask.item.group if ask is not None else None
    if group is None or group.policy != "soft-affinity":
        return nothing
    return lambda room: float(len(room.members(group.group_id)))


def soft_anti_affinity(ask: Ask | None, _: Options) -> Raw:
    """Minus the members of the request's soft-anti-affinity group on the node."""
    group = ask.item.group if ask is not None else None
    if group is None or group.policy != "soft-anti-affinity":
        return nothing
    return lambda room: -float(len(room.members(group.group_id)))


def cross_cell(ask: Ask | None, _: Options) -> Raw:
    """For a move that may cross cells: 1 in the cell it prefers, −1 elsewhere."""
    request = ask.request if ask is not None else None
    if request is None or not request.preferred_cell or not request.cross_cell_move:
        return nothing
    return lambda room: 1.0 if _host(room).cell == request.preferred_cell else -1.0


def metrics(ask: Ask | None, options: Options, multiplier: float) -> Raw:
    """The sum of metric × ratio of the weight setting; metrics are whole thousandths.

    With a `metrics_step_milli` above 1 the sum is rounded down to multiples of so many thousandths.
    A node without one of the metrics counts `weight_of_unavailable`, or raises MetricMissing where they are required; forced requests
    have passed no filter that would have seen to it, so nothing is required for them. What is multiplied by 0, by its ratio or by the
    weigher's multiplier on that node, may be missing: with −10000 there it would flatten the differences between all others (Nova's
    MetricsWeigher).
    """
    wanted, step = settings(options.weight_setting), max(options.metrics_step_milli, 1)
    required = options.required and not (ask is not None and ask.item.forced)
    key, _ = MULTIPLIERS["MetricsWeigher"]
    if not wanted:
        return nothing

    def raw(room: Room) -> float:
        found = {metric.name: metric.value_milli for metric in _host(room).metrics}
        total = 0.0
        for name, ratio in wanted:
            if name in found:
                total += found[name] * ratio
            elif required:
                raise MetricMissing(f"{room.node_id} does not report {name}; ask for it by MetricsFilter, or set required = false")
            elif ratio and override(room.node.aggregates, key, multiplier, float):
                return options.weight_of_unavailable
        return total / 1000 if step == 1 else floor(total / step) * step / 1000

    return raw


def image_properties(ask: Ask | None, options: Options) -> Raw:
    """How often instances on the node have a property of the request's image, with the same value; each times its ratio if any is set."""
    wanted = set(read(ask.request.image.properties).items()) if ask is not None else set()
    ratios = dict(settings(options.image_props_weight_setting))
    if not wanted:
        return nothing

    def raw(room: Room) -> float:
        total = 0.0
        # Not by sum(), which rounds otherwise from Python 3.12 on: a decision is the same on every version.
        for shown in room.node.shown.values():
            for pair in read(shown.report.image_properties).items():
                if pair in wanted:
                    total += ratios.get(pair[0], 0.0) if ratios else 1.0
        return total

    return raw


def pack(ask: Ask | None, _: Options) -> Raw:
    """How full the node is then, on average over what is asked for."""
    return lambda room: _mean(_parts(room, ask))


def spread(ask: Ask | None, _: Options) -> Raw:
    """How empty it is then."""
    return lambda room: 1.0 - _mean(_parts(room, ask))


def best_fit(ask: Ask | None, _: Options) -> Raw:
    """How full the scarcest of what is asked for is then: the node that is nearest to its end is filled up first."""
    return lambda room: max(_parts(room, ask), default=0.0)


def bin_pack(ask: Ask | None, _: Options) -> Raw:
    """Nomad's score by Google's "BestFit v3", 20 − 10^(free CPU) − 10^(free memory), from 0 to 1: balanced fullness before lopsided.

    Free parts are taken in steps of 1/4096, so that their powers stand in a table and are the same numbers wherever they are worked out.
    """

    def raw(room: Room) -> float:
        cpu, memory = floor(_part(room, ask, 0) * POWER_STEPS), floor(_part(room, ask, 2) * POWER_STEPS)
        score = 20.0 - POWERS[POWER_STEPS - cpu] - POWERS[POWER_STEPS - memory]
        return float(min(max(score, 0.0), BIN_PACK_MOST) / BIN_PACK_MOST)

    return raw


def _host(room: Room) -> Hypervisor:
    return room.node.hypervisor or _UNKNOWN


def _mean(parts: list[float]) -> float:
    whole = 0.0
    for part in parts:  # One after the other: `sum` rounds otherwise from Python 3.12 on.
        whole += part
    return whole / len(parts) if parts else 0.0


def _parts(room: Room, ask: Ask | None) -> list[float]:
    amounts = amounts_of(ask.item.resources) if ask is not None else (1, 0, 1, 1)
    return [_part(room, ask, r) for r, amount in enumerate(amounts) if amount]


def _part(room: Room, ask: Ask | None, r: int) -> float:
    """The part of a node's limit that is in use with the instance there; without a limit, of its total; 0 where neither is known.

    A node that has none of it (no shared CPUs, say) is full as soon as anything of it counts, and empty until then.
    """
    name, used = RESOURCES[r], in_use(room, r)
    asked = amounts_of(ask.item.resources)[r] if ask is not None else 0
    limit = room.node.limit(name)
    whole = room.node.total(name) if limit is None else limit
    if whole is None:
        return 0.0
    # By a float, as the columns of profiles have it: whole numbers of more than 53 bits would be divided more exactly.
    return min(max((used + asked) / float(whole), 0.0), 1.0) if whole > 0 else float(used + asked > 0)


_UNKNOWN = Hypervisor()
