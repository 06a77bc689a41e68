"""claimlog as people install it: wheels of this tree and of an earlier commit, each in an environment of its own.

The environments take what claimlog depends on from the one that runs the tests, so nothing is fetched.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.faults.harness import ROOT

RULES_PINNED = "tests/golden"
"""What pins outcomes and bytes of every record: a commit with the same files here follows the same rules and speaks the same language."""
PACKED = ("schemas", "projections", "streams", "producers", "pyproject.toml", "README.md", "LICENSE")


def earliest_alike(root: Path = ROOT) -> str | None:
    """The earliest commit from which on nothing that pins the rules has changed, this tree included; None where that is not known.

    In a shallow clone it is the oldest commit there is, at the latest the one that is checked out.
    """
    if shutil.which("git") is None or _git(root, "diff", "--quiet", "HEAD", "--", RULES_PINNED).returncode:
        return None
    return _git(root, "log", "-1", "--format=%H", "--", RULES_PINNED).stdout.decode().strip() or None


def source_of(commit: str | None, folder: Path, root: Path = ROOT) -> Path:
    """What a wheel is made from, as of `commit`; without one, as it is in this tree."""
    folder.mkdir(parents=True)
    if commit is None:
        for name in PACKED:
            if (root / name).is_dir():
                shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(root / name, folder / name)
        return folder
    packed = _git(root, "archive", commit, *PACKED)
    assert packed.returncode == 0, packed.stderr.decode()
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed.stdout, check=True)
    return folder


def edit(path: Path, pattern: str, replacement: str) -> None:
    """Replace the one place in a file that matches. Raises AssertionError if there is another number of them."""
    text, count = re.subn(pattern, replacement, path.read_text(), flags=re.MULTILINE)
    assert count == 1, f"{path.name}: {pattern!r} was found {count} times, expected once"
    path.write_text(text)


def installed(source: Path, folder: Path) -> list[str]:
    """Build the wheel of `source`, install it in an environment in `folder`, and return its command `claimlog`."""
    _must("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "wheel"), cwd=source)
    (wheel,) = (folder / "wheel").glob("*.whl")
    _must("-m", "venv", "--without-pip", str(folder / "venv"))
    python = folder / "venv" / "bin" / "python"
    _must("-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel))
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    places = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    (packages / "dependencies.pth").write_text("".join(f"{place}\n" for place in sorted(places)))
    return [str(folder / "venv" / "bin" / "claimlog")]


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=False)


def _must(*arguments: str, cwd: Path = ROOT) -> None:
    done = subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
