"""Names that look like markup of the terminal's library are printed as they are, by every command."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import run
from rich.progress import TextColumn

from sysdyn.app.terminal import new_table, output
from sysdyn.online.progress import Bar

NAMES = ["[/]", "[red]x", "[/bold]", "a[link=b]c", "[0]", ":smile:", r"\[x]", "[@click=y]z", "[not a tag"]
INERTIAL = '<inertial><mass value="1"/><inertia ixx="1" ixy="0" ixz="0" iyy="1" iyz="0" izz="1"/></inertial>'


def robot(folder: Path) -> Path:
    """A chain with a link, a joint, a frame and a sensor of each name."""
    path, parts = folder / "robot.urdf", ['<link name="base"/>']
    for parent, name in zip(["base", *NAMES], NAMES, strict=False):
        parts.append(
            f'<link name="{name}">{INERTIAL}</link><joint name="{name}" type="continuous"><parent link="{parent}"/>'
            f'<child link="{name}"/><axis xyz="0 0 1"/></joint><link name="{name}.f"/>'
            f'<joint name="{name}.j" type="fixed"><parent link="{name}"/><child link="{name}.f"/></joint>'
            f'<sensor name="{name}.s" type="imu"><parent link="{name}"/></sensor>'
        )
    path.write_text(f'<robot name="{"".join(NAMES)}">{"".join(parts)}</robot>', encoding="utf-8")
    return path


def said(*arguments: object, code: int = 0) -> str:
    return run(*arguments, code=code).output.replace("\\\\", "\\")  # which names in quotes have twice


@pytest.mark.slow
def test_names_are_printed_as_they_are(tmp_path):
    path = robot(tmp_path)
    info = said("info", path)
    assert all(x in info for name in NAMES for x in (name, f"{name}.f", f"{name}.s"))
    for command in (("solve", path, "--random", "1"), ("diagnose", path), ("flops", path, "--ordering", "aba")):
        assert "".join(NAMES) in said(*command).replace("\n", "")
    assert all(name in said("solve", path, "--random", "1") for name in NAMES)
    title, file = "".join(NAMES), "".join(NAMES).replace("/", "")
    task = tmp_path / "task.toml"
    task.write_text(
        f"title = '{title} title'\nrobot = 'robot.urdf'\nproblem = 'forward'\n[[measurement]]\n"
        f"type = 'JointAcceleration'\nnoise = 0.1\nname = '{title} sensor'\n", encoding="utf-8",
    )  # fmt: skip
    solved = said("solve", task, "--random", "1", "--out", tmp_path / f"{file}.csv")
    assert f"{title} title" in solved and f"{title} sensor" in solved and f"{file}.csv" in solved
    assert file in said("info", tmp_path / f"{file}.urdf", code=2)


def test_tables_and_bars_have_no_markup_of_their_own(capsys):
    table = new_table(*NAMES)
    table.add_row(*NAMES)
    console = output()
    console.width = 400
    console.print(table)
    printed = capsys.readouterr().out
    assert all(printed.count(name) == 2 for name in NAMES)
    assert not any(x.markup for x in Bar("").renderer.columns if isinstance(x, TextColumn))
