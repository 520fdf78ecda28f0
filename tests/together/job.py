"""Say what one rank of a training run reads, as JSON that any process can take up."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from inside import generators

import yogadl

SIZES = (503, 120, 7)  # of the caches that conftest.py makes: together/503 and so on

NOISE = 1000
BROKEN = 41  # the last of so many records is broken, if another takes its place
FILLED = {"id": yogadl.Leaf("int64")}
ROW = 6  # tokens of a row; some documents are longer
PADDING = -1
STEPS = (-2, 0, 1)  # of a window of time


def spread(record: dict[str, Any]) -> dict[str, Any]:
    """Leave room for noise in a record's id."""
    return {"id": record["id"] * NOISE}


def disturb(record: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Add noise to a record's id."""
    return {"id": record["id"] + rng.integers(NOISE)}


def fill_spread(record: dict[str, Any], out: dict[str, Any]) -> None:
    """Fill what `spread` returns."""
    out["id"][...] = record["id"] * NOISE


def fill_disturbed(record: dict[str, Any], rng: np.random.Generator, out: dict[str, Any]) -> None:
    """Fill what `disturb` returns, but not for some records."""
    out["id"][...] = -1
    if (record["id"] // NOISE) % BROKEN == BROKEN - 1:
        raise ValueError("broken")
    out["id"][...] = record["id"] + rng.integers(NOISE)


def documents_of(size: int) -> list[dict[str, Any]]:
    """Return as many documents of 1 to 9 tokens, all of which are the document's number."""
    return [{"tokens": np.full(1 + number * 5 % 9, number)} for number in range(size)]


def shared(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return as many copies of a record as its id says, none to 3."""
    return [record] * (int(record["id"]) % 4)


def stepped(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record as a step of an episode: those of one do not lie side by side."""
    return {"id": record["id"], "episode": record["id"] * 7 % 31}


def marked(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record whose id also says whether it is a first step."""
    return {"id": 2 * record["id"] + record["is_first"]}


def length_of(document: dict[str, Any]) -> int:
    """Return how many tokens a document has."""
    return len(document["tokens"])


def tokens_of(row: dict[str, Any]) -> dict[str, Any]:
    """Return what is compared of a row of documents, or of a batch of documents of like length."""
    return {"id": row["tokens"].ravel()}


def records_of(size: int, width: int = 3) -> dict[str, Any]:
    """Return the columns of a cache of this many records."""
    ids = np.arange(size)
    return {"id": ids, "x": values_of(ids, width)}


def values_of(ids: np.ndarray, width: int) -> np.ndarray:
    """Return the field x of these records."""
    return (ids[:, None] * NOISE + np.arange(width)).astype(np.float32)


def episodes_of(size: int) -> np.ndarray:
    """Return the episode of each step: of some sizes they are scattered, of others side by side."""
    return np.arange(size) % 5 if size == SIZES[1] else np.arange(size) // 9


def around(size: int) -> np.ndarray:
    """Return the records of the window of each record."""
    episodes, found = episodes_of(size), np.empty((size, len(STEPS)), np.int64)
    for episode in np.unique(episodes):
        own = np.flatnonzero(episodes == episode)
        places = np.arange(len(own))[:, None] + STEPS
        found[own] = own[np.clip(places, 0, len(own) - 1)]
    return found


@dataclass(frozen=True)
class Job:
    """What one rank reads: which cache, which share of it, in which batches, and from where on.

    The records are {"id": int64, "x": float32[...]}; an id is the number of its record. They are shuffled.

    Args:
        storage: The folder or URL of the storage.
        dataset_id: Which cache.
        version: Which version of it.
        rank: Which rank this is.
        ranks: Of how many.
        batch_size: Records in a batch of this rank.
        workers: Processes that read ahead, if the framework has such; else how many batches it reads ahead.
        seed: Of the shuffle.
        epochs: How many epochs to read, counted from that of the cursor.
        cursor: Where to go on; ``None``: at the start.
        drop_shard_remainder: Leave out the last records that don't go round.
        pad_shard_remainder: Repeat the first ones instead.
        is_mapped: Pass each record through `spread` and `disturb`.
        is_filled: Have those fill the batch, and others take the place of broken records.
        skips: Ranges of positions that are left out.
        is_mixed: Mix parts of the cache.
        made: "packed": read rows of several documents, whose ids are lists of tokens; "bucketed": batches of
            documents of like length, where `batch_size` is None and a batch has one such list; "grouped":
            batches of documents of one length, alike; "sampled": records drawn with replacement; "flat":
            those that `shared` makes of each record; "windows": windows of time of `STEPS`, which have the id
            of their anchor; "sequences": steps of episodes, in `Sequences`.
        groups: Window and lanes, where row groups of Parquet are shuffled.
        options: How the storage is opened.
    """

    storage: str
    dataset_id: str
    version: str
    rank: int = 0
    ranks: int = 1
    batch_size: int | None = 1
    workers: int = 0
    seed: int = 0
    epochs: int = 1
    cursor: dict[str, Any] | None = None
    drop_shard_remainder: bool = False
    pad_shard_remainder: bool = False
    is_mapped: bool = False
    is_filled: bool = False
    skips: tuple[tuple[int, int], ...] = ()
    is_mixed: bool = False
    made: str = ""
    groups: tuple[int, int] | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "Job":
        return Job(**json.loads(text))

    def ref(self) -> yogadl.RecordsRef | yogadl.MixedRef | yogadl.DrawnRef:
        """Open the cache; or mix its parts, whose records are those of all of it; or pack it."""
        options = dict(self.options)
        if isinstance(options.get("mirror"), list):
            options["mirror"] = yogadl.Mirror(*options["mirror"])
        ref = yogadl.open_storage(self.storage, **options).fetch(self.dataset_id, self.version)
        if self.is_mixed:
            half, most = len(ref) // 2, len(ref) - 3
            parts = {"a": (ref[:half], 0.5), "b": (ref[half:most], 0.4), "c": (ref[most:], 0.1)}
            parts = {name: (self._rows(part), weight) for name, (part, weight) in parts.items()}
            ref = yogadl.mix(parts, seed=self.seed, at_end="repeat")
        else:
            ref = self._rows(ref)
        spec = {"id": yogadl.Leaf("int64", (ROW if self.made == "packed" else None,))}
        return ref.map(tokens_of, spec=spec) if self.made in ("packed", "bucketed", "grouped") else ref

    def _rows(self, ref: yogadl.RecordsRef) -> Any:
        if self.made == "packed":
            return ref.packed(ROW, fields="tokens", pad={"tokens": PADDING})
        if self.made == "bucketed":
            return ref.bucketed("tokens", tokens=4 * ROW, pad={"tokens": PADDING})
        if self.made == "grouped":
            return ref.grouped(length_of, records=ROW)
        if self.made == "sampled":
            return ref.sampled(np.arange(len(ref)), records=len(ref) + 90)
        if self.made == "windows":
            return ref.windows({"x": STEPS}, "episode").fields("id", "x", "x_is_pad")
        if self.made == "sequences":
            return ref.map(stepped)
        return ref.flat_map(shared) if self.made == "flat" else ref

    def stream(self) -> Any:
        """Open this rank's stream, which starts at the cursor."""
        shuffle = True if self.groups is None else yogadl.Blocks("groups", *self.groups)
        if self.made == "sequences":
            shuffle = yogadl.Sequences(self.ranks * self.batch_size, "episode")
        stream = self.ref().stream(
            shuffle=shuffle,
            shuffle_seed=self.seed,
            shard_rank=self.rank,
            num_shards=self.ranks,
            drop_shard_remainder=self.drop_shard_remainder,
            pad_shard_remainder=self.pad_shard_remainder,
            cursor=self.cursor,
        )
        if self.made == "sequences":
            stream = stream.map(marked)
        if self.skips:
            stream = stream.skip_ranges(self.skips)
        if self.is_filled:
            filled = stream.map(fill_spread, out=FILLED)
            return filled.random_map(fill_disturbed, out=FILLED, on_error="substitute")
        return stream.map(spread).random_map(disturb) if self.is_mapped else stream

    def kept(self, start: int, stop: int) -> list[int]:
        """Return which positions from one to another are not left out."""
        return [at for at in range(start, stop) if not any(a <= at < b for a, b in self.skips)]

    def ids(self, epoch: int, start: int = 0, stop: int | None = None) -> list[Any]:
        """Return what the order and the positions say that this rank's batches have of an epoch."""
        stream = self.stream()
        indices = stream.indices(epoch, start, stop)
        if self.made or self.is_filled:
            return [row["id"].tolist() for row in stream.at(epoch)][start:stop]
        if not self.is_mapped:
            return indices.tolist()
        positions = stream.run.origin(epoch) + self.rank + self.ranks * np.arange(start, start + len(indices))
        if self.skips:
            positions = np.array(self.kept(0, stream.run.identity().records + self.ranks))[positions]
        noise = [int(rng.integers(NOISE)) for rng in generators(self.seed, 1, epoch, positions)]
        return (indices * NOISE + noise).tolist()

    def ids_of(self, batch: Any) -> list[Any]:
        """Return the ids of a batch of any framework, whose other field must be that of the same records."""
        ids = np.asarray(batch["id"])
        if "x" in batch:
            found = np.asarray(batch["x"])
            if self.made == "windows":
                records = around(int(self.version))[ids]
                wanted = [values_of(each, found.shape[2]) for each in records.T]
                assert np.array_equal(found, np.stack(wanted, 1))
                return ids.tolist()
            assert np.array_equal(found, values_of(ids, found.shape[1]))
        return ids.tolist() if self.batch_size is not None else [ids.tolist()]

    def records(self, ids: list[int]) -> list[int]:
        """Return which records some ids are of."""
        return [number // NOISE for number in ids] if self.is_mapped else ids
