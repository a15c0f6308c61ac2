"""The run's folder: whole files or none, blobs that are what their name says, versions that exist
only with a manifest."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from envs.types import Rubric, StorageError, rubric_hash
from tests.builders import stored_blob
from training.ledger.checkpoint_files import MANIFEST
from training.ledger.store import RunStore, atomic_write_bytes, read_json, write_json, write_json_once


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "run")


def test_a_blob_is_stored_once_and_checked_when_read(store):
    sha256 = store.put_blob(b"jpeg")
    assert store.put_blob(b"jpeg") == sha256
    assert store.blob(sha256) == b"jpeg"
    stored_blob(store, sha256).write_bytes(b"jp")
    with pytest.raises(StorageError, match="does not hold"):
        store.blob(sha256)
    with pytest.raises(StorageError, match="missing"):
        store.blob("0" * 64)


def test_a_blob_that_was_cut_off_is_mended_when_its_bytes_come_again(store):
    sha256 = store.put_blob(b"jpeg")
    for damaged in (b"", b"jp"):
        stored_blob(store, sha256).write_bytes(damaged)
        assert store.put_blob(b"jpeg") == sha256 and store.blob(sha256) == b"jpeg"


def test_of_many_writers_of_a_document_one_wins(store, monkeypatch):
    path = store.root / "group.json"
    start = threading.Barrier(8)

    def write(number: int) -> bool:
        start.wait()
        return write_json_once(path, {"by": number})

    with ThreadPoolExecutor(8) as threads:
        won = list(threads.map(write, range(8)))
    assert won.count(True) == 1 and read_json(path) == {"by": won.index(True)}
    assert not write_json_once(path, {"by": 9}) and [each.name for each in store.root.iterdir()] == ["group.json"]

    def sent_twice(source: Path, target: Path) -> None:
        link(source, target)
        raise FileExistsError

    link = os.link
    monkeypatch.setattr(os, "link", sent_twice)
    assert write_json_once(store.root / "other.json", {}), "a network file system repeated the call that had succeeded"

    def refused(source: Path, target: Path) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "link", refused)
    with pytest.raises(StorageError, match="file system without hard links"):
        write_json_once(store.root / "third.json", {})
    assert sorted(each.name for each in store.root.iterdir()) == ["group.json", "other.json"]


PICTURES = {"jpg": b"\xff\xd8\xff\xe0JFIF", "png": b"\x89PNG\r\n\x1a\n", "webp": b"RIFF\x00\x00\x00\x00WEBPVP8 "}


@pytest.mark.parametrize(
    ("kind", "data"),
    [*PICTURES.items(), ("json", b'{"a": 1}'), ("json", b"[]"), ("bin", b"RIFF\x00\x00\x00\x00WAVE"), ("bin", b"")],
)
def test_a_blob_ends_in_what_it_is(store, kind, data):
    sha256 = store.put_blob(data)
    (path,) = (store.root / "blobs" / sha256[:2] / sha256[2:4]).iterdir()
    assert path.name == f"{sha256}.{kind}" and stored_blob(store, sha256) == path
    assert store.blob(sha256) == data


def test_a_rubric_is_kept_once_under_its_hash(store):
    fact = {"id": "over", "type": "page_fact", "name": "done", "value": True}
    rubric = Rubric.model_validate({"fact_groups": [{"name": "page", "facts": [fact]}]})
    digest = rubric_hash(rubric)
    with pytest.raises(StorageError, match=f"{digest}.json does not exist"):
        store.rubric(digest)
    store.put_rubric(rubric)
    written = store.rubric_path(digest).stat().st_mtime_ns
    store.put_rubric(rubric)
    assert store.rubric(digest) == rubric and store.rubric_path(digest).stat().st_mtime_ns == written
    store.rubric_path(digest).rename(store.rubric_path("0" * 64))
    with pytest.raises(StorageError, match="not the one that its name says"):
        store.rubric("0" * 64)
    store.rubric_path(digest).write_text('{"fact_groups": []}')
    with pytest.raises(StorageError, match=r"is no rubric: .*put back a copy"):
        store.rubric(digest)


def test_torn_and_missing_documents_are_named(store):
    path = store.root / "x.json"
    with pytest.raises(StorageError, match="does not exist"):
        read_json(path)
    path.parent.mkdir(parents=True)
    path.write_text('{"a": ')
    with pytest.raises(StorageError, match="not valid JSON"):
        read_json(path)
    write_json(path, {"a": 1})
    assert read_json(path) == {"a": 1}


def test_a_policy_exists_with_its_manifest_only(store, tmp_path):
    source = tmp_path / "checkpoint"
    with pytest.raises(StorageError, match=r"no Hugging Face checkpoint"):
        store.publish_policy(0, source, {})
    source.mkdir()
    (source / "config.json").write_text("{}")
    store.policy_path(3).mkdir(parents=True)  # half copied
    assert store.latest_policy() is None
    store.publish_policy(0, source, {"parent": None})
    store.publish_policy(0, source, {"parent": "another"})
    assert store.versions() == [0]
    assert store.manifest(0)["parent"] is None
    assert list(store.manifest(0)["files"]) == ["config.json"]
    (store.policy_path(0) / MANIFEST).unlink()
    assert store.versions() == []


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(4))
def test_a_writer_killed_at_any_moment_leaves_the_old_or_the_new(tmp_path, seed):
    """A process rewrites one file with whole values until it is killed; what is left is one of
    them."""
    path = tmp_path / "value.json"
    code = (
        "import sys, itertools; from pathlib import Path; from training.ledger.store import write_json\n"
        "for n in itertools.count(): write_json(Path(sys.argv[1]), {'n': n, 'pad': [n] * 20000})"
    )
    writer = subprocess.Popen([sys.executable, "-c", code, str(path)])
    try:
        deadline = 30.0
        while not path.exists() and deadline > 0:
            try:
                writer.wait(0.01)
            except subprocess.TimeoutExpired:
                deadline -= 0.01
        try:
            writer.wait(0.05 + 0.037 * seed)
        except subprocess.TimeoutExpired:
            os.kill(writer.pid, signal.SIGKILL)
    finally:
        writer.kill()
        writer.wait()
    value = read_json(path)
    assert value["pad"] == [value["n"]] * 20000


def test_atomic_write_leaves_no_temporary_file(tmp_path):
    atomic_write_bytes(tmp_path / "a" / "b", b"x")
    assert [entry.name for entry in (tmp_path / "a").iterdir()] == ["b"]
