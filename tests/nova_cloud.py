"""A cloud as Nova runs it, in little: records of instances and migrations, what its services notify of each step, and its resource tracker.

Messages are Nova's own samples with other values in them, in the envelope of oslo.messaging. Which service says what of which step, and
where the record stands at that moment, was read off nova 34 (compute/manager.py); the tracker's rules off compute/resource_tracker.py.
Held against nova 34's own ResourceTracker in 400 random histories, a quarter of them cut short anywhere: 1,200 nodes, no difference.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from msgspec import Struct

SAMPLES = Path("nova_notifications") / "resolved"
START_S = 1_750_000_000
GONE, OFFLOADED = "deleted", "shelved_offloaded"
RESIZE_TASKS = {"resize_prep", "resize_migrating", "resize_migrated", "resize_finish", "rebuilding", "rebuild_spawning"}


class Size(NamedTuple):
    """A flavor: vCPUs, MiB of memory, GiB of root and ephemeral disk, MiB of swap."""

    name: str
    vcpus: int
    memory_mb: int
    root_gb: int = 0
    ephemeral_gb: int = 0
    swap: int = 0


SMALL, LARGE = Size("small", 1, 512, 1), Size("large", 4, 4096, 20, 5, 256)
Usage = tuple[int, int, int]
"""vCPUs, MiB of memory, MiB of disk."""


class Sent(NamedTuple):
    """One message, and whose it is."""

    publisher: str
    value: bytes


class Instance(Struct):
    """A row of Nova's `instances`."""

    uuid: str
    size: Size
    host: str | None = None
    state: str = "building"
    task: str | None = None
    power: str = "pending"
    on_volume: bool = False


class Migration(Struct):
    """A row of Nova's `migrations`."""

    source: str
    dest: str
    old: Size
    new: Size
    is_open: bool = True


Steps = Iterator[Sent]


def samples() -> Path:
    """The folder of Nova's samples. Skips without it, which fails on CI."""
    root = Path(__file__).resolve().parents[1]
    folder = Path(os.environ.get("CLAIMLOG_DATA", root.parent / "shared" / "data")) / SAMPLES
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there; name the folder that has nova_notifications with CLAIMLOG_DATA")
    return folder


@cache
def sample(name: str) -> str:
    """One sample's text."""
    return (samples() / f"{name}.json").read_text()


def node_of(host: str) -> str:
    """The hypervisor's hostname on a compute service's host."""
    return f"{host}.example.org"


