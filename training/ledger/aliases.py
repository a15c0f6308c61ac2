"""Named aliases of a run's policy versions, such as ``best``.

Each is a small file of the run's folder with the version's number, so that a checkpoint can be
given as ``runs/x@best``. Retention removes no version that has an alias.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from envs.types import ConfigError, PolicyError, Record, StorageError, near
from training.ledger.checkpoint_files import REMOVED, check_not_removed
from training.ledger.disk import raise_disk_errors
from training.ledger.paths import policy_name
from training.ledger.store import RunStore, move_aside_advice, read_record, write_json

SEPARATOR = "@"
"""Character between a run's folder and the name of an alias."""


class Alias(Record):
    """A name of a policy version."""

    name: str
    version: int
    by: str
    """The person who set it, as ``user@host`` or as an approval names them."""
    at: str
    """Time in UTC, as ISO 8601."""
    before: int | None
    """Version that had the name until then."""


def set_alias(store: RunStore, name: str, version: int, by: str) -> Alias:
    """Give a name to a published version, in place of the one that had it.

    Raises:
        ConfigError: the run has no such version.
        StorageError: the version is damaged, or retention has removed its weights.
        DiskError: the alias cannot be written.
    """
    if not store.is_published(version):
        raise ConfigError(describe_missing_version(store, version))
    store.check_policy(version)
    path, earlier = store.alias_path(name), read_alias(store, name)
    before = earlier.version if earlier else None
    alias = Alias(name=name, version=version, by=by, at=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", before=before)
    write_json(path, alias, sealed=True)
    try:
        check_not_removed(store.policy_path(version))  # by retention, which had read the aliases before
    except StorageError:
        if earlier is None:
            path.unlink()
        else:
            write_json(path, earlier, sealed=True)
        raise
    return alias


def remove_alias(store: RunStore, name: str) -> Alias:
    """Take a name away and return what it was.

    Raises:
        ConfigError: the run has no such alias.
    """
    alias = read_alias(store, name)
    if alias is None:
        raise ConfigError(describe_missing_alias(store, name))
    with raise_disk_errors(store.alias_path(name)):
        store.alias_path(name).unlink()
    return alias


def read_alias(store: RunStore, name: str) -> Alias | None:
    """Return an alias; ``None`` if the run has none of this name.

    Raises:
        StorageError: its file is damaged.
    """
    path = store.alias_path(name)
    if not path.is_file():
        return None
    remedy = f"{move_aside_advice(path)}, and give the name again: python -m flows.promote {store.root} --alias {name}"
    return read_record(path, Alias, "alias", remedy)


def read_aliases(store: RunStore) -> dict[str, Alias]:
    """Return the aliases of a run by name. Raises as `read_alias`."""
    names = sorted(path.stem for path in store.aliases_path.glob("[!.]*.json"))
    return {name: alias for name in names if (alias := read_alias(store, name)) is not None}


def remove_unless_aliased(store: RunStore, version: int, mark: Callable[[], None]) -> bool:
    """Mark a version as removed, unless it has an alias.

    A name that is given at the same moment either keeps the version, or is refused.

    Args:
        mark: Writes the marker of a removal to the version's folder.

    Returns:
        False if the version has an alias; then it has no marker.
    """
    mark()
    if version not in {alias.version for alias in read_aliases(store).values()}:
        return True
    (store.policy_path(version) / REMOVED).unlink(missing_ok=True)
    return False


def split_alias(path: Path) -> tuple[RunStore, str] | None:
    """Return the run and the name of a path such as ``runs/x@best``; ``None`` for any other.

    A folder that exists under the whole name is a folder, and so is what names no run.
    """
    run, separator, name = path.name.rpartition(SEPARATOR)
    if not (separator and run and name) or path.exists():
        return None
    store = RunStore(path.with_name(run))
    return (store, name) if (store.root / "policies").is_dir() else None


def follow_alias(path: Path) -> Path:
    """Return the folder of the version that a path with an alias names; any other path as it is.

    An alias that does not exist stays as it is: `check_alias` refuses it.
    """
    named = split_alias(path)
    alias = read_alias(*named) if named else None
    return named[0].policy_path(alias.version) if named and alias else path


def check_alias(path: Path) -> None:
    """Raise ``PolicyError`` if a followed path still names an alias, or a version that is gone."""
    if named := split_alias(path):
        raise PolicyError(describe_missing_alias(*named))
    store = RunStore(path.parent.parent)
    number = path.name.removeprefix("v")
    if path.parent.name == "policies" and not path.exists() and number.isdecimal() and store.versions():
        raise PolicyError(describe_missing_version(store, int(number)))


def describe_missing_alias(store: RunStore, name: str) -> str:
    """Say that a run has no such alias, which it has, and how to give one."""
    known = list(read_aliases(store))
    has = f"it has: {', '.join(known)}" if known else "it has none yet"
    return (
        f"{store.root} has no alias {name!r}; {near(name, known)}{has}; "
        f"give one with: python -m flows.promote {store.root} --alias {name}"
    )


def describe_missing_version(store: RunStore, version: int) -> str:
    """Say that a run has no such version, the names that lead to it, and which it has."""
    names = [name for name, alias in read_aliases(store).items() if alias.version == version]
    whole = [number for number in store.versions() if not (store.policy_path(number) / REMOVED).exists()]
    named = f" (alias {', '.join(names)})" if names else ""
    return f"{store.root} has no version {version}{named}; it has: {', '.join(map(policy_name, whole[-8:]))}"
