"""Gravity, inertias and armatures as inputs of a problem's programs, instead of constants of its model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields

import numpy as np

from sysdyn.errors import InvalidInput, UnknownName
from sysdyn.measurements.input_names import ARMATURE, GRAVITY, INERTIA, InputName, group_of
from sysdyn.model import Model
from sysdyn.model.inertia import PARAMETER_UNITS, PARAMETERS, with_parameters
from sysdyn.model.normal_form import inertial_parameters
from sysdyn.program.graph import Expr
from sysdyn.program.groups import Group
from sysdyn.program.reproducible import exp, matmul, norm

# Names of the parameters that can be inputs.
KINDS = (GRAVITY, str(InputName(INERTIA, "BODY")), str(InputName(ARMATURE, "JOINT")))


def parameter(model: Model, name: str) -> Group:
    """The parameter called "gravity" [m/s²], "inertia:BODY" (as of `inertial_parameters`) or "armature:JOINT" [kg m²].

    Raises UnknownName; InvalidInput if `name` is no text.
    """
    if not isinstance(name, str):
        raise InvalidInput(f"parameters are named, as in 'gravity' or 'inertia:{model.body_names[0]}'; got {name!r}")
    kind, owner = group_of(name)
    if name == GRAVITY:
        return Group(name, (3,), ("x", "y", "z"), ("m/s²",) * 3, model.gravity)
    if kind == INERTIA and owner:
        i = model.body_index(owner)
        declared = inertial_parameters(model)[10 * i : 10 * i + 10]
        return Group(name, (10,), PARAMETERS, PARAMETER_UNITS, declared)
    if kind == ARMATURE and owner:
        part = model.v_slice(model.joint_index(owner))
        names = model.dof_names[part]
        return Group(name, (len(names),), names, default=model.armature[part])
    raise UnknownName("parameter", name, KINDS)


class VariedModel(Model):
    """A model some of whose parameters are expressions; everything else is the model's.

    gravity (3,), a0 (6,), inertias (nb, 6, 6), armature (nv,): arrays of floats and expressions.
    """

    def __init__(self, model: Model, given: Mapping[str, np.ndarray]):
        inertias, armature = model.inertias.astype(object), model.armature.astype(object)
        for name, values in given.items():
            kind, owner = group_of(name)
            if kind == INERTIA:
                inertias[model.body_index(owner)] = with_parameters(values)
            elif kind == ARMATURE:
                armature[model.v_slice(model.joint_index(owner))] = values
        gravity = given[GRAVITY] if GRAVITY in given else model.gravity.astype(object)
        a0 = np.array([0.0, 0.0, 0.0, *(-g if isinstance(g, Expr) else 0.0 - g for g in gravity)], dtype=object)
        # not by Model's own constructor, which takes numbers only
        unchanged = {field.name: getattr(model, field.name) for field in fields(model)}
        self.__dict__.update({**unchanged, "gravity": gravity, "a0": a0, "inertias": inertias, "armature": armature})


def sampled(model: Model, name: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """Values (n, size) that are physically possible: the model's, changed at random.

    Gravity is rotated and scaled; an inertia is multiplied and a point mass added to it, an armature multiplied.
    """
    found = parameter(model, name).require_default()
    if name == GRAVITY:
        return norm(found) * rng.standard_normal((n, 3)) / np.sqrt(3.0)
    x = found * exp(math.log(10.0) * rng.uniform(-0.5, 0.5, n))[:, None]
    if group_of(name).role == ARMATURE:
        return x
    mass = found[0]
    radius = np.sqrt(max(found[[4, 6, 9]].max(), 0.0) / mass) if mass > 0.0 else 0.1
    m, c = mass * rng.uniform(0.0, 1.0, n)[:, None], radius * rng.standard_normal((n, 3))
    (cx, cy, cz), zero = c.T, np.zeros(n)
    cross = np.moveaxis(np.array([[zero, -cz, cy], [cz, zero, -cx], [-cy, cx, zero]]), -1, 0)
    I = m[..., None] * matmul(cross, cross.transpose(0, 2, 1))
    return x + np.hstack([m, m * c, I[:, [0, 0, 1, 0, 1, 2], [0, 1, 1, 2, 2, 2]]])
