"""The data sets, as `_data` makes them."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Set:
    """A data set: as the table calls it, as `_data` does, and its sizes."""

    name: str
    maker: str
    records: int
    batch: int


SETS: Final = (
    Set("{f32[16], i64} x 1 M", "vectors", 1_000_000, 256),
    Set("{u8[32,32,3], i64} x 100 k", "small_images", 100_000, 256),
    Set("{i32[2048]} x 50 k", "tokens", 50_000, 256),
    Set("{u8[224,224,3], i64} x 4 k", "large_images", 4_000, 64),
    Set("{bytes 40-160 KB, i64} x 10 k", "varying", 10_000, 256),
)
