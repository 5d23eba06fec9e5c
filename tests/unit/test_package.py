"""The public names of the package."""

import pytest

import goalward as gw
from goalward.errors import GoalwardError, UserError, unknown_name


def test_every_public_name_can_be_imported():
    assert all(getattr(gw, name) is not None for name in gw.__all__)
    assert set(gw.__all__) == set(gw._HOMES)
    assert set(gw.__all__) <= set(dir(gw))


def test_public_names_are_what_they_say():
    assert gw.CPPO.name == "cppo"
    assert gw.UserError is UserError
    assert callable(gw.train)


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'tarin'"):
        _ = gw.tarin


def test_user_errors_and_failures_end_with_different_codes():
    assert issubclass(UserError, GoalwardError)
    assert (UserError.exit_code, GoalwardError.exit_code) == (2, 1)


def test_an_unknown_name_offers_the_nearest_or_else_all():
    assert str(unknown_name("task", "toy/room", ["toy/rooms", "b"])) == (
        "Unknown task 'toy/room'. Did you mean toy/rooms?"
    )
    assert str(unknown_name("task", "xyz", ["b", "a"])) == "Unknown task 'xyz'. Known: a, b."
    assert str(unknown_name("goal", "xyz", [])) == "Unknown goal 'xyz'. Known: none."
