"""State folders of instances: overlays on one image where mounts are allowed, else plain copies."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from . import kernel
from .limits import open_to_group

TEMPLATE = "template"
"""Name of the template's own state."""


class Storage:
    """The state of a template and of its instances, below one folder."""

    def __init__(
        self, folder: Path, state: Path, disk_mb: int, written_mb: int, *, mounts: bool, group: int | None
    ) -> None:
        """Copy the state once; it is the lower layer of all overlays.

        Args:
            disk_mb: Size of the image of all states.
            written_mb: Bound of what one instance writes, where the image can count it.
            group: Group of the instances' users, which may change the files; ``None`` for root.

        Raises:
            OSError: ``mounts`` is true and nothing can be mounted here.
        """
        self.seed = state
        """Folder of the seeded state, over which overlays lie."""
        self.notice = ""
        """Remark on what is missing here, for a person."""
        self.largest_mb = 0
        """Size of the largest file of the state, rounded up."""
        self._group = group
        self._written_mb: int | None = written_mb
        self.kind = "copy"
        """``btrfs``, ``overlay`` or ``copy``."""
        self._place = folder / ("layers" if mounts else "copies")
        self._place.mkdir(mode=0o700)
        self._lower = state
        if mounts:
            self._mount_image(folder / "image", disk_mb)
            self._place.chmod(0o700)  # the folder above may be open to the users of instances
            shutil.copytree(state, self._place / "lower", symlinks=True)
            self._lower = self._place / "lower"
            if group is not None:
                self.largest_mb = (open_to_group(self._lower, group) >> 20) + 1
            self.make(TEMPLATE, None)
            self.lay(TEMPLATE)
        else:
            self.notice = "each instance has a plain copy of the state, because nothing can be mounted"
            self.largest_mb = (max((file.stat().st_size for file in state.rglob("*")), default=0) >> 20) + 1

    def folder_of(self, name: str) -> Path:
        """Return the state folder that an instance sees."""
        return self._place / name if self.kind == "copy" else self.seed

    def make(self, name: str, user: int | None) -> None:
        """Make the state of an instance, for its user; ``None`` is root."""
        if self.kind == "copy":
            shutil.copytree(self.seed, self._place / name, symlinks=True)
            return
        layers = self._place / name
        if self.kind == "btrfs":
            kernel.make_subvolume(layers, None if name == TEMPLATE else self._written_mb)
        for layer in ("upper", "work", "tmp"):
            (layers / layer).mkdir(parents=True)
            if user is not None and self._group is not None and layer != "work":
                os.chown(layers / layer, user, self._group)

    def copy(self, source: str, name: str, owner: int | None, user: int | None) -> None:
        """Make the state of an instance as that of another one is now.

        On btrfs the copied files share their blocks. SQLite's log is copied with its file.

        Args:
            owner: User of the other instance, whose files become those of ``user``.
        """
        if self.kind == "copy":
            shutil.copytree(self._place / source, self._place / name, symlinks=True)
            pairs = [(self.temporary(source), self.temporary(name))]
        else:
            self.make(name, user)
            layers = self._place / source, self._place / name
            pairs = [(layers[0] / layer, layers[1] / layer) for layer in ("upper", "tmp")]
        for old, new in pairs:  # overlays keep what was removed in devices and extended attributes
            subprocess.run(
                ["cp", "-a", "--reflink=auto", "--", f"{old}/.", str(new)], check=True, capture_output=True, timeout=60
            )
            if user is not None:
                _give(new, owner, user)

    def lay(self, name: str) -> None:
        """Lay an instance's overlay over the state folder, in the namespace of the caller."""
        layers = self._place / name
        kernel.mount_overlay(self._lower, layers / "upper", layers / "work", self.seed)

    def temporary(self, name: str) -> Path:
        """Return an instance's own folder for temporary files."""
        place = self._place / name / "tmp" if self.kind != "copy" else self._place / f"{name}.tmp"
        place.mkdir(exist_ok=True)
        return place

    def drop(self, name: str) -> None:
        """Remove the state of an instance that has ended."""
        for place in (self._place / name, self._place / f"{name}.tmp"):
            if place.exists() and self.kind == "btrfs":
                kernel.remove_subvolume(place)
            elif place.exists():
                shutil.rmtree(place)

    def _mount_image(self, image: Path, size_mb: int) -> None:
        """Mount a new btrfs image at the place of all states, or use the disk's own files.

        The image has no name any more once it is mounted, so it ends with its mount.
        """
        command = shutil.which("mkfs.btrfs", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        try:
            if command is None:
                raise OSError("there is no mkfs.btrfs (package btrfs-progs)")
            with image.open("wb") as file:
                file.truncate(size_mb << 20)
            subprocess.run([command, "--quiet", str(image)], check=True, capture_output=True, timeout=60)
            subprocess.run(
                ["mount", "-t", "btrfs", "-o", "loop,noatime", str(image), str(self._place)],
                check=True,
                capture_output=True,
                timeout=60,
            )
            self.kind = "btrfs"
            self._start_quotas()
        except (OSError, subprocess.SubprocessError) as error:
            shown = getattr(error, "stderr", b"") or str(error).encode()
            self.notice = (
                f"a changed file is copied whole, because no btrfs image can be used: {shown.decode().strip()}"
            )
            self.kind = "overlay"
        finally:
            image.unlink(missing_ok=True)

    def _start_quotas(self) -> None:
        try:
            kernel.start_quotas(self._place)
        except OSError as error:
            self._written_mb = None
            self.notice = f"limits.written_mb bounds each file by itself: {error}"


def _give(folder: Path, owner: int | None, user: int) -> None:
    """Give the files of one user to another one."""
    for place, folders, files in os.walk(folder):
        for name in (".", *folders, *files):
            path = os.path.join(place, name)
            if os.lstat(path).st_uid == owner:
                os.chown(path, user, -1, follow_symlinks=False)
