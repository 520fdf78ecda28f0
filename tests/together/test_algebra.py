"""Views of views, of every base and in every way of reading, are what the same views of plain lists are.

`algebra.py` has the views, and `algebra_bases.py` what they are views of. A failure shows the expression as a
user writes it.
"""

import itertools
import json
import pickle
import random
import zlib

import pytest
from algebra import DRAWN, VIEWS, Dice, Drawn, Made, Mixed, built, is_possible, plain, plain_rows, same_dice
from algebra_bases import bases as made_bases
from hypothesis import given, note, settings
from hypothesis import strategies as st

ENDS = ("plain", *DRAWN, "mix")
CACHES = (
    "local", "ranged", "mirrored", "mirrored in part", "unmapped", "shared", "grown", "compacted",
    "first of a later version", "adopted", "copied", "submitted", "adopted unread", "list", "json", "jsonl",
    "megatron",
)  # fmt: skip
SHARDS = {"uneven": {}, "dropped": {"drop_shard_remainder": True}, "padded": {"pad_shard_remainder": True}}

pytestmark = pytest.mark.filterwarnings("ignore:there is no batch to read")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Return the bases by name, and tuples of those that have one fingerprint."""
    return made_bases(tmp_path_factory.mktemp("algebra"))


def rolled(*seed):
    """Return dice that roll the same for a seed."""
    return Dice(random.Random(zlib.crc32(repr(seed).encode())).randint, print)


def compare(found, wanted):
    assert list(map(repr, found)) == list(map(repr, wanted))


# The ways to read.


def by_gather(made, dice, _):
    count = len(made)
    numbers = dice.numbers(-count, count - 1, 12) if count else []
    compare(plain_rows(made.ref.gather(numbers)), [made.rows[n] for n in numbers])


def by_index(made, dice, _):
    compare(map(plain, made.ref), made.rows)
    numbers = dice.numbers(-len(made), len(made) - 1, 3) if len(made) else []
    compare([plain(made.ref[n]) for n in numbers], [made.rows[n] for n in numbers])
    compare(map(plain, made.ref.__getitems__(numbers)), [made.rows[n] for n in numbers])
    for outside in (len(made), -len(made) - 1):
        with pytest.raises(IndexError):
            made.ref[outside]


def by_pickle(made, dice, program):
    again = pickle.loads(pickle.dumps(made.ref, protocol=5))
    assert again.fingerprint == made.ref.fingerprint
    assert again.spec == made.ref.spec
    compare(map(plain, again.stream().at(0)), epoch_rows(made, program, 0, 0, False))


def by_stream(made, dice, program, **ahead):
    seed, epoch, is_shuffled = dice.number(-1, 2), dice.number(0, 2), dice.flag()
    ranks, form = dice.number(1, 4), dice.pick([*SHARDS])
    rank = dice.number(0, ranks - 1)
    size = dice.pick([None, 1, 3, 8])
    options = {"shard_rank": rank, "num_shards": ranks, **SHARDS[form]}
    stream = made.ref.stream(shuffle=is_shuffled, shuffle_seed=seed, **options)
    dice.say(f".stream(shuffle={is_shuffled}, shuffle_seed={seed}, {options}), batches of {size}, epoch {epoch}")
    rows = epoch_rows(made, program, seed, epoch, is_shuffled)
    count = len(rows)
    ends = {"uneven": count, "dropped": count // ranks * ranks, "padded": -(-count // ranks) * ranks}
    wanted = [rows[place % count] for place in range(rank, ends[form], ranks)]
    assert stream.plan().records == len(wanted)
    if size is None:
        found = stream.prefetch(2, **ahead) if ahead else stream
        compare(map(plain, found.at(epoch)), wanted)
        return
    batches = stream.batch(size)
    for number, batch in enumerate((batches.prefetch(2, **ahead) if ahead else batches).at(epoch)):
        compare(plain_rows(batch), wanted[number * size :][:size])
    assert len(wanted) <= (number + 1) * size if wanted else True


def by_threads(made, dice, program):
    by_stream(made, dice, program, threads=2)


def epoch_rows(made, program, seed, epoch, is_shuffled):
    """Return the rows of an epoch in the order of a stream."""
    rows = made.rows_at(epoch, seed)
    return [rows[number] for number in made.order(program, seed, epoch, is_shuffled)]


def by_cursor(made, dice, program, other=None):
    """Read on some ranks, stop, and go on with others, also by a reference to a copy."""
    seed, epoch, is_shuffled = dice.number(0, 2), dice.number(0, 1), dice.flag()
    wanted = epoch_rows(made, program, seed, epoch, is_shuffled)
    cursor = made.ref.stream(shuffle=is_shuffled, shuffle_seed=seed).cursor(0, epoch=epoch)
    seen = []
    for ref in (made.ref, made.ref if other is None else other.ref):
        ranks, size = dice.number(1, 3), dice.number(1, 4)
        steps = dice.number(0, 3)
        dice.say(f"{steps} batches of {size} on {ranks} ranks, of epoch {epoch} with seed {seed}")
        options = {"shuffle": is_shuffled, "shuffle_seed": seed, "cursor": cursor}
        read, cursor = in_step(ref, ranks, size, steps, options)
        seen += read
    ref = pickle.loads(pickle.dumps(ref, protocol=5))
    if cursor["epoch"] == epoch:
        last = ref.stream(shuffle=is_shuffled, shuffle_seed=seed, cursor=cursor)
        seen += map(plain, last)
    compare(seen, wanted)


def in_step(ref, ranks, size, steps, options):
    """Return the rows of some batches of each rank, by position, and the cursor after them."""
    loaders = [ref.stream(shard_rank=rank, num_shards=ranks, **options).batch(size) for rank in range(ranks)]
    iterators = [iter(loader) for loader in loaders]
    seen, epoch = [], options["cursor"]["epoch"]
    cursor = options["cursor"]
    for _ in range(steps):
        columns = [plain_rows(next(iterator, [])) for iterator in iterators]
        seen += [row for rows in itertools.zip_longest(*columns) for row in rows if row is not None]
        cursor = json.loads(json.dumps(iterators[0].state_dict()))
        if cursor["epoch"] != epoch or cursor["position"] == cursor["records"]:
            break
    return seen, cursor


RANDOM = (by_gather, by_index)
STREAMED = (by_pickle, by_stream, by_threads, by_cursor)


def read(made, dice, program, ways=None):
    dice.say(made.code)
    if isinstance(made, Made):
        assert len(made.ref) == len(made.rows), made.code
    for way in ways or (*RANDOM, *STREAMED):
        if isinstance(made, Made) or way in STREAMED:
            dice.say(way.__name__)
            way(made, dice, program)


# Each view alone, and each of each.


@pytest.mark.parametrize("base", CACHES)
@pytest.mark.parametrize("end", [*VIEWS, "mix", *(f"{view} drawn" for view in DRAWN)])
def test_a_view_of_any_base_is_that_of_the_list(world, stranger, base, end):
    made = world[0][base]
    view = end.removesuffix(" drawn")
    if view != "mix" and not is_possible(view, made):
        return
    for seed in range(2):
        dice = rolled(base, end, seed)
        if end in VIEWS:
            read(built(made, [end], dice, stranger), dice, stranger)
        else:
            read(built(made, [], dice, stranger, view), dice, stranger)
