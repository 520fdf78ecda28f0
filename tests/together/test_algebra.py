"""Views of views, of every base and in every way of reading, are what the same views of plain lists are.

`algebra.py` has the views, and `algebra_bases.py` what they are views of. A failure shows the expression as a
user writes it.
"""

import itertools
import json
import pickle
import random
import zlib
from importlib.util import find_spec

import pytest
from algebra import (
    DRAWN,
    VIEWS,
    Dice,
    Made,
    as_arguments,
    built,
    is_possible,
    packed_row,
    plain,
    plain_rows,
    rows_of_pickles,
    same_dice,
    with_fields,
)
from algebra_bases import OLDER
from algebra_bases import bases as made_bases
from hypothesis import assume, given, note
from hypothesis import strategies as st
from processes import in_child
from soak import few_or_many
from windows import windows

import yogadl
from yogadl.errors import CursorError

LASTS = ("plain", *DRAWN, "mix")
BASES = (
    "local", "ranged", "mirrored", "mirrored in part", "unmapped", "shared", "grown", "compacted",
    "first of a later version", "adopted", "copied", "submitted", "adopted unread", "list", "json", "jsonl",
    "megatron", *(["compressed"] if find_spec("zstandard") else []),
    *(["parquet"] if find_spec("pyarrow") else []),
)  # fmt: skip
ENDS = (*VIEWS, "mix", *(f"{view} drawn" for view in DRAWN))
CUTTING = ("chunks", "packed", "bucketed", "packed drawn", "bucketed drawn")  # not batches
DICTS_ALONE = (
    "fields", "windows", "timed", "packed", "bucketed", "grouped", "packed drawn", "bucketed drawn",
    "grouped drawn",
)  # fmt: skip
POSSIBLE = dict.fromkeys(BASES, ENDS) | {
    "jsonl": tuple(end for end in ENDS if end not in (*DICTS_ALONE, "chunks")),
    "megatron": tuple(end for end in ENDS if end not in DICTS_ALONE),
}
SHARDS = {"uneven": {}, "dropped": {"drop_shard_remainder": True}, "padded": {"pad_shard_remainder": True}}

pytestmark = pytest.mark.filterwarnings("ignore:there is no batch to read")


class World:
    """The bases by name, tuples of those that have one fingerprint, and the program of the order."""

    def __init__(self, folder, program):
        self.bases, self.alike = made_bases(folder)
        self.program = program

    def __repr__(self):  # what hypothesis shows of it
        return "World(...)"


@pytest.fixture(scope="module")
def world(tmp_path_factory, stranger):
    return World(tmp_path_factory.mktemp("algebra"), stranger)


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
    dice.say(
        f".stream(shuffle={is_shuffled}, shuffle_seed={seed}, {options}), batches of {size}, epoch {epoch}"
    )
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
    found = [plain_rows(each) for each in (batches.prefetch(2, **ahead) if ahead else batches).at(epoch)]
    assert all(len(rows) == size for rows in found[:-1])
    compare(itertools.chain(*found), wanted)


def in_blocks(made, dice, program, seed, epoch):
    """Return an order of blocks, and the rows in it."""
    sizes = [dice.number(1, 4) for _ in range(3)]
    count = len(made)
    order = [program["blocks_index"](place, count, *sizes, seed, epoch) for place in range(count)]
    records, window, lanes = sizes
    blocks = yogadl.Blocks(records=records, window=window, lanes=lanes)
    return blocks, [made.rows[number] for number in order]


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
    for leg in range(dice.number(2, 4)):
        ref = made.ref if other is None or leg % 2 == 0 else other.ref
        ranks, size, threads = dice.number(1, 3), dice.number(1, 4), dice.number(0, 2)
        steps, loads = dice.number(0, 3), dice.flag()
        dice.say(
            f"{steps} batches of {size} on {ranks} ranks, {threads} threads, of epoch {epoch}, seed {seed}"
        )
        options = {"shuffle": is_shuffled, "shuffle_seed": seed, "cursor": cursor}
        read, cursor = in_step(ref, ranks, size, steps, options, threads, loads)
        seen += read
        if cursor["epoch"] != epoch:
            break
    ref = pickle.loads(pickle.dumps(ref, protocol=5))
    if cursor["epoch"] == epoch:
        last = ref.stream(shuffle=is_shuffled, shuffle_seed=seed, cursor=cursor)
        seen += map(plain, last)
    compare(seen, wanted)


def in_step(ref, ranks, size, steps, options, threads, loads):
    """Return the rows of some batches of each rank, by position, and the cursor after them."""
    iterators = []
    for rank in range(ranks):
        given = options | ({"cursor": None} if loads else {})
        loader = ref.stream(shard_rank=rank, num_shards=ranks, **given).batch(size)
        iterators.append(iter(loader.prefetch(2, threads=threads) if threads else loader))
        if loads:
            iterators[-1].load_state_dict(options["cursor"])
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


