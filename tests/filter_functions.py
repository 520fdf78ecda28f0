"""What workers of `filter` call and raise: a module that imports little, since each of them imports it."""


def is_small(record):
    return record["label"] < 3


def halves(record):
    return [{"id": record["id"], "half": record["id"] / 2 + n} for n in range(int(record["id"]) % 3)]


class OwnError(Exception):
    def __init__(self, one, two):
        super().__init__(one)
        self.two = two


class PicklesNot(Exception):
    def __reduce__(self):
        raise TypeError("never")
