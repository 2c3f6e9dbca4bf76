"""The numeric contract refuses what it must."""

from __future__ import annotations

import numpy as np
import pytest

from tests.contract import assert_contract, errors

REFERENCE = np.array([1.0, -2.0, 0.5, 4.0])


def test_the_bound_is_twice_the_unfused_error_and_one_rounding():
    unfused = REFERENCE + np.array([0, 1e-3, 0, 0])
    limit = 2e-3 + 4.0 * 2.0**-24
    # All of the allowed maximum in one place is also the whole allowed mean but for the rounding's share.
    assert_contract(REFERENCE + np.array([0, 2e-3, 0, 0]), unfused, REFERENCE, "f32")
    with pytest.raises(AssertionError, match=r"max error 0\.00201 is over 0\.002 = 2 x 0\.001 \(unfused f32\)"):
        assert_contract(REFERENCE + np.array([0, limit + 1e-5, 0, 0]), unfused, REFERENCE, "f32")


def test_the_mean_is_bound_too():
    unfused = REFERENCE + np.array([0, 1e-3, 0, 0])
    with pytest.raises(AssertionError, match=r"mean error 0\.001 is over"):
        assert_contract(REFERENCE + 1e-3, unfused, REFERENCE, "f32")


def test_one_rounding_is_allowed_where_the_unfused_result_is_exact():
    assert_contract(REFERENCE.astype(np.float16) * (1 + 2.0**-11), REFERENCE, REFERENCE, "f16")
    with pytest.raises(AssertionError, match="max error"):
        assert_contract(REFERENCE * (1 + 2.0**-9), REFERENCE, REFERENCE, "f16")


@pytest.mark.parametrize(("value", "name"), [(np.nan, "NaN"), (np.inf, "inf"), (-np.inf, "-inf")])
def test_special_values_must_be_where_the_unfused_result_has_them(value: float, name: str):
    special = REFERENCE.copy()
    special[2] = value
    assert_contract(special, special, special, "f32")
    ordinary = REFERENCE
    for got, unfused, reference in ((special, ordinary, ordinary), (special, ordinary, special), (ordinary, special, special)):
        with pytest.raises(AssertionError, match=rf"1 of 4 elements differ in being {name}; the first is \(2,\)"):
            assert_contract(got, unfused, reference, "f32")


def test_what_only_the_unfused_type_cannot_hold_may_be_finite():
    overflown = REFERENCE.copy()
    overflown[2] = np.nan
    assert_contract(REFERENCE, overflown, REFERENCE, "f32")
    wrong = REFERENCE.copy()
    wrong[2] += 1e-3
    with pytest.raises(AssertionError, match="max error"):
        assert_contract(wrong, overflown, REFERENCE, "f32")


def test_shapes_must_agree():
    with pytest.raises(AssertionError, match="shapes differ"):
        assert_contract(REFERENCE[:2], REFERENCE, REFERENCE, "f32")


def test_errors_leave_out_what_is_not_finite():
    assert errors([1.0, np.inf, 3.0], [1.5, np.inf, 3.0]).max == 0.5
    assert errors([1.0, np.inf, 3.0], [1.5, np.inf, 3.0]).mean == 0.25
