"""A project whose version is worked out, and what asks for that."""

# A project of three modules, in which everything that may have a part in a version has one.
DATA = '''\
"""Build the flowers."""

import functools
import logging
from pathlib import Path

import numpy as np

import settings
from work import Augment, Color, decode, load, repeat as again

log = logging.getLogger(__name__)
SCALE = 2
UNUSED = 1
NAMES = {"rose", "lily", "iris"}
FIELDS = {"x": 1, "y": 2}
MEANS = np.array([0.5, 0.25])
FOLDER = Path("raw") / "flowers"
HERE = Path(__file__).parent
AUGMENT = Augment(3, note="none")
HALVE = functools.partial(decode, shift=1)
ADD, TAKE = (lambda v: v + 1), (lambda v: v - 1)


def counter(step):
    def count(v):
        return v * step

    return count


COUNT = counter(5)


def unused(v):
    return v + UNUSED


def build(n=3, scale=SCALE, *, color=Color.RED, **options):
    """Return the records."""
    import json

    from work import late

    log.info("building in %s", HERE.name)
    load_all = [load(i) for i in range(n)]  # as they come
    values = np.array(load_all) * scale + late(1)
    shown = json.dumps(sorted(NAMES))

    def inner(v: float) -> float:
        unused = v
        return unused * settings.SIZE + settings.config.depth

    total: float = inner(1) + ADD(1) + COUNT(2) + HALVE(4) + again(2) + AUGMENT.apply(1) + color.value
    if len(shown) > 10_000:
        raise ValueError("too long: " + str(FOLDER))
    return {name: values + total + MEANS[0] * k for name, k in FIELDS.items()}
'''
WORK = '''\
import enum
from dataclasses import dataclass, field

DEPTH = 4


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Base:
    bias = 7

    def shift(self, v):
        return v + self.bias


@dataclass
class Augment(Base):
    amount: int
    note: str = ""
    seen: list = field(default_factory=list)

    def apply(self, v):
        """Apply it."""
        return self.shift(v) * self.amount


def decode(v, shift=0):
    return helper(v) >> shift


def helper(v):
    return v * 2


def load(i, depth=DEPTH):
    return decode(i) * depth if i < 10 else load(i - 10)


def repeat(n):
    return n if n < 1 else twice(n - 1)


def twice(n):
    return 2 * repeat(n)


def late(v):
    return v


def nobody_calls(v):
    return v
'''
SETTINGS = """\
from types import SimpleNamespace

SIZE = 32
RATE = 0.1
config = SimpleNamespace(depth=3, rate=0.1)
"""
PROJECT = {"data": DATA, "work": WORK, "settings": SETTINGS}


def auto(storage, function, *args, **kwargs):
    """Build, and return the versions that there are now."""
    storage.cacheable("d", "auto")(function)(*args, **kwargs)
    return storage.versions("d")


def grown(storage, functions, *args):
    """Build with one after the other, and return how many versions there are after each."""
    return [len(auto(storage, function, *args)) for function in functions]


def squares(n, start=0, *rest, scale=1, **options):
    return [{"n": i * scale} for i in range(start, start + n)]
