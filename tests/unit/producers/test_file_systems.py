"""Which file system a path is on: through links, under the deepest mount, and without a step onto one that may hang."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from producers.file_systems import MOUNTS, Mounts, file_system_of, mount_of, read_mounts

MOUNTINFO = r"""
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 27 8:17 / /data rw,relatime shared:7 - xfs /dev/sdb1 rw
31 27 8:17 /images /var/lib/libvirt/images rw,relatime shared:7 - xfs /dev/disk/by-label/data rw
32 27 0:44 / /mnt/nfs rw,relatime - nfs4 server:/export rw
33 27 0:51 /a /btrfs/a rw,relatime - btrfs /dev/sdc rw
34 27 0:52 /b /btrfs/b rw,relatime - btrfs /dev/sdc rw
35 27 0:61 / /tank/one rw,relatime - zfs tank/one rw
36 27 0:62 / /tank/two rw,relatime - zfs tank/two rw
37 27 0:71 / /with\040blank rw,relatime - tmpfs tmpfs rw
38 27 0:72 / /ram rw,relatime - tmpfs tmpfs rw
39 30 0:73 / /data/twice rw,relatime - tmpfs tmpfs rw
40 39 0:74 / /data/twice rw,relatime - tmpfs tmpfs rw
41 27 0:75 / /under/below rw,relatime - nfs4 server:/dead rw
42 27 0:76 / /under rw,relatime - tmpfs tmpfs rw
"""

LINKS = {
    "/images": "/data/pool",
    "/data/pool": "../ram/./pool",
    "/shared": "mnt/nfs/instances",
    "/round": "/round",
    "/data/deep/link": "/ram/x",
}


def key_of(path: str) -> str:
    def read_link(at: str) -> str:
        assert not at.startswith("/mnt/nfs"), "the server of this one is dead: whoever looks at it hangs"
        try:
            return LINKS[at]
        except KeyError:
            raise OSError(at) from None

    found = mount_of(path, read_mounts(MOUNTINFO), read_link)
    return "" if found is None else found.key


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("/", "254:0"),
        ("/var/lib/nova/instances", "254:0"),
        ("/data", "8:17"),
        ("/database", "254:0"),
        ("/var/lib/libvirt/images/sub", "8:17"),
        ("/btrfs/a/x", "btrfs /dev/sdc"),
        ("/btrfs/b", "btrfs /dev/sdc"),
        ("/tank/one", "zfs tank"),
        ("/tank/two/x", "zfs tank"),
        ("/with blank/x", "0:71"),
        ("/data/twice/x", "0:74"),
        ("/under/below/x", "0:76"),
        ("/images/vm.raw", "0:72"),
        ("/data/../ram", "0:72"),
        ("/mnt/nfs/a/b", "0:44"),
        ("/shared/x", "0:44"),
        ("/round/x", ""),
        ("/data/deep/link/y", "0:72"),
    ],
)
def test_a_path_is_on_the_deepest_mount_that_its_links_lead_to(path: str, key: str) -> None:
    assert key_of(path) == key


def test_of_what_may_hang_or_is_not_there_nothing_is_said() -> None:
    mounts = read_mounts(MOUNTINFO)

    assert file_system_of("/mnt/nfs/a", mounts) is None
    assert file_system_of("/no/such/folder", mounts) is None
    assert file_system_of("/", Mounts()) is None


def test_the_file_system_of_a_folder_here_is_the_machines_own(tmp_path: Path) -> None:
    mounts = read_mounts(MOUNTS.read_text())
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")

    real, linked = (file_system_of(str(tmp_path / name), mounts) for name in ("folder", "link"))

    figures = os.statvfs(tmp_path)
    assert real == linked
    assert real is not None
    assert real.capacity_bytes == figures.f_blocks * figures.f_frsize
