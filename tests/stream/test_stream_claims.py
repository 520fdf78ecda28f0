"""Claims: which epochs each iterator reads, side by side, and what loading a cursor does to them."""

import threading

import pytest
from memory_source import MemorySource, batch_ids, flat, open_stream, record_ids, stream_of


def epochs_of(count, **options):
    """A shuffled stream, and a function that tells which epoch some ids are."""
    stream = stream_of(count, shuffle=True, **options)
    orders = {tuple(stream.indices(epoch).tolist()): epoch for epoch in range(20)}
    return stream, lambda ids: orders[tuple(ids)]


def place(state):
    return state["epoch"], state["position"]


def test_each_iterator_claims_the_next_epoch():
    stream, epoch_of = epochs_of(30)
    assert [epoch_of(record_ids(stream)) for _ in range(3)] == [0, 1, 2]


def test_an_epoch_is_claimed_at_the_first_next():
    stream, epoch_of = epochs_of(30)
    first, second = iter(stream), iter(stream)
    assert epoch_of(record_ids(second)) == 0
    assert epoch_of(record_ids(first)) == 1


def test_a_loader_counts_for_itself():
    stream, epoch_of = epochs_of(30)
    record_ids(stream)
    loader = stream.batch(7)
    assert [epoch_of(flat(batch_ids(loader))) for _ in range(2)] == [0, 1]
    assert epoch_of(flat(batch_ids(stream.batch(7)))) == 0
    assert epoch_of(flat(batch_ids(loader.prefetch(2)))) == 0
    assert epoch_of(record_ids(stream)) == 1


def test_a_loader_starts_where_its_stream_starts():
    stream = stream_of(10, start_offset=4)
    loader = stream.batch(4)
    assert batch_ids(loader) == [[4, 5, 6, 7], [8, 9]]
    assert batch_ids(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_iterators_run_side_by_side():
    stream, epoch_of = epochs_of(30)
    first, second = iter(stream), iter(stream)
    pairs = list(zip(first, second, strict=True))
    assert epoch_of(record_ids(pair[0] for pair in pairs)) == 0
    assert epoch_of(record_ids(pair[1] for pair in pairs)) == 1


def test_threads_claim_different_epochs():
    stream, epoch_of = epochs_of(30)
    barrier, seen = threading.Barrier(8), []

    def read():
        records = iter(stream)
        barrier.wait()
        seen.append(epoch_of(record_ids(records)))

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(8))


def test_an_iterator_of_several_epochs_claims_them_all():
    stream, epoch_of = epochs_of(30)
    loader = stream.batch(30, epochs=3)
    batches = iter(loader)
    next(batches)
    assert [epoch_of(ids) for ids in batch_ids(loader)] == [3, 4, 5]
    assert [epoch_of(ids) for ids in batch_ids(batches)] == [1, 2]


def test_an_endless_iterator_claims_what_it_entered():
    stream, epoch_of = epochs_of(30)
    loader = stream.batch(30, epochs=None)
    batches = iter(loader)
    assert [epoch_of(next(batches)["id"]) for _ in range(3)] == [0, 1, 2]
    later = iter(loader)
    assert epoch_of(next(later)["id"]) == 3
    assert epoch_of(next(batches)["id"]) == 3


def test_an_iterator_anywhere_claims_nothing():
    stream, epoch_of = epochs_of(30)
    assert epoch_of(record_ids(stream.at(5))) == 5
    assert record_ids(stream.at(5, 20)) == stream.indices(5).tolist()[20:]
    assert record_ids(stream.at(5, 30)) == []
    loader = stream.batch(30, epochs=2)
    assert [epoch_of(ids) for ids in batch_ids(loader.at(epoch=3, position=0))] == [3, 4]
    assert [epoch_of(ids) for ids in batch_ids(loader)] == [0, 1]
    assert epoch_of(record_ids(stream)) == 0


def test_a_look_at_the_first_batch_is_not_lost_to_a_training_that_goes_on():
    loader = stream_of(10).batch(2, skip_finished_epoch=True)
    first = next(loader.at(0))["id"].tolist()
    batches = iter(loader)
    assert next(batches)["id"].tolist() == first
    next(loader.at(0, 4))
    assert next(iter(loader))["id"].tolist() == [2, 3]


