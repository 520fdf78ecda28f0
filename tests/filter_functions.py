"""What workers of `filter` call and raise: a module that imports little, since each of them imports it."""


def is_small(record):
    return record["label"] < 3


class OwnError(Exception):
    def __init__(self, one, two):
        super().__init__(one)
        self.two = two


class PicklesNot(Exception):
    def __reduce__(self):
        raise TypeError("never")
