"""A decision as operators read it: how many nodes each filter left and why, numbers that add up, and the nearest miss."""

from __future__ import annotations

from typing import Any

from projections.wording import size_text
from schemas.requests import PlacementRequested
from schemas.resources import RESOURCES, Shortfall
from schemas.results import Decision, NearestMiss
from streams.cli.printed import units
from streams.cli.printed.amounts import TITLES, amount_text
from streams.cli.printed.output import item_of
from streams.scheduling.explain import FunnelLine, funnel
from streams.scheduling.matrix import Line, Matrix, Without
from streams.scheduling.supply import Supply

NODES_SHOWN_MAX = 3
"""Nodes named for each filter: `-o wide` and `-o json` have them all."""


def request_text(request: PlacementRequested) -> str:
    """`2 x 4 vCPUs, 8 GiB, 80 GiB disk  zone east  group db (anti-affinity)`."""
    parts = [f"{request.count} x {size_text(request)}"]
    parts += [f"flavor {request.flavor.name}"] if request.flavor.name else []
    parts += [f"zone {request.availability_zone}"] if request.availability_zone else []
    parts += [f"group {request.group.group_id} ({request.group.policy})"] if request.group is not None else []
    parts += [f"live {request.action}" if request.live else request.action] if request.action != "create" else []
    parts += ["dry run"] if request.dry_run else []
    named = [f"{word}_{what}" for word in ("forced", "requested", "ignored", "retry") for what in ("nodes", "hosts")]
    for name in (*named, "traits_required", "traits_forbidden"):
        if values := getattr(request, name):
            parts.append(f"{name.replace('_', ' ')} {', '.join(values)}")
    for hint in ("same_host", "different_host"):
        if values := getattr(request.hints, hint):
            parts.append(f"{hint.replace('_', ' ')} {', '.join(values)}")
    return "  ".join(parts)


def funnel_lines(decision: Decision, matrix: Matrix | None = None) -> list[str]:
    """The filters that rejected somebody, their counts, and the sum: known nodes = all rejected + those left.

    With the `matrix` the first few nodes of each filter are named, each with its own amounts; else the first one's reason.
    """
    if not decision.rejections and decision.passed != decision.nodes_known:
        left = f"{units.count(decision.passed)} left; the result had no room for the counts of each filter"
        return [_known_text(decision, matrix), left]
    found = [line for line in funnel(decision) if line.rejected]
    quiet = len(decision.rejections) - len(found)
    width = max([len(line.filter) for line in found], default=0)
    digits = len(units.count(decision.nodes_known))
    lines = [_known_text(decision, matrix)]
    for line in found:
        counts = f"{units.count(line.entered):>{digits}} -> {units.count(line.left):>{digits}}"
        lines.append(f"  {line.filter:<{width}}  {counts}  {_examples(line, matrix)}")
    if quiet:
        lines.append(f"  {units.counted(quiet, 'other filter' if found else 'filter')} rejected nobody")
    rejected = " + ".join(units.count(line.rejected) for line in found) or "0"
    lines.append(f"{units.count(decision.nodes_known)} = {rejected} rejected + {units.count(decision.passed)} left")
    return lines


def _known_text(decision: Decision, matrix: Matrix | None) -> str:
    """How many nodes the counts are about: all that are known, but for an engine that looks no further once one fits."""
    known = decision.nodes_known if matrix is None else len(matrix.lines)
    if known > decision.nodes_known:
        return f"{units.counted(known, 'node')} known, {units.count(decision.nodes_known)} looked at: {decision.engine} ends where one fits"
    return f"{units.counted(known, 'node')} known"


def _examples(line: FunnelLine, matrix: Matrix | None) -> str:
    counted = [] if matrix is None else matrix.counted_for(line.filter)
    if len(counted) != line.rejected:  # An engine that looked at some nodes only, or a decision that came out otherwise.
        more = f" · and {units.count(line.rejected - 1)} more" if line.rejected > 1 else ""
        return f"{line.example}{more}"
    named = " · ".join(f"{each.node_id}: {_why(each)}" for each in counted[:NODES_SHOWN_MAX])
    more = f" · and {units.count(len(counted) - NODES_SHOWN_MAX)} more" if len(counted) > NODES_SHOWN_MAX else ""
    return named + more


def _why(line: Line) -> str:
    """Why its first filter rejects a node: `short 1,204 MiB memory (8 GiB needed of 6,988 MiB)`."""
    first = line.rejected[0]
    return "; ".join(map(short_text, first.shortfalls)) if first.shortfalls else first.reason


def short_text(lack: Shortfall) -> str:
    """`short 1,204 MiB memory (8 GiB needed of 6,988 MiB)`; what no numbers say stays in words."""
    if lack.detail or lack.resource not in RESOURCES:
        return str(lack)
    needed, free = amount_text(lack.resource, lack.needed), amount_text(lack.resource, lack.free)
    return f"short {amount_text(lack.resource, lack.missing)} {TITLES[lack.resource]} ({needed} needed of {free})"


