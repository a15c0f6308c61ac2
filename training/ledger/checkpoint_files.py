"""Checks a checkpoint's files before anything is loaded, and names a folder once it is whole.

A published version has a ``manifest.json`` with the size and sha256 of every file. A warm start's
checkpoint has a ``recipe.json`` with those of its weights. Any other checkpoint is checked for
weights that were cut short. A file is hashed once per process, as long as it is not changed: about
1.5 GB/s, a small part of the time to read and convert the weights.

A trainer's state is several times as large and written at each update, so it is not read again for
its manifest. ``torch.save`` writes zip archives, whose directory has a CRC-32 of each part,
computed while it was written. The manifest keeps the directory's hash, and the parts are compared
with their CRC-32 when the state is loaded.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import zipfile
import zlib
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

import orjson

from envs.types import AnyPath, StorageError
from training.ledger.disk import raise_read_errors
from training.ledger.seal import unsealed

MANIFEST = "manifest.json"
"""Name of the manifest, written last into a policy's folder; without it the policy does not
exist."""
REMOVED = "removed.json"
"""Name of the file that, beside the manifest, marks a policy whose weights the run's retention has
removed."""
RECIPE = "recipe.json"
"""Name of the file in a warm start's checkpoint that records how it was made."""
WEIGHT_FILES = re.compile(r"(model|pytorch_model|adapter_model).*\.(safetensors|bin)(\.index\.json)?")
"""Names of the files that a new version replaces; tokenizer, processor and chat template are copied
unchanged."""
_hashes: dict[tuple[str, int, int, int], str] = {}
"""sha256 by path, inode, size and time of the last change of any kind (ctime, which a copy cannot
set)."""


def file_sha256(path: Path) -> str:
    """Return a file's sha256, computed once per process as long as it is not changed.

    The file is read in pieces.
    """
    with raise_read_errors(path):
        status = path.stat()
        key = (str(path), status.st_ino, status.st_size, status.st_ctime_ns)
        if key not in _hashes:
            with open(path, "rb") as file:
                _hashes[key] = hashlib.file_digest(file, "sha256").hexdigest()
        return _hashes[key]


