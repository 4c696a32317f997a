"""Files are written whole or stay as they were, whatever happens on the way."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from disk import no_room

from sysdyn.errors import FileError
from sysdyn.files.atomic import AtomicFile, write_file, write_folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_file_gets_its_content_and_the_permissions_of_any_other(tmp_path):
    (tmp_path / "other").write_bytes(b"")
    assert write_file(tmp_path / "x", b"old").read_bytes() == b"old"
    assert write_file(str(tmp_path / "x"), b"new") == tmp_path / "x"
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "other").stat().st_mode
    assert contents(tmp_path) == {"other": b"", "x": b"new"}


def test_a_failure_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    """A full disk, and a file that cannot be moved into its place."""
    write_file(tmp_path / "x", b"old")
    with no_room(), pytest.raises(FileError, match="x cannot be written"):
        write_file(tmp_path / "x", b"newer")

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(FileError, match="x cannot be written: No space left on device"):
        write_file(tmp_path / "x", b"new")
    assert contents(tmp_path) == {"x": b"old"}


@pytest.mark.parametrize("place", ["nowhere/x", "folder", "file/x"])
def test_places_that_cannot_be_written_are_named(tmp_path, place):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileError, match=f"{place} cannot be written"):
        write_file(tmp_path / place, b"")
    assert contents(tmp_path) == {"file": b""}


def test_threads_that_write_one_file_leave_one_of_their_contents(tmp_path):
    payloads = [bytes([k]) * 200_000 for k in range(8)]

    def write_often(payload: bytes) -> None:
        for _ in range(10):
            write_file(tmp_path / "x", payload)

    threads = [threading.Thread(target=write_often, args=(payload,)) for payload in payloads]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [*contents(tmp_path)] == ["x"] and contents(tmp_path)["x"] in payloads


def test_an_aborted_file_leaves_nothing(tmp_path):
    write_file(tmp_path / "x", b"old")
    new = AtomicFile(tmp_path / "x")
    new.temporary.write_bytes(b"half of the n")
    new.abort()
    assert contents(tmp_path) == {"x": b"old"}


def test_a_folder_may_have_other_files(tmp_path):
    folder = tmp_path / "f"
    write_folder(folder, {"a": b"1", "b": b"2"})
    (folder / "mine").write_bytes(b"3")
    write_folder(folder, {"b": b"4"})
    assert contents(folder) == {"a": b"1", "b": b"4", "mine": b"3"}
    with no_room(), pytest.raises(FileError, match="c cannot be written"):
        write_folder(folder, {"b": b"5", "c": b"66666"})
    assert contents(folder) == {"a": b"1", "b": b"5", "mine": b"3"}