def matrix_lines(matrix: Matrix) -> list[str]:
    """Every node with all filters that reject it, and how many each of them rejects by itself."""
    width = max([len(line.node_id) for line in matrix.lines], default=0)
    lines = [f"every filter on every node ({', '.join(matrix.filters)}):"]
    for line in matrix.lines:
        said = "; ".join(f"{each.filter}: {each.reason}" for each in line.rejected)
        lines.append(f"  {line.node_id:<{width}}  {said or 'passes'}")
    return lines


def supply_lines(supplies: tuple[Supply, ...]) -> list[str]:
    """A line for each resource asked for: who has it, who is full, who is too small, and what is free in all and on one node."""
    return [f"{TITLES[each.resource]}: {_supply_text(each)}" for each in supplies]


def _supply_text(supply: Supply) -> str:
    def amount(value: int) -> str:
        return amount_text(supply.resource, value)

    if not supply.nodes:
        return f"{amount(supply.needed)} needed; no ready node takes part"
    kinds = ((supply.has, "have it free"), (supply.full, "full"), (supply.small, "too small when empty"), (supply.unknown, "unknown"))
    parts = [f"{units.count(number)} {name}" for number, name in kinds if number]
    said = f"{amount(supply.needed)} needed; of {units.counted(supply.nodes, 'ready node')} {', '.join(parts)}"
    if supply.limit or not supply.unlimited:
        where = f" on one ({supply.free_most_node})" if supply.free_most_node else " on one"
        said += f"; free {amount(supply.free)} of {amount(supply.limit)} in all, at most {amount(supply.free_most)}{where}"
        said += f"; the largest limit is {amount(supply.limit_most)}"
    return said + (f"; {units.count(supply.unlimited)} have no limit" if supply.unlimited else "")


def node_supply_lines(supplies: tuple[Supply, ...]) -> list[str]:
    """The same of one node: `memory: 4 GiB needed; free 2.5 GiB of 8 GiB`."""
    return [f"{TITLES[each.resource]}: {amount_text(each.resource, each.needed)} needed; {_free_text(each)}" for each in supplies]


def _free_text(supply: Supply) -> str:
    if supply.unknown:
        return "the node reports no total of it"
    if supply.unlimited:
        return "it has no limit"
    return f"free {amount_text(supply.resource, supply.free)} of {amount_text(supply.resource, supply.limit)}"


def without_lines(chosen: str, without: tuple[Without, ...]) -> list[str]:
    """`without RAMWeigher: c03 · without CPUWeigher: the same`."""
    said = [f"without {each.weigher}: {each.chosen if each.chosen != chosen else 'the same'}" for each in without]
    return ["  " + " · ".join(said)] if said else []


def miss_line(miss: NearestMiss, matrix: Matrix | None = None) -> str:
    """`closest: c01, if 1,204 MiB memory more were free (8 GiB needed of 6,988 MiB)`; amounts as the filters of `matrix` say them."""
    lacks = miss.shortfalls if matrix is None else matrix.short(miss)
    return f"closest: {miss.node_id}, if {' and '.join(_freed(lack) for lack in lacks)}"


def closest_lines(decision: Decision, matrix: Matrix | None) -> list[str]:
    """What a failed decision came closest to: the nearest miss, or the node that fewest filters reject, with their reasons."""
    if decision.nearest_miss is not None:
        return [miss_line(decision.nearest_miss, matrix)]
    line = matrix.closest() if matrix is not None else None
    return [] if line is None else [f"closest: {line.node_id}, but for {' and '.join(f'{no.filter} ({no.reason})' for no in line.against)}"]


def _freed(lack: Shortfall) -> str:
    if lack.detail or lack.resource not in RESOURCES:
        return f"not for {lack}"
    unit = " memory" if lack.resource == "memory_mib" else " disk" if lack.resource == "disk_mib" else f" {TITLES[lack.resource]}"
    needed, free = amount_text(lack.resource, lack.needed), amount_text(lack.resource, lack.free)
    return f"{amount_text(lack.resource, lack.missing)}{unit} more were free ({needed} needed of {free})"


def weight_lines(decision: Decision) -> list[str]:
    """The best few with their scores taken apart; one that was the only one left, or met no weigher, has none."""
    lines = []
    for each in decision.best:
        parts = ", ".join(f"{w.weigher} {w.raw:.10g} (normalised {w.normalised:.3f}, counted {w.multiplied:.3f})" for w in each.weights)
        lines.append(f"  {each.node_id}  {each.score:.3f} = {parts}" if parts else f"  {each.node_id}  not weighed")
    return lines


def decision_item(decision: Decision) -> dict[str, Any]:
    """A decision as an item: every field, set or not, and `left` for each filter."""
    item = item_of(decision)
    item["rejections"] = [item_of(each) | {"left": each.entered - each.rejected} for each in decision.rejections]
    return item