@pytest.mark.parametrize(("base", "end"), [(base, end) for base in BASES for end in POSSIBLE[base]])
def test_a_view_of_any_base_is_that_of_the_list(world, base, end):
    for seed in range(few_or_many(1, 20)):
        dice = rolled(base, end, seed)
        is_drawn = end.endswith(" drawn") or end == "mix"
        views, last = ([], end.removesuffix(" drawn")) if is_drawn else ([end], "plain")
        read(built(world.bases[base], views, dice, world.program, last), dice, world.program)


@pytest.mark.parametrize(
    ("inner", "outer"),
    [
        (inner, outer)
        for inner in VIEWS
        for outer in ENDS
        if (inner not in ("bucketed", "grouped") or outer not in CUTTING)
        and (inner not in ("chunks", "packed", "bucketed", "grouped") or outer not in ("windows", "timed"))
        and (inner not in ("windows", "timed") or outer != "timed")
        and (inner != "timed" or outer.removesuffix(" drawn") not in ("windows", "grouped", *CUTTING))
    ],
)
def test_a_view_of_any_view_is_that_of_the_list(world, inner, outer):
    view = outer.removesuffix(" drawn")
    tried = 0
    for seed in itertools.count():
        dice = rolled(inner, outer, seed)
        base = world.bases[dice.pick([name for name in BASES if inner in POSSIBLE[name]])]
        made = built(base, [inner], dice, world.program)
        if len(made) > 1 and (view == "mix" or is_possible(view, made)):
            if outer in VIEWS:
                made = built(made, [outer], dice, world.program)
            else:
                made = built(made, [], dice, world.program, view)
            read(made, dice, world.program)
            tried += 1
            if tried == few_or_many(1, 20):
                return


# Any views of views.


@st.composite
def expressions(draw, bases=BASES, ends=LASTS, most=4):
    """Draw a base, the views of views of it, what comes last, and dice for the arguments."""
    base = draw(st.sampled_from(bases))
    views = draw(st.lists(st.sampled_from(VIEWS), max_size=most))
    dice = Dice(lambda low, high: draw(st.integers(low, high)), note)
    return base, views, draw(st.sampled_from(ends)), dice


@given(st.data())
def test_any_views_of_views_are_those_of_the_list(world, data):
    base, views, end, dice = data.draw(expressions())
    read(built(world.bases[base], views, dice, world.program, end), dice, world.program)


@given(st.data())
def test_a_cursor_of_any_views_goes_on_with_the_same_views_of_a_copy(world, data):
    names = [name for group in world.alike for name in group]
    base, views, end, dice = data.draw(expressions(bases=names))
    (group,) = [group for group in world.alike if base in group]
    made = built(world.bases[base], views, dice, world.program, end)
    same = same_dice(dice)
    copy = built(world.bases[data.draw(st.sampled_from(group))], views, same, world.program, end)
    dice.say(made.code)
    dice.say(copy.code)
    assert copy.ref.fingerprint == made.ref.fingerprint
    assert copy.ref.spec == made.ref.spec
    by_cursor(made, dice, world.program, copy)


# Of these the same dice choose the same views of more records.
UNCOUNTED = ("fields", "filter", "map", "flat_map", "chunks", "windows", "timed")


@given(st.data())
def test_a_cursor_of_any_views_of_a_version_goes_on_with_those_of_the_first_records_of_a_later_one(
    world, data
):
    """And with all records of the later one it is refused; if these are not packed, the error says this."""
    views = data.draw(st.lists(st.sampled_from(UNCOUNTED), max_size=2))
    assume(views != ["chunks", "flat_map"])  # `is_possible` has few chunks flat, not many
    end = data.draw(st.sampled_from(["plain", "packed", "bucketed", "grouped"]))
    dice = Dice(lambda low, high: data.draw(st.integers(low, high)), note)
    old = built(world.bases["older"], views, dice, world.program, end)
    new, first = (
        built(world.bases[name], views, same_dice(dice), world.program, end)
        for name in ("grown", "first of a version")
    )
    dice.say(old.code)
    options = {"shuffle": dice.flag(), "shuffle_seed": 3}
    cursor = old.ref.stream(**options).cursor(dice.number(0, len(old)))
    with pytest.raises(CursorError) as caught:
        new.ref.stream(**options, cursor=cursor)
    assert end != "plain" or f"[:{OLDER}]" in str(caught.value)
    assert first.ref.fingerprint == old.ref.fingerprint
    by_cursor(old, dice, world.program, first)


