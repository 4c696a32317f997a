"""Robot files of others, as far as they are installed: a part of experiments/benchmarks/robot_files.py."""

from __future__ import annotations

from pathlib import Path

import pytest

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[2] / "experiments" / "benchmarks"))
    import robot_files

# Some of each package, on either base in turn; the solvers of one URDF and one MJCF of each, which take seconds.
FILES = {
    path.relative_to(path.parents[1]).as_posix(): (path, ("fixed", "floating")[k % 2], k % 9 == 0)
    for package, suffix in (robot_files.URDF | robot_files.MJCF).items()
    for k, path in enumerate(sorted(robot_files.files(package, suffix)[::5][:10], key=lambda path: path.stat().st_size))
}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", FILES)
def test_files_of_others_are_loaded_and_move_alike(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its log into the working folder
    row = robot_files.compared(*FILES[name])
    assert row["ours"] or not row["peer"], row["said"]
    if row["peer"]:
        assert max(row[x] for x in robot_files.ERRORS) <= robot_files.TOLERANCE
        assert row.get("rnea, mimic", 0.0) <= robot_files.TOLERANCE
        assert not FILES[name][2] or {"inverse", "forward", "hybrid"} <= row.keys()
        assert robot_files.worst([row], robot_files.SOLVED) <= robot_files.TOLERANCE
