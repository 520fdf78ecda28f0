"""A data set that lists the file of each record, as torchvision's ImageFolder does."""

from collections.abc import Iterable


class Listed:
    """Records `{"id": their number}` of files `<name>.png` in a folder; one of them may be bad."""

    def __init__(self, names: Iterable[object], folder: str = "", bad: int | None = None) -> None:
        self.samples = [(f"{folder}{name}.png", 0) for name in names]
        self.bad = bad

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> dict[str, int]:
        if number == self.bad:
            raise ValueError("the image is truncated")
        return {"id": number}
