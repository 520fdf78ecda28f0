"""A frozen class is what `dataclass(frozen=True)` makes, at less cost."""

import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace

import pytest
from inside import frozen


def made_by(decorator):
    class Value:
        first: int
        second: str = "x"
        third: list = field(default_factory=list)
        hidden: int = field(default=0, repr=False, compare=False)

        def __post_init__(self):
            if self.first < 0:
                raise ValueError(self.first)

    Value.__qualname__ = "Value"
    return decorator(Value)


Value, Expected = made_by(frozen), made_by(dataclass(frozen=True))


@pytest.mark.parametrize("given", [{}, {"second": "y"}, {"third": [1], "hidden": 3}])
def test_it_has_the_values_the_text_and_the_fields_of_a_dataclass(given):
    ours, theirs = Value(1, **given), Expected(1, **given)
    assert vars(ours) == vars(theirs)
    assert repr(ours) == repr(theirs)
    assert [one.name for one in fields(ours)] == [one.name for one in fields(theirs)]
    assert vars(pickle.loads(pickle.dumps(ours))) == vars(theirs)


def test_instances_are_equal_if_their_compared_fields_are():
    assert Value(1, third=[2]) == Value(1, third=[2], hidden=9)
    assert Value(1) != Value(2)
    assert Value(1) != Expected(1)
    assert hash(Value(1, third=())) == hash(Value(1, third=(), hidden=9))


def test_each_instance_has_a_default_of_its_own():
    assert Value(1).third is not Value(1).third


def test_it_can_be_neither_changed_nor_made_wrong():
    value = Value(1)
    with pytest.raises(FrozenInstanceError, match="first"):
        value.first = 2
    with pytest.raises(FrozenInstanceError, match="second"):
        del value.second
    with pytest.raises(ValueError, match="-1"):
        replace(value, first=-1)
    assert replace(value, second="z").second == "z"