@given(st.data())
def test_a_cursor_of_any_views_is_rebound_to_the_same_views_of_other_values(world, data):
    base, views, end, dice = data.draw(expressions(bases=["local", "grown", "list"]))
    assume("split" not in views)  # by a key of other values, or of versions that the others have not
    made = built(world.bases[base], views, dice, world.program, end)
    other = built(world.bases["relabelled"], views, same_dice(dice), world.program, end)
    dice.say(made.code)
    seed, is_shuffled, position = dice.number(0, 2), dice.flag(), dice.number(0, len(made))
    options = {"shuffle": is_shuffled, "shuffle_seed": seed}
    options["cursor"] = json.loads(json.dumps(made.ref.stream(**options).cursor(position)))
    with pytest.raises(CursorError, match="by rebind=True"):
        other.ref.stream(**options)
    found = list(map(plain, other.ref.stream(**options, rebind=True)))
    rows = epoch_rows(other, world.program, seed, 0, is_shuffled)
    compare(found, rows[position:])


@given(st.data())
def test_the_requests_for_any_choice_of_records_are_those_that_are_planned(world, data):
    """Of fields of one size, so that no places must be read first."""
    views = data.draw(st.lists(st.sampled_from(["select", "slice"]), max_size=4))
    dice = Dice(lambda low, high: data.draw(st.integers(low, high)), note)
    made = built(with_fields(world.bases["ranged"], ["pair"]), views, dice, world.program)
    dice.say(made.code)
    ref = pickle.loads(pickle.dumps(made.ref))
    stream = ref.stream(shuffle=dice.flag()).batch(dice.number(1, 9))
    plan = stream.plan()
    before = ref.locality()
    for _ in stream:
        pass
    after = ref.locality()
    way = plan.way("ranges")
    assert (way.requests, way.bytes) == (after.ranges - before.ranges, after.range_bytes - before.range_bytes)


@pytest.mark.parametrize(("fields", "most"), [(("id", "pair"), 1), (("tokens", "pair", "id"), 1.5)])
def test_the_requests_for_a_view_that_the_library_does_not_have_are_planned(world, fields, most):
    ref = pickle.loads(pickle.dumps(world.bases["ranged"].ref))
    before = ref.locality()
    stream = windows(ref).fields(*fields).stream(shuffle=True)
    planned = stream.plan().way("ranges")
    list(stream)
    after = ref.locality()
    found = after.ranges - before.ranges, after.range_bytes - before.range_bytes
    assert 0 < planned.requests <= found[0] <= most * planned.requests  # lengths are not known
    assert planned.bytes <= found[1] <= most * planned.bytes


def test_another_process_reads_pickled_views_of_views(world):
    wanted, pickles, options = [], [], {"shuffle": True, "shuffle_seed": 4}
    for base, end in itertools.product(("ranged", "list"), LASTS):
        dice = rolled("elsewhere", base, end)
        views = [dice.pick(VIEWS) for _ in range(3)]
        made = built(world.bases[base], views, dice, world.program, end)
        dice.say(made.code)
        pickles.append(pickle.dumps(made.ref))
        wanted.append(epoch_rows(made, world.program, 4, 1, True))
    for found, rows in zip(in_child(rows_of_pickles, pickles, options), wanted, strict=True):
        compare(found, rows)


@pytest.mark.parametrize(
    ("base", "end"),
    [
        ("ranged", "plain"),
        ("local", "packed"),
        ("list", "bucketed"),
        ("local", "grouped"),
        ("adopted", "sampled"),
        ("ranged", "mix"),
    ],
)
def test_worker_processes_read_any_views_as_this_process_does(world, base, end):
    for seed in range(few_or_many(1, 20)):
        dice = rolled("workers", base, end, seed)
        views = [
            dice.pick([name for name in VIEWS if name not in ("fields", "bucketed", "grouped")])
            for _ in range(3)
        ]
        made = built(world.bases[base], views, dice, world.program, end)
        dice.say(made.code)
        by_stream(made, dice, world.program, workers=1)


def test_the_documents_that_a_mix_of_packed_records_names_make_its_rows(world):
    dice = rolled("documents")
    parents = [world.bases[name] for name in ("local", "adopted")]
    options = {
        "segments": "segments",
        "positions": None,
        "mask": None,
        "values": ["id"],
        "pad": {"tokens": -1},
    }
    pairs = {
        parent.code: (parent.ref.packed(8, fields="tokens", **as_arguments(options)), weight)
        for weight, parent in enumerate(parents, 1)
    }
    packed = yogadl.mix(pairs, seed=dice.number(0, 9), at_end="repeat")
    rows = iter(packed.stream(shuffle=True).batch(3))
    first = len(pairs["local"][0])
    for batch in rows:
        last = rows.last
        for row, number, pieces in zip(plain_rows(batch), last.indices, last.documents, strict=True):
            parent = parents[int(number >= first)]
            compare([row], [packed_row(parent.rows, pieces, 8, options)])
