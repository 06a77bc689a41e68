"""How busy a node may be: I/O operations and instances (Nova's IoOpsFilter, NumInstancesFilter and their Aggregate… kind), and metrics."""

from __future__ import annotations

from collections.abc import Callable

from projections.room import Room
from schemas.resources import Limits
from schemas.units import nearest_amount
from streams.scheduling.aggregates import override
from streams.scheduling.ask import Ask, Check, per_node
from streams.scheduling.options import Options, settings


def io_ops(_: Ask, options: Options) -> Check:
    """Fewer builds, moves and snapshots at work than a node may have."""
    return _io_ops(lambda _room: options.max_io_ops_per_host)


def aggregate_io_ops(_: Ask, options: Options) -> Check:
    """The same; `max_io_ops_per_host` of the node's aggregates counts before the option."""
    return _io_ops(lambda room: override(room.node.aggregates, "max_io_ops_per_host", options.max_io_ops_per_host, int))


def num_instances(ask: Ask, options: Options) -> Check:
    """Fewer instances than a node may have; the instance itself may stay where it is."""
    return _num_instances(ask, lambda _room: options.max_instances_per_host)


def aggregate_num_instances(ask: Ask, options: Options) -> Check:
    """The same; `max_instances_per_host` of the node's aggregates counts before the option."""
    return _num_instances(ask, lambda room: override(room.node.aggregates, "max_instances_per_host", options.max_instances_per_host, int))


def metrics(_: Ask, options: Options) -> Check | None:
    """Nova's MetricsFilter: every metric that the weight setting names is reported."""
    wanted = frozenset(name for name, _ratio in settings(options.weight_setting))
    if not wanted:
        return None

    def why(room: Room) -> str | None:
        host = room.node.hypervisor
        lacks = sorted(wanted - {metric.name for metric in (host.metrics if host is not None else ())})
        return f"it does not report {', '.join(lacks)}" if lacks else None

    return per_node(why)


def _io_ops(most: Callable[[Room], int]) -> Check:
    return per_node(
        lambda room: f"io_ops: {room.io_ops} of at most {most(room)} are at work" if room.io_ops >= most(room) else None,
        lambda room: Limits(io_ops_max=nearest_amount(most(room))),
    )


def _num_instances(ask: Ask, most: Callable[[Room], int]) -> Check:
    own = ask.instance_id
    return per_node(
        lambda room: (
            f"instances: {len(room.instances)} of at most {most(room)} are there"
            if len(room.instances) >= most(room) and own not in room.instances
            else None
        ),
        lambda room: Limits(instances_max=nearest_amount(most(room))),
    )
