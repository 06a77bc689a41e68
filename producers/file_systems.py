"""Which file system a path of this machine is on, found without touching one that may hang (a network file system whose server is gone)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from msgspec import Struct

MOUNTS = Path("/proc/self/mountinfo")
"""What is mounted where in this process's view of the machine (proc(5))."""

LOCAL_KINDS = {"btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "reiserfs", "tmpfs", "xfs", "zfs"}
"""Kinds that answer at once and keep what they hold on this machine. Of any other kind nothing is said."""

LINKS_MAX = 40
"""Symbolic links that a path may lead through, as in Linux."""


class FileSystem(Struct, frozen=True):
    """One file system: the same `key` for all paths on it, and the bytes that it holds now."""

    key: str
    capacity_bytes: int


class Mount(Struct, frozen=True):
    """A file system and the folder that it is seen under, in the mount `parent`. `key` is the same wherever it is mounted."""

    number: int
    parent: int
    folder: PurePosixPath
    kind: str
    key: str


class Mounts(Struct, frozen=True):
    """What is mounted where: the `root`, and each other mount by the one that its folder is in and that folder."""

    root: Mount | None = None
    inside: dict[tuple[int, PurePosixPath], Mount] = {}

    def above(self, path: PurePosixPath) -> Mount | None:
        """The mount that is seen at `path`, step by step from the root: what is mounted in a folder that another hides is not seen."""
        here = self.root
        for folder in (*reversed(path.parents), path):
            while here is not None and (entered := self.inside.get((here.number, folder))) is not None:
                here = entered
        return here


def read_mounts(text: str) -> Mounts:
    """The mounts that a mountinfo describes."""
    mounts = [_mount(*line.split(" - ", 1)) for line in text.splitlines() if " - " in line]
    numbers = {mount.number for mount in mounts}
    root = next((mount for mount in mounts if mount.parent not in numbers - {mount.number} and mount.folder.name == ""), None)
    return Mounts(root, {(mount.parent, mount.folder): mount for mount in mounts if mount is not root})


def file_system_of(path: str, mounts: Mounts) -> FileSystem | None:
    """The file system that `path` is on; None where it is not here, or on one that may hang, or of which nothing is known."""
    mount = mount_of(path, mounts, os.readlink)
    if mount is None or mount.kind not in LOCAL_KINDS:
        return None
    try:
        figures = os.statvfs(path)
    except OSError:
        return None
    return FileSystem(mount.key, figures.f_blocks * figures.f_frsize)


def mount_of(path: str, mounts: Mounts, read_link: Callable[[str], str]) -> Mount | None:
    """The mount that `path` leads to through its symbolic links. One that is not local ends the way: no link on it is read."""
    left, reached = list(reversed(PurePosixPath(path).parts[1:])), PurePosixPath("/")
    mount, links = mounts.above(reached), 0
    while left and mount is not None and mount.kind in LOCAL_KINDS:
        step = left.pop()
        reached = reached.parent if step == ".." else reached / step
        mount = mounts.above(reached)
        if mount is None or mount.kind not in LOCAL_KINDS:
            break
        try:
            link = PurePosixPath(read_link(str(reached)))
        except OSError:
            continue  # no link, or nothing at all
        links += 1
        if links > LINKS_MAX:
            return None
        reached = PurePosixPath("/") if link.is_absolute() else reached.parent
        left.extend(reversed(link.parts[1:] if link.is_absolute() else link.parts))
        mount = mounts.above(reached)
    return mount


def _mount(seen: str, of: str) -> Mount:
    number, parent, device, _, folder = seen.split(" ")[:5]
    kind, source = of.split(" ")[:2]
    return Mount(int(number), int(parent), PurePosixPath(_plain(folder)), kind, _key(kind, _plain(source), device))


def _key(kind: str, source: str, device: str) -> str:
    """Subvolumes of btrfs and datasets of ZFS have device numbers of their own and share the room of what they are made from."""
    if kind == "zfs":
        return f"zfs {source.split('/', 1)[0]}"
    return f"btrfs {source}" if kind == "btrfs" else device


def _plain(field: str) -> str:
    """A field of mountinfo, in which blanks and backslashes stand as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)
