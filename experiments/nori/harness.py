"""Run experiments: scripts that compute CSV files, plot them, and report findings.

An experiment is a file of the folder `experiments` with

    TITLE                     its subject, one line
    CLAIM                     the statement of the paper, with its equation, property or figure
    compute(folder, quick)    writes <name>….csv with `write_csv`; quick: a reduced version that takes seconds. An
                              optional argument `bodies` sets the chain lengths (None: default)
    plot(folder)              writes <name>….png from the CSV files
    findings(folder)          returns the findings, compared with the claim, from the CSV files

and ends with `if __name__ == "__main__": main(__file__)`, so that it also runs as a script.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import inspect
import io
import os
import platform
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

from nori.curves import LEFT_OUT
from sysdyn.errors import VERSION, FileError, InvalidInput, UnknownName
from sysdyn.files.atomic import write_file
from sysdyn.sparse import umfpack

# Folder of the experiments, in the repository ROOT.
FOLDER = Path(__file__).resolve().parents[1]
ROOT = FOLDER.parent
RESULTS = FOLDER / "results"
# In a source archive, this file contains the commit.
COMMIT = "COMMIT"
PAGE = "findings.md"
# The problem of Figure 2 is defined for chains of at least this length.
SHORTEST = 4


def about(root: Path = ROOT) -> dict[str, str]:
    """Provenance of a result: commit of the sources in `root`, processor, package versions.

    Changed files in experiments/results do not mark the commit as dirty.
    """

    def git(*arguments: str) -> str:
        run = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
        return run.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)experiments/results")
    commit = f"{git('describe', '--always')}{'-dirty' if changed else ''}" or "no commit"
    if (root / COMMIT).is_file():
        commit = (root / COMMIT).read_text().strip()
    cpu, info = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    if info.exists():
        pairs = [line.split(":", 1) for line in info.read_text().splitlines() if ":" in line]
        said = {key.strip(): value.strip() for key, value in reversed(pairs)}  # of the first processor
        which = [f"{key.split()[-1]} {said[key]}" for key in ("cpu family", "model") if key in said]
        cpu = said.get("model name", cpu) + (f" ({', '.join(which)})" if which else "")
    return {
        "sysdyn": f"{VERSION} ({commit})",
        "python": platform.python_version(),
        **{name: _version(name) for name in ("numpy", "scipy", "llvmlite", "scikit-umfpack")},
        "cpu": f"{cpu}, {os.cpu_count()} cores",
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows with equal keys as CSV, after comment lines (#) with the provenance."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = io.StringIO(newline="")
    file.writelines(f"# {name}: {value}\n" for name, value in about().items())
    writer = csv.DictWriter(file, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_file(path, file.getvalue().encode())


def read_csv(path: Path) -> list[dict[str, object]]:
    """Read rows written by `write_csv`; numeric text becomes int or float. Raises FileError if the file is missing."""
    try:
        lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    except OSError as error:
        raise FileError(f"{path} cannot be read ({error.strerror}): compute it first") from error
    return [{name: _number(x) for name, x in row.items()} for row in csv.DictReader(lines)]


def _number(text: str) -> object:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


# ---- running them --------------------------------------------------------------------------------------------------


def names() -> list[str]:
    """Names of the experiments."""
    return sorted(path.stem for path in FOLDER.glob("*.py"))


def reproduce(
    wanted: Iterable[str],
    folder: Path,
    quick: bool = False,
    say: Callable[[str], None] = lambda line: None,
    bodies: Collection[int] = (),
) -> Path:
    """Run the experiments `wanted` (none or "all": all) and write their findings to the page. Returns its path.

    Sections of other experiments are kept. say: receives progress lines. bodies: chain lengths, overriding the default.
    Raises UnknownName, InvalidInput, FileError.
    """
    known, wanted = names(), list(wanted)
    for name in wanted:
        if name not in known and name != "all":
            raise UnknownName("experiment", name, ("all", *known))
    chosen = known if not wanted or "all" in wanted else wanted
    modules = {name: load_experiment(FOLDER / f"{name}.py") for name in (known if bodies else chosen)}
    sizes = [name for name, module in modules.items() if "bodies" in inspect.signature(module.compute).parameters]
    if bodies and (others := [name for name in chosen if name not in sizes]):
        raise InvalidInput(f"{', '.join(others)}: sizes can be chosen of {', '.join(sizes)} alone")
    if bodies and min(bodies) < SHORTEST:
        raise InvalidInput(f"a chain of {min(bodies)} bodies is too short: sizes are {SHORTEST} and more")
    if not umfpack.available() and any(hasattr(modules[name], "umfpack") for name in chosen):  # those that import it
        say(f"{LEFT_OUT} README.md says how to install it.")
    page = folder / PAGE
    sections = _sections(page)
    for name in chosen:
        module = modules[name]
        began = time.perf_counter()
        say(f"{name}: {module.TITLE}")
        module.compute(folder, quick, **({"bodies": sorted(set(bodies))} if bodies else {}))
        module.plot(folder)
        say(f"  {time.perf_counter() - began:.1f} s")
        facts = "; ".join(f"{name} {value}" for name, value in about().items())
        size = "Reduced sizes (quick). " if quick else ""
        size += f"Sizes {', '.join(map(str, sorted(set(bodies))))}. " if bodies else ""
        sections[name] = f"{_section(name, module, folder)}\n{size}{facts}.\n"
    text = "# What was found\n\n" + "\n".join(sections[name] for name in known if name in sections)
    return write_file(page, text.encode())


def _sections(page: Path) -> dict[str, str]:
    """{experiment: section} of an existing page; empty if there is none."""
    parts = page.read_text().split("\n## ")[1:] if page.is_file() else []
    return {part.split(":", 1)[0]: f"## {part.rstrip()}\n" for part in parts}


def main(file: str) -> None:
    """Command line of one experiment: parse options, run, print findings."""
    module = load_experiment(Path(file))
    parser = argparse.ArgumentParser(description=module.TITLE)
    parser.add_argument("--quick", action="store_true", help="reduced sizes")
    parser.add_argument("--plot-only", action="store_true", help="draw and report the stored files")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the files")
    options = parser.parse_args()
    if not options.plot_only:
        module.compute(options.out, options.quick)
    module.plot(options.out)
    print(_section(Path(file).stem, module, options.out))


def _section(name: str, module: ModuleType, folder: Path) -> str:
    """Markdown section with the claim and the findings."""
    return f"## {name}: {module.TITLE}\n\nThe paper: {module.CLAIM}\n\nFound: {module.findings(folder)}\n"


def load_experiment(path: Path) -> ModuleType:
    """Import a script as a module. Raises FileError if the file is not a Python script."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise FileError(f"{path} is not a Python script")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