LOOKS = {
    "at": lambda loader: next(iter(loader.at(0))),
    "at_the_end": lambda loader: list(loader.at(0, 8)),
    "batch_at": lambda loader: loader.batch_at(0),
    "plan": lambda loader: loader.plan(),
    "shown": lambda loader: (repr(loader), loader._repr_html_(), loader.stats()),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("skip_finished_epoch", [False, True])
@pytest.mark.parametrize("options", [{}, {"n": 2}, {"n": 2, "threads": 2}, {"n": 2, "workers": 1}], ids=str)
def test_a_look_moves_no_loader(look, skip_finished_epoch, options):
    loader = stream_of(10).batch(2, skip_finished_epoch=skip_finished_epoch)
    loader = loader.prefetch(**options) if options else loader
    LOOKS[look](loader)
    assert place(loader.state_dict()) == (0, 0)
    batches = iter(loader)
    assert next(batches)["id"].tolist() == [0, 1]
    LOOKS[look](loader)
    assert place(loader.state_dict()) == place(batches.state_dict()) == (0, 2)
    assert next(batches)["id"].tolist() == [2, 3]


def test_a_look_moves_no_stream():
    stream = stream_of(10)
    next(stream.at(3, 4))
    assert place(stream.state_dict()) == (0, 0)
    assert record_ids(stream) == list(range(10))


def test_a_loaders_state_is_that_of_its_newest_iterator():
    loader = stream_of(10, start_offset=1).batch(2)
    assert place(loader.state_dict()) == (0, 1)
    first = iter(loader)
    assert place(loader.state_dict()) == (0, 1)
    next(first)
    assert place(loader.state_dict()) == (0, 3)
    list(first)
    assert place(loader.state_dict()) == (1, 0)
    second = iter(loader)
    assert place(loader.state_dict()) == (1, 0)
    next(second)
    assert place(loader.state_dict()) == (1, 2)


def test_a_streams_state_is_that_of_its_newest_iterator():
    stream = stream_of(10)
    records = iter(stream)
    next(records)
    assert place(stream.state_dict()) == place(records.state_dict()) == (0, 1)


def test_the_next_iterator_starts_where_a_loader_is_loaded():
    stream, epoch_of = epochs_of(30)
    loader = stream.batch(30)
    loader.load_state_dict(stream.cursor(10, epoch=4))
    assert place(loader.state_dict()) == (4, 10)
    assert flat(batch_ids(loader)) == stream.indices(4).tolist()[10:]
    assert epoch_of(flat(batch_ids(loader))) == 5


def test_a_loaders_state_is_what_was_loaded_until_the_next_iterator_begins():
    loader = stream_of(30).batch(10)
    batches = iter(loader)
    next(batches)
    loader.load_state_dict(stream_of(30).cursor(10, epoch=4))
    assert place(loader.state_dict()) == (4, 10)
    assert place(batches.state_dict()) == (0, 10)
    later = iter(loader)
    assert place(loader.state_dict()) == (4, 10)
    assert next(later)["id"].tolist() == list(range(10, 20))


def test_a_training_loop_goes_on_in_its_epoch():
    stream, epoch_of = epochs_of(30)
    loader = stream.batch(10)
    list(loader)
    for _, _ in zip(range(2), loader, strict=False):
        pass
    state = loader.state_dict()
    again = stream.batch(10)
    again.load_state_dict(state)
    assert flat(batch_ids(again)) == stream.indices(1).tolist()[20:]
    assert epoch_of(flat(batch_ids(again))) == 2


def test_a_cursor_within_the_claimed_epochs_keeps_their_end():
    stream = stream_of(4)
    batches = iter(stream.batch(4, epochs=3))
    batches.load_state_dict(stream.cursor(2, epoch=1))
    assert batch_ids(batches) == [[2, 3], [0, 1, 2, 3]]
    batches.load_state_dict(stream.cursor(0, epoch=0))
    assert len(batch_ids(batches)) == 3


def test_a_cursor_outside_the_claimed_epochs_is_the_first_of_them():
    stream = stream_of(4)
    loader = stream.batch(4, epochs=3)
    batches = iter(loader)
    next(batches)
    batches.load_state_dict(stream.cursor(2, epoch=7))
    assert len(batch_ids(batches)) == 3
    assert place(batches.state_dict()) == (10, 0)
    next(later := iter(loader))
    assert place(later.state_dict()) == (10, 4)


def test_loading_an_iterator_moves_the_next_claim():
    stream, epoch_of = epochs_of(30)
    loader = stream.batch(30)
    list(loader), list(loader)
    batches = iter(loader)
    batches.load_state_dict(stream.cursor(10, epoch=0))
    assert epoch_of(flat(batch_ids(loader))) == 1
    assert flat(batch_ids(batches)) == stream.indices(0).tolist()[10:]


def test_loading_an_endless_iterator_moves_the_next_claim():
    stream, epoch_of = epochs_of(30)
    loader = stream.batch(30, epochs=None)
    batches = iter(loader)
    batches.load_state_dict(stream.cursor(0, epoch=6))
    assert epoch_of(next(batches)["id"]) == 6
    assert epoch_of(next(iter(loader))["id"]) == 7


def test_loading_an_iterator_from_anywhere_claims_nothing():
    stream, epoch_of = epochs_of(30)
    records = stream.at(2)
    records.load_state_dict(stream.cursor(0, epoch=6))
    assert epoch_of(record_ids(records)) == 6
    assert epoch_of(record_ids(stream)) == 0


def test_an_iterator_goes_on_after_an_error():
    source = MemorySource(10, fails_at=5)
    batches = iter(open_stream(source).batch(2, collate=list))
    assert [record_ids(next(batches)) for _ in range(1)] == [[0, 1]]
    with pytest.raises(KeyError, match="on fire"):
        list(batches)
    state = batches.state_dict()
    source.fails_at = None
    rest = [record_ids(batch) for batch in batches]
    assert flat(rest) == list(range(state["position"], 10))


def test_an_iterator_goes_on_after_close():
    batches = iter(stream_of(10).batch(2))
    next(batches)
    batches.close()
    assert batch_ids(batches) == [[2, 3], [4, 5], [6, 7], [8, 9]]
    batches.close()
    assert batch_ids(batches) == []
    assert place(batches.state_dict()) == (1, 0)


def test_an_iterator_is_its_own_iterator():
    records = iter(stream_of(3))
    assert iter(records) is records
