"""The order of the square-root form."""

from __future__ import annotations

import sysdyn as sd
from sysdyn.equations.whitened import whitened_system
from sysdyn.offline.square_root import square_root
from sysdyn.offline.stages import Stages


def test_noisy_wrenches_are_eliminated_from_the_leaves():
    """Joint wrenches in terms of all external ones beyond them, first as for exact wrenches, fill the matrix."""
    model = sd.chain(12, seed=1)
    noisy = (sd.JointAcceleration, sd.JointTorque, sd.ExternalWrench)
    root = square_root(whitened_system(sd.Problem(model, [of("all", noise=0.1) for of in noisy])), Stages(None, None))
    residuals = root.information.residuals().values()
    assert root.assembly.graph.count(residuals).total < 100_000  # 127,537 with all joint wrenches first
