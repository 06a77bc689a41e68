"""Who may go where by the metadata of aggregates, and images and hosts that are kept to themselves."""

from __future__ import annotations

from projections.room import Room
from streams.scheduling.aggregates import metadata, values
from streams.scheduling.ask import Ask, Check, per_node
from streams.scheduling.extra_specs import match
from streams.scheduling.facts import host_of
from streams.scheduling.filters.labels import required_traits
from streams.scheduling.image_properties import counts, read
from streams.scheduling.options import Options

EXTRA_SPECS_SCOPE = "aggregate_instance_extra_specs"
TENANT_KEY = "filter_tenant_id"
"""The beginning of every key whose value names projects: a value of Nova's database has room for seven at most."""
TRAIT_KEY = "trait:"


def image_properties_isolation(ask: Ask, options: Options) -> Check | None:
    """Nova's AggregateImagePropertiesIsolation: where an aggregate names a property the image has, it must have the image's value.

    A property that says no, or 0, counts as none.
    """
    properties = {name: value for name, value in read(ask.request.image.properties).items() if counts(name, value)}
    namespace = options.aggregate_image_properties_isolation_namespace
    prefix = namespace + options.aggregate_image_properties_isolation_separator if namespace else ""
    if not properties:
        return None

    def why(room: Room) -> str | None:
        for key, allowed in sorted(metadata(room.node.aggregates).items()):
            if key.startswith(prefix) and key in properties and properties[key] not in allowed:
                return f"its aggregates take images with {key} {' or '.join(sorted(allowed))}, this one has {properties[key]}"
        return None

    return per_node(why)


def instance_extra_specs(ask: Ask, _: Options) -> Check | None:
    """Nova's AggregateInstanceExtraSpecsFilter: each extra spec without scope, or in its own, is met by a value of the aggregates."""
    wanted: list[tuple[str, str]] = []
    for key, requirement in ask.request.flavor.extra_specs.items():
        scope, separator, name = key.partition(":")
        if not separator or scope == EXTRA_SPECS_SCOPE:
            wanted.append((name if separator else key, requirement))
    if not wanted:
        return None

    def why(room: Room) -> str | None:
        found = metadata(room.node.aggregates)
        for name, requirement in wanted:
            has = sorted(found.get(name, ()))
            if not any(match(value, requirement) for value in has):
                return f"aggregates with {name} {requirement} needed, its own have {', '.join(has) or 'no such key'}"
        return None

    return per_node(why)


def tenancy_isolation(ask: Ask, _: Options) -> Check | None:
    """Nova's AggregateMultiTenancyIsolation: where aggregates name projects, only those. A request without a project is none of them."""
    project_id = ask.request.project_id

    def why(room: Room) -> str | None:
        named = [found for key, found in metadata(room.node.aggregates).items() if key.startswith(TENANT_KEY)]
        projects = frozenset[str]().union(*named)
        if not projects or (project_id and project_id in projects):
            return None
        return f"its aggregates are for other projects than {project_id or 'none'}"

    return per_node(why)


def require_tenant_aggregate(ask: Ask, _: Options) -> Check | None:
    """Nova's pre-filter of that name, for fleets where every project has aggregates: only nodes in one of the project's.

    As there, an aggregate is a project's if one of its values is the project, whole, and one of its keys begins with `TENANT_KEY`.
    """
    project_id = ask.request.project_id
    text = f"it is in no aggregate of project {project_id or '(none)'}"

    def why(room: Room) -> str | None:
        of_project = [each.metadata for each in room.node.aggregates if project_id and project_id in each.metadata.values()]
        return None if any(key.startswith(TENANT_KEY) for found in of_project for key in found) else text

    return per_node(why)


def one_flavor(ask: Ask, _: Options) -> Check:
    """Nova's TypeAffinityFilter, up to its release Queens: a node runs instances of one flavor only, told apart by name.

    The instance itself may be there with another, as while it is resized. One whose flavor nobody says may be of any.
    """
    name, own = ask.request.flavor.name, ask.instance_id

    def why(room: Room) -> str | None:
        laid = {item.instance_id: {item.flavor} - {""} for item in room.overlay}
        for instance_id in sorted(room.instances):
            flavors = room.node.flavors(instance_id) | laid.get(instance_id, set())
            if instance_id != own and (not name or flavors != {name}):
                there = f"of flavor {', '.join(sorted(flavors))}" if flavors else "of a flavor that nobody says"
                return f"instance {instance_id} there is {there}, not of {name or 'the same, as this one has no name'}"
        return None

    return per_node(why)


def type_affinity(ask: Ask, _: Options) -> Check | None:
    """Nova's AggregateTypeAffinityFilter: where aggregates name flavors, only those."""
    name = ask.request.flavor.name

    def why(room: Room) -> str | None:
        found = values(room.node.aggregates, "instance_type")
        flavors = {part.strip() for text in found for part in text.split(",")}
        if not found or name in flavors:
            return None
        return f"its aggregates are for flavors {', '.join(sorted(flavors))}, not {name or 'one without a name'}"

    return per_node(why)


def isolate_aggregates(ask: Ask, _: Options) -> Check | None:
    """Nova's pre-filter of that name: an aggregate that says `trait:X` is `required` takes requests that require X, and no others."""
    required = required_traits(ask.request)

    def why(room: Room) -> str | None:
        said = [pair for aggregate in room.node.aggregates for pair in aggregate.metadata.items()]
        keys = {key for key, text in said if key.startswith(TRAIT_KEY) and text == "required"}
        missing = sorted(key for key in keys if key.removeprefix(TRAIT_KEY) not in required)
        return f"its aggregates are for requests with {', '.join(missing)}" if missing else None

    return per_node(why)


def isolated_hosts(ask: Ask, options: Options) -> Check | None:
    """Nova's IsolatedHostsFilter: isolated images on isolated hosts only, and those (unless unrestricted) for nothing else."""
    images, hosts = frozenset(options.isolated_images), frozenset(options.isolated_hosts)
    restricted = options.restrict_isolated_hosts_to_isolated_images
    image_id = ask.request.image.image_id
    isolated = bool(image_id) and image_id in images  # A guest on a volume has no image that could be isolated.
    if not images and not (restricted and hosts):
        return None

    def why(room: Room) -> str | None:
        apart = host_of(room) in hosts
        if isolated and not apart:
            return "the image is isolated, the host is not"
        if restricted and apart and not isolated:
            return "the host is isolated, the image is not"
        return None

    return per_node(why)