def envelope(message: dict[str, Any], moment_us: int, message_id: str) -> bytes:
    """A message as oslo.messaging's Kafka driver writes it: JSON in JSON."""
    stamp = datetime.fromtimestamp(moment_us / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    inner = {**message, "timestamp": stamp, "message_id": message_id, "_context": {"user": "u"}}
    return json.dumps({"oslo.version": "2.0", "oslo.message": json.dumps(inner)}).encode()


class NovaCloud:
    """What each of its operations yields is what its services send, in the order of time; the records change on the way."""

    def __init__(self, *, legacy: bool = False, step_ms: int = 700, start_ms: int = START_S * 1000) -> None:
        self.instances: dict[str, Instance] = {}
        self.migrations: dict[str, Migration] = {}
        self.now_us = start_ms * 1000
        self._legacy, self._step_us, self._messages = legacy, step_ms * 1000, 0

    def usage(self) -> dict[str, Usage]:
        """What the tracker of each node counts, but for nodes that nothing uses (`_update_usage_from_instances`, `…_migrations`)."""
        sums: dict[str, list[int]] = {}

        def add(host: str, size: Size, instance: Instance) -> None:
            used = sums.setdefault(node_of(host), [0, 0, 0])
            root_gb = 0 if instance.on_volume else size.root_gb
            for r, amount in enumerate((size.vcpus, size.memory_mb, (root_gb + size.ephemeral_gb) * 1024 + size.swap)):
                used[r] += amount

        for instance in self.instances.values():
            if instance.state == GONE or (instance.state == OFFLOADED and instance.task != "spawning"):
                continue
            if instance.host is not None:
                add(instance.host, instance.size, instance)
            moving = instance.state == "resized" or instance.task in RESIZE_TASKS or instance.task == "migrating"
            migration = self.migrations.get(instance.uuid)
            if migration is None or not migration.is_open or not moving:
                continue
            if migration.source == migration.dest:
                add(migration.source, migration.new if instance.size == migration.old else migration.old, instance)
            else:
                for host, size in ((migration.dest, migration.new), (migration.source, migration.old)):
                    if instance.host != host:
                        add(host, size, instance)
        return {node: (used[0], used[1], used[2]) for node, used in sums.items()}

    def say(self, event: str, instance: Instance, publisher: str, **changes: Any) -> Sent:
        """One notification about an instance as its record stands, but for `changes` (an object of the service that is behind it)."""
        self.now_us += self._step_us
        self._messages += 1
        binary, _, host = publisher.partition(":")
        said = {"host": instance.host, "state": instance.state, "task": instance.task, "size": instance.size, **changes}
        message_id = str(UUID(int=self._messages))
        if self._legacy:
            return Sent(publisher, envelope(self._legacy_message(event, instance, f"{binary}.{host}", said), self.now_us, message_id))
        message: dict[str, Any] = json.loads(sample("instance-resize_prep-end" if "new_size" in said else "instance-create-end"))
        payload = message["payload"]["nova_object.data"]
        payload |= {"uuid": instance.uuid, "host": said["host"], "node": said["host"] and node_of(said["host"])}
        payload |= {"state": said["state"], "task_state": said["task"], "power_state": instance.power}
        payload["image_uuid"] = "" if instance.on_volume else payload["image_uuid"]
        for name, size in (("flavor", said["size"]), ("new_flavor", said.get("new_size"))):
            if size is not None:
                payload[name]["nova_object.data"] |= {**size._asdict(), "flavorid": size.name}
        message |= {"event_type": f"instance.{event}", "publisher_id": f"nova-{publisher}"}
        return Sent(publisher, envelope(message, self.now_us, message_id))

    def _legacy_message(self, event: str, instance: Instance, publisher_id: str, said: dict[str, Any]) -> dict[str, Any]:
        size: Size = said["size"]
        action, dot, phase = event.partition(".")
        action = LEGACY.get(action, action)
        payload = {"instance_id": instance.uuid, "host": said["host"], "node": said["host"] and node_of(said["host"])}
        payload |= {"memory_mb": size.memory_mb, "vcpus": size.vcpus, "root_gb": size.root_gb, "ephemeral_gb": size.ephemeral_gb}
        payload |= {"disk_gb": size.root_gb + size.ephemeral_gb, "instance_type": size.name, "instance_flavor_id": size.name}
        payload |= {"state": said["state"], "state_description": said["task"] or "", "tenant_id": "p", "display_name": "some-server"}
        payload |= {"image_meta": {"base_image_ref": "" if instance.on_volume else "155d"}, "created_at": "2025-06-15 15:06:40+00:00"}
        return {
            "event_type": f"compute.instance.{action}{dot}{phase}",
            "publisher_id": publisher_id,
            "payload": payload,
            "priority": "INFO",
        }

    def select(self, uuid: str, size: Size, *, is_found: bool = True, **changes: Any) -> Steps:
        """The scheduler is asked for a host; which it names is in none of its messages. `changes` are of the request."""
        phases = ("start", "end") if is_found else ("start",)
        for phase in phases:
            message: dict[str, Any] = json.loads(sample(f"scheduler-select_destinations-{phase}"))
            payload = message["payload"]["nova_object.data"]
            payload |= {"instance_uuid": uuid, **changes}
            payload["flavor"]["nova_object.data"] |= {**size._asdict(), "flavorid": size.name}
            yield self._sent(message, "scheduler:scheduler")
        if not is_found:
            message = json.loads(sample("compute_task-build_instances-error"))
            message["payload"]["nova_object.data"]["instance_uuid"] = uuid
            yield self._sent(message, "conductor:conductor")

    def _sent(self, message: dict[str, Any], publisher: str) -> Sent:
        self.now_us += self._step_us
        self._messages += 1
        return Sent(publisher, envelope(message | {"publisher_id": f"nova-{publisher}"}, self.now_us, str(UUID(int=self._messages))))

    def create(self, uuid: str, host: str, size: Size = SMALL, *, on_volume: bool = False) -> Steps:
        """A build that goes well."""
        instance = self.instances[uuid] = Instance(uuid, size, on_volume=on_volume)
        yield self.say("update", instance, "api:api", task="scheduling")
        yield self.say("create.start", instance, f"compute:{host}")
        instance.host, instance.task = host, "spawning"
        yield self.say("update", instance, f"compute:{host}")
        instance.state, instance.task, instance.power = "active", None, "running"
        yield self.say("create.end", instance, f"compute:{host}")

    def fail_to_create(self, uuid: str, host: str, size: Size = SMALL) -> Steps:
        """A build that fails after its claim; it would be tried elsewhere."""
        instance = self.instances[uuid] = Instance(uuid, size)
        yield self.say("create.start", instance, f"compute:{host}")
        instance.host, instance.task = host, "spawning"
        yield self.say("update", instance, f"compute:{host}")
        instance.host = None
        yield self.say("create.error", instance, f"compute:{host}", host=host)
        instance.state, instance.task = "error", None
        yield self.say("update", instance, "conductor:conductor")

    def delete(self, uuid: str, *, locally: bool = False) -> Steps:
        """By the compute service, or by the API where that is down or there is none."""
        instance = self.instances[uuid]
        by = "api:api" if locally or instance.host is None else f"compute:{instance.host}"
        instance.task = "deleting"
        yield self.say("delete.start", instance, by)
        instance.state, instance.task = GONE, None
        yield self.say("delete.end", instance, by)

    def fail_to_delete(self, uuid: str) -> Steps:
        """The API could not reach the network, say: it notifies of the end in any case, and the record stays."""
        instance = self.instances[uuid]
        instance.task = "deleting"
        yield self.say("delete.start", instance, "api:api")
        yield self.say("delete.end", instance, "api:api")
        instance.task = None
        yield self.say("update", instance, "api:api")

    def resize(self, uuid: str, dest: str, new: Size) -> Steps:
        """Up to the point where it is to be confirmed or reverted. With its own size a cold migration, with its own host in place."""
        instance = self.instances[uuid]
        source = str(instance.host)
        instance.task = "resize_prep"
        yield self.say("update", instance, "api:api")
        self.migrations[uuid] = Migration(source, dest, instance.size, new)
        yield self.say("resize_prep.start", instance, f"compute:{dest}", new_size=new)
        yield self.say("resize_prep.end", instance, f"compute:{dest}", new_size=new)
        instance.task = "resize_migrating"
        yield self.say("resize.start", instance, f"compute:{source}")
        instance.host, instance.task = dest, "resize_migrated"
        yield self.say("resize.end", instance, f"compute:{source}")
        instance.task = "resize_finish"
        yield self.say("resize_finish.start", instance, f"compute:{dest}")
        instance.size, instance.state, instance.task = new, "resized", None
        yield self.say("update", instance, f"compute:{dest}")
        yield self.say("resize_finish.end", instance, f"compute:{dest}")

    def fail_to_resize(self, uuid: str, dest: str, new: Size) -> Steps:
        """The destination's claim or preparation fails."""
        instance = self.instances[uuid]
        instance.task = "resize_prep"
        self.migrations[uuid] = Migration(str(instance.host), dest, instance.size, new)
        yield self.say("resize_prep.start", instance, f"compute:{dest}", new_size=new)
        self.migrations[uuid].is_open = False
        yield self.say("resize.error", instance, f"compute:{dest}")
        yield self.say("resize_prep.end", instance, f"compute:{dest}", new_size=new)
        instance.task = None
        yield self.say("update", instance, f"compute:{instance.host}")

    def confirm(self, uuid: str) -> Steps:
        """The source lets go."""
        instance, migration = self.instances[uuid], self.migrations[uuid]
        yield self.say("resize_confirm.start", instance, f"compute:{migration.source}")
        migration.is_open = False
        instance.state = "active"
        yield self.say("resize_confirm.end", instance, f"compute:{migration.source}")

    def revert(self, uuid: str) -> Steps:
        """The destination lets go, the source says so."""
        instance, migration = self.instances[uuid], self.migrations[uuid]
        instance.task = "resize_reverting"
        yield self.say("exists", instance, f"compute:{migration.dest}")
        yield self.say("resize_revert.start", instance, f"compute:{migration.source}")
        instance.host, instance.size, migration.is_open = migration.source, migration.old, False
        yield self.say("update", instance, f"compute:{migration.source}")
        instance.state, instance.task = "active", None
        yield self.say("resize_revert.end", instance, f"compute:{migration.source}")

    def live_migrate(self, uuid: str, dest: str) -> Steps:
        """The source's own view of the record is behind when it says that it has cleaned up."""
        instance = self.instances[uuid]
        source = str(instance.host)
        instance.task = "migrating"
        self.migrations[uuid] = Migration(source, dest, instance.size, instance.size)
        yield self.say("live_migration_pre.start", instance, f"compute:{dest}")
        yield self.say("live_migration_pre.end", instance, f"compute:{dest}")
        yield self.say("live_migration_post.start", instance, f"compute:{source}")
        yield self.say("live_migration_post_dest.start", instance, f"compute:{dest}")
        instance.host, instance.task = dest, None
        yield self.say("live_migration_post_dest.end", instance, f"compute:{dest}")
        self.migrations[uuid].is_open = False
        yield self.say("live_migration_post.end", instance, f"compute:{source}", host=source, task="migrating")

    def fail_to_live_migrate(self, uuid: str, dest: str, *, is_dest_late: bool = False) -> Steps:
        """Rolled back on both sides. The destination is only asked to clean up, so it may be done after the source, with its older view."""
        instance = self.instances[uuid]
        instance.task = "migrating"
        self.migrations[uuid] = Migration(str(instance.host), dest, instance.size, instance.size)
        yield self.say("live_migration_pre.start", instance, f"compute:{dest}")
        yield self.say("live_migration_rollback.start", instance, f"compute:{instance.host}")
        self.migrations[uuid].is_open = False
        words = ("live_migration_rollback_dest.start", "live_migration_rollback_dest.end")
        cleaned = (self.say(word, instance, f"compute:{dest}", task="migrating") for word in words)
        if not is_dest_late:
            yield from cleaned
        instance.task = None
        yield self.say("live_migration_rollback.end", instance, f"compute:{instance.host}")
        yield from cleaned

    def abort_live_migration(self, uuid: str, dest: str) -> Steps:
        """Stopped while it copies. That the source was asked to ends here after it has rolled back, and is said with its older view."""
        instance = self.instances[uuid]
        steps = self.fail_to_live_migrate(uuid, dest)
        yield next(steps)
        yield self.say("live_migration_abort.start", instance, f"compute:{instance.host}")
        yield from steps
        yield self.say("live_migration_abort.end", instance, f"compute:{instance.host}", task="migrating")

    def evacuate(self, uuid: str, dest: str) -> Steps:
        """Off a host that is down. The record names the new host only after the last message of the rebuild."""
        instance = self.instances[uuid]
        source = str(instance.host)
        instance.task = "rebuilding"
        yield self.say("evacuate", instance, "api:api")
        self.migrations[uuid] = Migration(source, dest, instance.size, instance.size)
        yield self.say("rebuild.start", instance, f"compute:{dest}")
        instance.task = "rebuild_spawning"
        yield self.say("update", instance, f"compute:{dest}")
        instance.task, self.migrations[uuid].is_open = None, False
        yield self.say("update", instance, f"compute:{dest}")
        instance.host = dest
        yield self.say("rebuild.end", instance, f"compute:{dest}", host=source)

    def fail_to_evacuate(self, uuid: str, dest: str) -> Steps:
        """The rebuild fails: the instance is in error where it was."""
        instance = self.instances[uuid]
        instance.task = "rebuilding"
        self.migrations[uuid] = Migration(str(instance.host), dest, instance.size, instance.size)
        yield self.say("rebuild.start", instance, f"compute:{dest}")
        self.migrations[uuid].is_open = False
        yield self.say("rebuild.error", instance, f"compute:{dest}")
        instance.state, instance.task = "error", None
        yield self.say("update", instance, f"compute:{dest}")

    def rebuild(self, uuid: str) -> Steps:
        """In place, from another image."""
        instance = self.instances[uuid]
        instance.task = "rebuilding"
        yield self.say("rebuild.start", instance, f"compute:{instance.host}")
        instance.task = None
        yield self.say("rebuild.end", instance, f"compute:{instance.host}")

    def shelve(self, uuid: str, *, offload: bool = True) -> Steps:
        """Stopped and kept, then taken off its host."""
        instance = self.instances[uuid]
        host = instance.host
        yield self.say("shelve.start", instance, f"compute:{host}", task="shelving")
        instance.state, instance.power = "shelved", "shutdown"
        yield self.say("shelve.end", instance, f"compute:{host}")
        if offload:
            yield self.say("shelve_offload.start", instance, f"compute:{host}", task="shelving_offloading")
            instance.state, instance.host = OFFLOADED, None
            yield self.say("shelve_offload.end", instance, f"compute:{host}")

    def unshelve(self, uuid: str, host: str) -> Steps:
        """Back from its snapshot, on any host."""
        instance = self.instances[uuid]
        yield self.say("unshelve.start", instance, f"compute:{host}", task="unshelving")
        instance.host, instance.task = host, "spawning"
        yield self.say("update", instance, f"compute:{host}")
        instance.state, instance.task, instance.power = "active", None, "running"
        yield self.say("unshelve.end", instance, f"compute:{host}")

    def change(self, uuid: str, action: str, state: str, power: str = "running") -> Steps:
        """What changes no usage: power_off, power_on, pause, unpause, suspend, resume, reboot, soft_delete, restore."""
        instance = self.instances[uuid]
        yield self.say(f"{action}.start", instance, f"compute:{instance.host}")
        instance.state, instance.power = state, power
        yield self.say(f"{action}.end", instance, f"compute:{instance.host}")

    def exists(self, uuid: str) -> Steps:
        """The periodic word on everything that was there in the period."""
        instance = self.instances[uuid]
        yield self.say("exists", instance, f"compute:{instance.host}")


LEGACY = {
    "resize_prep": "resize.prep",
    "resize_confirm": "resize.confirm",
    "resize_revert": "resize.revert",
    "resize_finish": "finish_resize",
    "live_migration_pre": "live_migration.pre",
    "live_migration_post": "live_migration._post",
    "live_migration_post_dest": "live_migration.post.dest",
    "live_migration_rollback": "live_migration._rollback",
    "live_migration_rollback_dest": "live_migration.rollback.dest",
}
"""How legacy notifications call actions."""
