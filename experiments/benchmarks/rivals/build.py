"""Compilers and headers of this machine, and shared libraries made from the sources beside this file."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pinocchio as pin

# C++ sources are beside this file.
SOURCES = Path(__file__).resolve().parent
# Libraries are built into this folder.
BUILT = SOURCES.parents[2] / "build" / "peers"
# Pinocchio's variants of joints are longer than Boost's lists by default.
_BOOST = ("-DBOOST_MPL_LIMIT_LIST_SIZE=30", "-DBOOST_MPL_CFG_NO_PREPROCESSED_HEADERS",
          "-DBOOST_MPL_LIMIT_VECTOR_SIZE=30", "-DBOOST_FUSION_INVOKE_MAX_ARITY=12")  # fmt: skip


class CannotBuild(Exception):
    """A peer cannot be built here; the message says what is missing."""


def search_path() -> list[str]:
    return [p for p in sys.path if p]


def compilers() -> dict[str, str]:
    """{name with version: path} of clang++ and g++.

    Of clang++ the newest: one that does not know the processor makes slower code. Raises CannotBuild where there is
    neither.
    """
    named = ([f"clang++-{k}" for k in range(25, 13, -1)] + ["clang++"], ["g++"])
    paths = [next((path for name in names if (path := shutil.which(name))), None) for names in named]
    found = {f"{kind} {_version(path)}": path for kind, path in zip(("clang", "gcc"), paths, strict=True) if path}
    if not found:
        raise CannotBuild("neither clang++ nor g++ is installed")
    return found


def _version(compiler: str) -> str:
    run = subprocess.run([compiler, "-dumpversion"], capture_output=True, text=True, check=True)
    return run.stdout.split(".")[0].strip()


def pinocchio_flags() -> list[str]:
    """Where the headers of Pinocchio, Boost and Eigen are, and the macros that Pinocchio is built with."""
    wheel = Path(pin.__file__).resolve()
    prefix = next((p for p in wheel.parents if p.name == "cmeel.prefix"), None)
    if prefix is None or not (prefix / "include" / "pinocchio").is_dir():
        raise CannotBuild("the headers of Pinocchio are not beside its Python module")
    eigen = [
        p for p in (prefix / "include" / "eigen3", Path("/usr/include/eigen3")) if (p / "Eigen" / "Core").is_file()
    ]
    if not eigen:
        raise CannotBuild("the headers of Eigen are not installed (libeigen3-dev, or cmeel-eigen)")
    return [f"-I{prefix / 'include'}", f"-I{eigen[0]}", *_BOOST]


def shared_library(compiler: str, sources: list[Path], flags: list[str]) -> ctypes.CDLL:
    """The library made from `sources`, compiled once for their content, compiler and flags."""
    text = b"".join(p.read_bytes() for p in (*sources, *sorted(SOURCES.glob("*.hpp"))))
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
    key = hashlib.sha256(text + version + repr(flags).encode() + _processor()).hexdigest()[:16]
    target = BUILT / f"{sources[0].stem}-{key}.so"
    if not target.is_file():
        BUILT.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(f".{os.getpid()}")
        print(f"compiling {sources[0].name} with {Path(compiler).name} (once) …", flush=True)
        command = [compiler, *map(str, sources), "-shared", "-fPIC", "-o", str(part), *flags]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            raise CannotBuild(f"{Path(compiler).name} failed on {sources[0].name}: {run.stderr[:500]}")
        part.replace(target)
    return ctypes.CDLL(str(target))


def _processor() -> bytes:
    info = Path("/proc/cpuinfo")
    return b"" if not info.exists() else b"".join(x for x in info.read_bytes().splitlines() if x.startswith(b"flags"))


def plain_arrays(model: pin.Model) -> list:
    """The arguments of `make_model` (model.hpp) for a model of revolute, prismatic and free joints."""
    joints = list(model.joints)[1:]
    data = [joint.createData() for joint in joints]
    for joint, found in zip(joints, data, strict=True):
        joint.calc(found, np.zeros(joint.nq) if joint.nq == 1 else np.eye(7)[6])
    columns = np.array([np.reshape(found.S, (6, -1))[:, 0] for found in data])
    kind = np.where([joint.nv == 6 for joint in joints], 2, np.abs(columns[:, 3:]).max(axis=1) > 0)
    axis = np.where(kind[:, None] == 1, columns[:, 3:], columns[:, :3])
    placement = [[*p.rotation.reshape(9), *p.translation] for p in list(model.jointPlacements)[1:]]
    inertia = [
        [i.mass, *i.lever, *(i.inertia[r, c] for r, c in ((0, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 2)))]
        for i in list(model.inertias)[1:]
    ]
    integers = [np.array([p - 1 for p in list(model.parents)[1:]], dtype=np.int32), kind.astype(np.int32)]
    reals = [np.ascontiguousarray(x, dtype=float) for x in (axis, placement, inertia)]
    return [model.njoints - 1, *integers, *reals]


def pointers(arrays: list) -> list:
    """Arguments of a C function: integers as they are, arrays by an address that keeps them."""
    return [x.ctypes.data_as(ctypes.c_void_p) if isinstance(x, np.ndarray) else x for x in arrays]
