"""Read the batches of a run, and put them onto the devices."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.experimental
import numpy as np

from yogadl._core.protocols import Column
from yogadl._core.spec import Spec
from yogadl._stream import Ahead, Batches, Cut, Finish, Flags, Pending, Point, Read, Rows, Run
from yogadl.adapters.jax._layout import GlobalField

Scope = Callable[[], contextlib.AbstractContextManager[None]]


def settings_of_this_thread() -> Scope:
    """Return a context that applies this thread's settings of JAX, which are per thread, in another one."""
    enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    is_x64, device = jax.config.jax_enable_x64, jax.config.jax_default_device

    @contextlib.contextmanager
    def scope() -> Iterator[None]:
        if jax.config.jax_enable_x64 == is_x64 and jax.config.jax_default_device == device:
            yield  # the usual case, without the cost of setting them
        else:
            with enable_x64(is_x64), jax.default_device(device):
                yield

    return scope


class ColumnBatches(Batches):
    """Items made of a batch's columns and of the flags that mark its padding."""

    def finish(self) -> Finish:
        return lambda columns, flags: (columns, flags)


@dataclass(frozen=True)
class OnOneDevice:
    """Batches on the default device."""

    batches: ColumnBatches
    spec: Spec  # with a last field that marks padding, if `batches` has one
    is_ahead: bool  # whether a thread reads ahead; the thread then also puts the batches onto the device
    scope: Scope

    @property
    def run(self) -> Run:
        """The run whose records are read."""
        return self.batches.run

    def reads(self, cut: Cut, start: Point, end: int | None) -> Iterator[Read]:
        """Yield the batches from `start` to the epoch `end`, read by read."""
        for count, items in self.batches.reads(cut, start, end):
            placed = (self._put(columns, flags) for columns, flags in items)
            yield count, iter(list(placed)) if self.is_ahead else placed

    def pending(self, cut: Cut, start: Point, end: int | None) -> Iterator[Pending]:
        """Yield the reads of these batches. Any thread may make a read, and then puts it onto the device."""
        for count, read in self.batches.pending(cut, start, end):
            yield count, partial(self._placed, read)

    def _placed(self, read: Callable[[], Iterator[tuple[Sequence[Column], Flags]]]) -> Iterator[Any]:
        return (self._put(columns, flags) for columns, flags in read())

    def _put(self, columns: Sequence[Column], flags: Flags) -> Any:  # a tree like the record's
        with self.scope():
            has_padding = self.batches.padding_field is not None
            placed = jax.device_put([*columns, flags] if has_padding else list(columns))
        return self.spec.assemble(placed)


class OnManyDevices:
    """Batches over many devices, made of the rows that devices of this process hold."""

    def __init__(
        self, batches: ColumnBatches, spec: Spec, fields: Sequence[GlobalField], scope: Scope
    ) -> None:
        has_padding = batches.padding_field is not None
        self.run = batches.run
        self._assemble = spec.assemble
        self._fields = fields
        self._padding = fields[-1] if has_padding else None
        self._scope = scope
        self._rows = np.unique([row for field in fields for row in field.rows])
        # Fields of which this process holds the same rows, mostly all fields, are read together.
        together: dict[tuple[int, ...], list[int]] = {}
        for number, field in enumerate(fields[:-1] if has_padding else fields):
            # With functions, all fields of all rows are read together: a record passes through them once.
            rows = tuple(self._rows.tolist()) if self.run.calls_functions else field.rows
            together.setdefault(rows, []).append(number)
        self._together = [(np.array(rows), numbers) for rows, numbers in together.items()]

    def reads(self, cut: Cut, start: Point, end: int | None) -> Iterator[Read]:
        """Yield the batches from `start` to the epoch `end`, one by one; the cut drops short batches."""
        for count, read in self.pending(cut, start, end):
            yield count, read()

    def pending(self, cut: Cut, start: Point, end: int | None) -> Iterator[Pending]:
        """Yield the reads of these batches, one read for each batch; any thread may make a read."""
        run = self.run
        for rows in run.chunks(cut, start, end):
            own = rows.indices.reshape(-1, cut.size)[:, self._rows].ravel()
            ahead = Ahead(run, Rows(own, rows.pieces if len(own) == len(rows) else (), rows.records))
            for number, first in enumerate(range(0, len(rows), cut.size)):
                ahead.of(number * len(self._rows), (number + 1) * len(self._rows))
                yield 1, partial(self._batches, rows[first : first + cut.size])

    def _batches(self, rows: Rows) -> Iterator[Any]:
        """Yield the one batch of these rows."""
        columns: list[Any] = [None] * len(self._fields)
        for chosen, numbers in self._together:
            for number, column in zip(numbers, self.run.read(rows.take(chosen), numbers), strict=True):
                if self.run.calls_functions:
                    column = column[np.searchsorted(chosen, self._fields[number].rows)]
                columns[number] = column
        if self._padding is not None:
            columns[-1] = rows.padding[np.array(self._padding.rows)]
        # A user's guard against accidental transfers must not stop this intended transfer.
        with self._scope(), jax.transfer_guard_host_to_device("allow"):
            placed = [field.put(column) for field, column in zip(self._fields, columns, strict=True)]
            return iter([self._assemble(placed)])
