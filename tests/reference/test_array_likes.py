"""Public functions of models take lists and tuples of numbers as they take arrays, and leave what they are given."""

from __future__ import annotations

import numpy as np
import pytest

import sysdyn as sd

MODEL = sd.random_tree(5, seed=3)
FRAME = MODEL.body_names[-1]
H = sd.crba(MODEL, MODEL.random_state(seed=1)[0])
TREE = sd.reference.expanded_parent(MODEL)
CALLS = {
    "rnea": lambda q, v, a, fx: sd.rnea(MODEL, q, v, a, fx),
    "aba": lambda q, v, a, fx: sd.aba(MODEL.replace(armature=np.ones(MODEL.nv)), q, v, a, fx),
    "crba": lambda q, v, a, fx: sd.crba(MODEL, q),
    "forward_dynamics_crba": lambda q, v, a, fx: sd.forward_dynamics_crba(
        MODEL.replace(armature=np.ones(MODEL.nv)), q, v, a, fx
    ),
    "rnea_derivatives": lambda q, v, a, fx: sd.rnea_derivatives(MODEL, q, v, a, fx).dtau_dq,
    "joint_torque_regressor": lambda q, v, a, fx: sd.joint_torque_regressor(MODEL, q, v, a),
    "frame_pose": lambda q, v, a, fx: sd.frame_pose(MODEL, q, FRAME),
    "frame_jacobian": lambda q, v, a, fx: sd.frame_jacobian(MODEL, q, FRAME, "world"),
    "integrate": lambda q, v, a, fx: MODEL.integrate(q, v, 0.1),
    "difference": lambda q, v, a, fx: MODEL.difference(q, MODEL.neutral().tolist()),
    "normalise": lambda q, v, a, fx: MODEL.normalise(q),
    "SKO": lambda q, v, a, fx: sd.reference.SKOModel.from_model(MODEL, q, v, fx).mass_matrix(),
    "mul_H": lambda q, v, a, fx: sd.reference.mul_H(H.tolist(), TREE, v),
    "ltdl": lambda q, v, a, fx: sd.ltdl((H + np.eye(len(H))).tolist(), TREE).solve(v),
}


@pytest.mark.parametrize("name", CALLS)
def test_lists_are_taken_as_arrays_are(name):
    q, v, a = MODEL.random_state(seed=1)
    fx = np.random.default_rng(0).standard_normal((MODEL.nb, 6))
    expected = CALLS[name](q.copy(), v.copy(), a.copy(), fx.copy())
    lists = q.tolist(), v.tolist(), a.tolist(), fx.tolist()
    found = CALLS[name](*lists)
    assert isinstance(found, np.ndarray)
    np.testing.assert_array_equal(found, expected)
    assert lists == (q.tolist(), v.tolist(), a.tolist(), fx.tolist())
