"""Files are written whole or stay as they were, whatever happens on the way."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from disk import FULL, no_room

from sysdyn.errors import FileError
from sysdyn.files.atomic import Replacement, write_file, write_folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_gets_its_content_and_the_permissions_of_any_other(tmp_path):
    (tmp_path / "other").write_bytes(b"")
    assert write_file(tmp_path / "x", b"old").read_bytes() == b"old"
    assert write_file(str(tmp_path / "x"), b"new") == tmp_path / "x" and (tmp_path / "x").read_bytes() == b"new"
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "other").stat().st_mode
    assert names(tmp_path) == ["other", "x"]


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path):
    write_file(tmp_path / "x", b"old")
    with no_room(), pytest.raises(FileError, match=f"x cannot be written: {FULL}"):
        write_file(tmp_path / "x", b"newer")
    assert names(tmp_path) == ["x"] and (tmp_path / "x").read_bytes() == b"old"


def test_a_file_that_cannot_be_put_into_its_place_leaves_the_old_one(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    write_file(tmp_path / "x", b"old")
    monkeypatch.setattr("os.replace", full)
    with pytest.raises(FileError, match="x cannot be written: No space left on device"):
        write_file(tmp_path / "x", b"new")
    assert names(tmp_path) == ["x"] and (tmp_path / "x").read_bytes() == b"old"


def test_places_that_cannot_be_written_are_named(tmp_path):
    with pytest.raises(FileError, match="x cannot be written: No such file"):
        write_file(tmp_path / "nowhere" / "x", b"")
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileError, match="folder cannot be written: Is a directory"):
        write_file(tmp_path / "folder", b"")
    assert names(tmp_path) == ["folder"]


def test_threads_that_write_one_file_leave_one_of_their_contents(tmp_path):
    payloads = [bytes([k]) * 200_000 for k in range(8)]

    def often(payload: bytes) -> None:
        for _ in range(10):
            write_file(tmp_path / "x", payload)

    threads = [threading.Thread(target=often, args=(payload,)) for payload in payloads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names(tmp_path) == ["x"] and (tmp_path / "x").read_bytes() in payloads


def test_a_dropped_replacement_leaves_nothing(tmp_path):
    write_file(tmp_path / "x", b"old")
    new = Replacement(tmp_path / "x")
    new.temporary.write_bytes(b"half of the n")
    new.drop()
    assert names(tmp_path) == ["x"] and (tmp_path / "x").read_bytes() == b"old"


def test_a_folder_is_new_or_gets_files_beside_its_own(tmp_path):
    folder = tmp_path / "f"
    write_folder(folder, {"a": b"1", "b": b"2"})
    (folder / "mine").write_bytes(b"3")
    write_folder(folder, {"b": b"4"})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"a": b"1", "b": b"4", "mine": b"3"}
    for place in (folder, tmp_path / "new"):
        with no_room(), pytest.raises(FileError, match=f"c cannot be written: {FULL}"):
            write_folder(place, {"b": b"5", "c": b"66666"})
        assert (place / "b").read_bytes() == b"5"
    assert names(folder) == ["a", "b", "mine"] and names(tmp_path / "new") == ["b"]
