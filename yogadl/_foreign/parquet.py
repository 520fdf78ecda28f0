"""Parquet files whose row groups are decoded whole: which of these there are, and where their columns lie."""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from yogadl._core.frozen import frozen
from yogadl._core.protocols import Int64s
from yogadl._core.spec import BYTES, DictNode, Leaf, Spec
from yogadl._foreign.fields import Missing, MissingArgument, check_fields
from yogadl._foreign.file_reader import Batch, FileReader, Format, LookAt, Places
from yogadl._format.files import ForeignFile
from yogadl._format.manifest import DecodedRows
from yogadl.errors import ConfigurationError

# The fields that are stored for each group, before those of the columns' bytes.
ROWS, BYTES_OF_ROWS, NUMBER, BACK, FOOTER = range(5)
_OWN: Final = ("rows", "bytes", "number", "back", "footer")
FIRST_COLUMN: Final = len(_OWN)


# The names that Hugging Face gives to the files of a split.
_SPLIT: Final = re.compile(r"([^/]+)-\d{5}-of-\d{5}\.parquet$")

# A folder that is named for the value of a column, as Hive has it.
_NAMED_FOLDER: Final = re.compile(r"/([^/=]+=[^/=]*)/[^/]*$")
_log = logging.getLogger("yogadl")


@frozen
class FileGroups:
    """The row groups of a file that have rows.

    Args:
        footer: Where the footer begins, which ends with the file.
        rows: The number of rows of each.
        sizes: The bytes of the columns' values, as the file has them before they are compressed.
        numbers: Their numbers in the file.
        starts: Where the bytes of each column begin: a row for each group.
        lengths: The bytes of each column; 0 of one that the file lacks.
    """

    footer: int
    rows: Int64s
    sizes: Int64s
    numbers: Int64s
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]


@frozen
class Parquet(Format):
    """Parquet files: a record is a group of rows, of which the columns are foreign values.

    Args:
        fields: The columns that are taken; those of the first file if None.
        missing: ``None``: nulls are refused; ``"empty"``: a null of bytes, str or a list is read as an empty
            one; or by the names of columns ``"empty"`` or the number in the place of nulls. A file may lack
            the columns that are named so.
        json: The names of columns that are json values.
        rows: The rows that are decoded; set by `of_files`.
        groups: The groups of each file, by its name; set by `of_files`.
    """

    fields: tuple[str, ...] | None = None
    missing: MissingArgument = None
    json: tuple[str, ...] = ()
    rows: DecodedRows | None = None
    groups: Mapping[str, FileGroups] = field(default_factory=dict)

    suffixes: ClassVar[tuple[str, ...]] = (".parquet", ".pq")

    def __post_init__(self) -> None:
        check_fields(self.fields)
        Missing(self.missing)

    def __repr__(self) -> str:  # of what decides the records besides the files
        return f"Parquet({self.fields!r}, {self.missing!r}, {self.json!r})"

    @property
    def spec(self) -> Spec:
        """The structure of a group."""
        assert self.rows is not None, "of_files comes first"
        return stored_spec(self.rows.spec)

    @property
    def decoded(self) -> DecodedRows | None:
        """The rows that are decoded from groups."""
        return self.rows

    def check_together(self, addresses: Sequence[str]) -> None:
        """Refuse files of several splits, as Hugging Face names them.

        Raises:
            ConfigurationError: if there are such.
        """
        named = next((match for address in addresses if (match := _NAMED_FOLDER.search(address))), None)
        if named is not None:
            _log.warning(
                "yogadl: the names of folders such as %s are no column of the records: only those of the "
                "files are", named[1],
            )  # fmt: skip
        found = (_SPLIT.search(address) for address in addresses)
        splits = sorted({match[1] for match in found if match is not None})
        if len(splits) > 1:
            raise ConfigurationError(
                f"these are the splits {', '.join(splits)} of one dataset: adopt each as a dataset of "
                f'its own, by a pattern such as "data/{splits[0]}-*.parquet", or give a list of patterns'
            )

    def of_files(self, files: Sequence[ForeignFile], each: LookAt) -> "Parquet":
        """Return the format with the groups of all files, whose footers are read.

        Raises:
            UnsupportedDataError: if a file is not of Parquet, or its columns differ from those of the first,
                or have nulls that nothing is said of.
            ConfigurationError: if no file has a field that is named.
        """
        from yogadl._foreign.parquet_columns import groups_of_files  # which needs pyarrow

        rows, groups = groups_of_files(self.fields, self.missing, self.json, files, each)
        named = {file.sha256: found for file, found in zip(files, groups, strict=True)}
        return replace(self, rows=rows, groups=named)

    def batches(self, reader: FileReader) -> Iterator[Batch]:
        """Yield the groups of a file."""
        found = self.groups[reader.file.sha256]
        count = len(found.rows)
        if not count:
            return
        at_first = np.zeros(count, np.int64)
        at_first[0] = reader.size_bytes - found.footer
        yield [
            found.rows,
            found.sizes,
            found.numbers,
            np.arange(count, dtype=np.int64),
            Places(np.full(count, found.footer), at_first),
            *(
                Places(starts, lengths)
                for starts, lengths in zip(found.starts.T, found.lengths.T, strict=True)
            ),
        ]


def stored_spec(rows: Spec) -> Spec:
    """Return the structure of groups of such rows."""
    number, column = Leaf("int64", ()), Leaf(BYTES)
    names = columns_of(rows)
    leaves = (number, number, number, number, column, *(column for _ in names))
    return Spec(DictNode((*_OWN, *(f"column {name}" for name in names)), leaves))


def fields_of_columns(rows: Spec) -> list[int]:
    """Return how many fields of a row each column has."""
    assert isinstance(rows.tree, DictNode)
    return [len(Spec(node).fields) for node in rows.tree.children]


def columns_of(rows: Spec) -> Sequence[str]:
    """Return the names of the columns that rows are made of."""
    assert isinstance(rows.tree, DictNode)
    return [str(key) for key in rows.tree.keys]
