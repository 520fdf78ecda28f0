"""Save the state of a pipeline's iterator, so that a killed build continues from there."""

import threading
import time
from typing import Any, Final, NamedTuple

import tensorflow as tf

# Noting a state takes about 2 ms. The next state is noted after this many times as long. Records that were
# read after the last state are read again after a kill.
_SPARED: Final = 50
# The limits of one state, and of all states held: with data that tf.data has read ahead, a state can have
# tens of megabytes.
_MOST_BYTES: Final = 48 * 2**20
_HELD_BYTES: Final = 96 * 2**20
_HEADER_BYTES: Final = 8 + 32


class IteratorState(NamedTuple):
    """The state of an iterator as tf.data writes it, and the number of the record that is next."""

    record: int
    content: bytes


class IteratorStates:
    """Note the state of an iterator from time to time, and find the state nearest to a record. Thread-safe.

    A part of the cache is sealed while the next one is being read, so all states since the last saved state
    are held; if they are too large, every other one.

    Args:
        graph_sha256: The hash of the pipeline's graph; states of other pipelines are ignored. ``None``: note
            nothing.
    """

    def __init__(self, graph_sha256: str | None) -> None:
        self._graph = bytes.fromhex(graph_sha256 or "")
        self._is_able = graph_sha256 is not None
        self._lock = threading.Lock()
        self._own: list[IteratorState] = []
        self._given: list[IteratorState] = []
        self._cost_s = 0.0
        self._noted_s = -float("inf")

    def note(self, iterator: Any, record: int) -> None:  # an iterator of TensorFlow
        """Note an iterator's state, unless one was noted shortly before or tf.data can't write it."""
        started_s = time.monotonic()
        if not self._is_able or started_s - self._noted_s < _SPARED * self._cost_s:
            return
        content = _written(iterator)
        if content is None or len(content) > _MOST_BYTES:
            self._is_able = False
            return
        self._noted_s = time.monotonic()
        self._cost_s = self._noted_s - started_s
        with self._lock:
            self._own.append(IteratorState(record, content))
            while sum(len(state.content) for state in self._own) > _HELD_BYTES:
                del self._own[-2::-2]

    def save(self, record: int) -> bytes | None:
        """Return the last state noted before this record, for `load`; forget the earlier states."""
        with self._lock:
            found = _nearest(self._own, record)
            if found is None:
                return None
            self._own = [state for state in self._own if state.record >= found.record]
        return found.record.to_bytes(8, "little") + self._graph + found.content

    def load(self, saved: bytes) -> None:
        """Accept a state that an earlier process saved; the last two such states are kept."""
        record, graph = int.from_bytes(saved[:8], "little"), saved[8:_HEADER_BYTES]
        if self._is_able and graph == self._graph:
            self._given = [*self._given[-1:], IteratorState(record, saved[_HEADER_BYTES:])]

    def nearest(self, record: int) -> IteratorState | None:
        """Return the loaded state from which the fewest records are read up to this record."""
        return _nearest(self._given, record)

    def drop(self, state: IteratorState) -> None:
        """Forget a loaded state that can't be restored."""
        self._given = [given for given in self._given if given is not state]


def _nearest(states: list[IteratorState], record: int) -> IteratorState | None:
    fitting = [state for state in states if state.record <= record]
    return max(fitting, key=lambda state: state.record, default=None)


def _written(iterator: Any) -> bytes | None:
    """Return an iterator's state; ``None`` if tf.data can't write it: generators, stateful functions."""
    policy = tf.data.experimental.ExternalStatePolicy.FAIL.value
    try:
        variants = tf.raw_ops.SerializeIterator(
            resource_handle=iterator._iterator_resource, external_state_policy=policy
        )
        content: bytes = tf.io.serialize_tensor(variants).numpy()
    except tf.errors.OpError:
        return None
    return content


def restore(iterator: Any, state: IteratorState) -> bool:
    """Set a new iterator to a saved state, and return whether that succeeded."""
    try:
        variants = tf.io.parse_tensor(state.content, tf.variant)
        tf.raw_ops.DeserializeIterator(resource_handle=iterator._iterator_resource, serialized=variants)
    except tf.errors.OpError:
        return False
    return True