def file_hashes(folder: AnyPath) -> dict[str, dict[str, Any]]:
    """Return ``{name: {size, sha256}}`` of a folder's files, without the manifest."""
    folder = Path(folder)
    return {
        str(path.relative_to(folder)): {"size": path.stat().st_size, "sha256": file_sha256(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }


def state_hashes(folder: Path, paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Return the hashes of some of a trainer state's files, in the form of `file_hashes`.

    An archive has ``{size, archive}`` instead, with the sha256 of its directory (`archive_digest`);
    its parts are not read.
    """
    return {
        str(path.relative_to(folder)): (
            {"size": path.stat().st_size, "archive": archive_digest(path)}
            if zipfile.is_zipfile(path)
            else {"size": path.stat().st_size, "sha256": file_sha256(path)}
        )
        for path in sorted(paths)
    }


def archive_digest(path: Path) -> str:
    """Return the sha256 of a zip archive's directory.

    The directory lies at the archive's end and has name, place, size and CRC-32 of each part.

    Raises:
        StorageError: The file is no whole archive.
    """
    try:
        with raise_read_errors(path), zipfile.ZipFile(path) as archive, open(path, "rb") as file:
            file.seek(archive.start_dir)
            return hashlib.sha256(file.read()).hexdigest()
    except zipfile.BadZipFile as error:
        raise StorageError(f"{path} is damaged: {error}") from error


def check_archive(path: Path) -> None:
    """Compare each part of a zip archive with its CRC-32 (about 2.5 GB/s).

    Raises:
        StorageError: The file is no whole archive, or a part is damaged.
    """
    try:
        with raise_read_errors(path), zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
    except (zipfile.BadZipFile, zlib.error) as error:
        raise StorageError(f"{path} is damaged: {error}") from error
    if broken:
        raise StorageError(f"{path} is damaged: its part {broken} does not hold what its checksum says")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read and check ``manifest.json`` of a folder.

    Raises:
        StorageError: The manifest is missing, cut short, or lists no files.
        ReadError: It cannot be read for the moment.
    """
    path = folder / MANIFEST
    try:
        with raise_read_errors(path):
            manifest = unsealed(path, orjson.loads(path.read_bytes()), "put back a copy of it from a backup")
    except OSError as error:
        raise StorageError(f"{path} cannot be read ({error.strerror})") from error
    except orjson.JSONDecodeError as error:
        raise StorageError(f"{path} is damaged: no valid JSON ({error})") from error
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict) or not files or not all(_is_entry(entry) for entry in files.values()):
        raise StorageError(f"{path} is damaged: it does not list files with their size and sha256")
    return dict(manifest)


class RemovedError(StorageError):
    """A policy's weights were removed on purpose."""


def check_not_removed(folder: Path) -> None:
    """Raise ``RemovedError`` if retention has removed a policy's weights.

    The error names the versions of the same run that have theirs.
    """
    if (folder / REMOVED).exists():
        others = sorted(path.parent.name for path in folder.parent.glob(f"v*/{MANIFEST}"))
        whole = [name for name in others if not (folder.parent / name / REMOVED).exists()]
        raise RemovedError(
            f"the weights of {folder} were removed, as the run keeps the newest policies alone (trainer.keep_policies); "
            f"take another version: {', '.join(whole[-8:])}"
        )


def check_files(folder: Path, files: dict[str, dict[str, Any]], listed_in: str) -> None:
    """Compare a folder's files with their recorded sizes and hashes.

    Existence and size of all files are checked first, which is cheap, then their sha256.

    Raises:
        StorageError: A file is missing, cut short, holds other bytes, or is not listed and would be
            loaded too; names it.
        RemovedError: The weights were removed by the run's retention.
        ReadError: A file cannot be read for the moment.
    """
    check_not_removed(folder)
    for path in added_files(folder, files):
        raise StorageError(f"{path} was added: {listed_in} does not list it")
    for name, entry in files.items():
        path = folder / name
        if not path.is_file():
            raise StorageError(f"{path} is missing, and {listed_in} lists it")
        if (size := path.stat().st_size) != entry["size"]:
            raise StorageError(f"{path} is damaged: it has {size} bytes, and {listed_in} says {entry['size']}")
    for name, entry in files.items():
        if "archive" in entry:
            if archive_digest(folder / name) != entry["archive"]:
                raise StorageError(f"{folder / name} does not hold the parts that {listed_in} says")
            check_archive(folder / name)
        elif (digest := file_sha256(folder / name)) != entry["sha256"]:
            raise StorageError(
                f"{folder / name} does not hold what {listed_in} says "
                f"(sha256 {digest[:12]}…, written down {entry['sha256'][:12]}…)"
            )


def added_files(folder: Path, files: Container[str]) -> list[Path]:
    """Return paths that would be loaded from a checkpoint's folder and are not listed."""
    return [
        path
        for path in sorted(folder.iterdir())
        if path.name not in files and (WEIGHT_FILES.fullmatch(path.name) or path.name == "adapter_config.json")
    ]


def check_checkpoint_files(folder: Path) -> None:
    """Check a checkpoint folder by its manifest, else its recipe, else its weights' format.

    Raises:
        StorageError: A file is missing, cut short, or not the one that was published; names it.
        ReadError: A file cannot be read for the moment.
    """
    with raise_read_errors(folder):
        _check_checkpoint_files(folder)


def _check_checkpoint_files(folder: Path) -> None:
    if (folder / MANIFEST).exists():
        check_files(folder, read_manifest(folder)["files"], MANIFEST)
        return
    if weights := _recipe_weights(folder):
        check_files(folder, weights, RECIPE)
    for path in sorted(folder.glob("*.safetensors")):
        _check_safetensors(path)
    for path in sorted(folder.glob("*.json")):
        try:
            json.loads(path.read_bytes())  # not orjson, which refuses the NaN that some checkpoints hold
        except ValueError as error:
            raise StorageError(f"{path} is damaged: no valid JSON ({error})") from error
    for path in sorted(folder.glob("*.index.json")):
        index = json.loads(path.read_bytes())
        shards = set(index.get("weight_map", {}).values()) if isinstance(index, dict) else set()
        for name in sorted(shards):
            if not (folder / name).is_file():
                raise StorageError(f"{folder / name} is missing, and {path.name} lists it")


def count_parameters(folder: Path) -> int:
    """Return the number of parameters of a checkpoint.

    It is read from the headers of safetensors files; of other files it is an estimate by their size
    in bfloat16.
    """
    if not (files := list(folder.glob("*.safetensors"))):
        return sum(path.stat().st_size // 2 for path in folder.glob("pytorch_model*.bin"))
    shapes = [
        entry["shape"] for path in files for name, entry in _safetensors_header(path).items() if name != "__metadata__"
    ]
    return sum(math.prod(shape) for shape in shapes)


def safetensors_headers(folder: Path) -> dict[str, dict[str, Any]]:
    """Return ``{file: {tensor: {dtype, shape, …}}}`` of a checkpoint's weights.

    The files are those of its index, else all.
    """
    index = folder / "model.safetensors.index.json"
    listed = set(orjson.loads(index.read_bytes())["weight_map"].values()) if index.exists() else None
    names = sorted(listed or (path.name for path in folder.glob("*.safetensors")))
    headers = {name: _safetensors_header(folder / name) for name in names}
    return {name: {key: header[key] for key in header if key != "__metadata__"} for name, header in headers.items()}


def _safetensors_header(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        header: dict[str, Any] = orjson.loads(file.read(int.from_bytes(file.read(8), "little")))
    return header


def _recipe_weights(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the recipe's entries of weight files; a person may adapt the other files."""
    try:
        recipe = orjson.loads((folder / RECIPE).read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        return {}
    files = recipe.get("files") if isinstance(recipe, dict) else None
    if not isinstance(files, dict):
        return {}
    return {name: entry for name, entry in files.items() if WEIGHT_FILES.fullmatch(name) and _is_entry(entry)}


def _check_safetensors(path: Path) -> None:
    """Check that a file is as long as its own header says."""
    size = path.stat().st_size
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > size - 8:
                raise ValueError("its header is cut short")
            header = orjson.loads(file.read(length))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise StorageError(f"{path} is damaged: no safetensors file ({error})") from error
    if (expected := 8 + length + max(ends, default=0)) != size:
        raise StorageError(f"{path} is damaged: it has {size} bytes, and its header says {expected}")


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("size"), int):
        return False
    return isinstance(entry.get("sha256"), str) or isinstance(entry.get("archive"), str)


def commit_folder(temporary: Path, target: Path) -> None:
    """Sync a folder's files, then rename it to its final name, which must be free."""
    for path in temporary.rglob("*"):
        _sync(path)
    os.replace(temporary, target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
