"""The check of arrays that callers hand in."""

from __future__ import annotations

import numpy as np
import pytest

from sysdyn.errors import InvalidInput, ModelError
from sysdyn.program.arrays import finite_array

ACCEPTED = {
    "exact": ([1, 2, 3], (3,), (3,)),
    "a number": (2.5, (), ()),
    "long integers": ([10**30, 1], (2,), (2,)),
    "free length": (np.ones((6, 2)), (6, None), (6, 2)),
    "empty": ([], (0, 6, 6), (0, 6, 6)),
    "one state": (np.ones(3), (..., 3), (3,)),
    "batch": (np.ones((5, 4, 3)), (..., 3), (5, 4, 3)),
    "flat batch": (np.ones((5, 6)), (..., 2, 3), (5, 2, 3)),
}
REJECTED = {
    "shape": (np.ones(2), (3,), r"A has shape \(2,\), but \(3,\) is needed"),
    "free length": (np.ones((6, 0)), (6, None), r"\(6, n\) is needed"),
    "batch": (np.ones((5, 4)), (..., 3), r"\(…, 3\) is needed"),
    "nan": ([[1.0, np.nan]], (..., 2), "A is nan at state 0, entry 1"),
    "inf": ([1.0, np.inf], (2,), "A is inf at entry 1"),
    "text": (["1"], (1,), "A has type <U1"),
    "booleans": ([True, 2.0], (2,), "A has type bool"),
    "dates": (np.zeros(2, dtype="M8[s]"), (2,), "A has type datetime64"),
    "none": (None, (2,), "A is None"),
    "ragged": ([[1.0], [1.0, 2.0]], (2,), "A is not a regular array"),
    "masked": (np.ma.masked_invalid([1.0, np.nan]), (2,), "A has masked entries"),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_arrays_of_the_shape_are_accepted(name):
    x, shape, expected = ACCEPTED[name]
    A = finite_array("A", x, shape)
    assert A.dtype == np.float64 and A.shape == expected


@pytest.mark.parametrize("name", REJECTED)
@pytest.mark.parametrize("error", [InvalidInput, ModelError])
def test_errors_name_what_is_wrong(name, error):
    x, shape, message = REJECTED[name]
    with pytest.raises(error, match=message):
        finite_array("A", x, shape, error)


def test_limits_may_be_infinite_but_not_nan():
    assert finite_array("upper", [np.inf, -np.inf], (2,), infinite=True).tolist() == [np.inf, -np.inf]
    with pytest.raises(InvalidInput, match="upper is nan at entry 1"):
        finite_array("upper", [np.inf, np.nan], (2,), infinite=True)
