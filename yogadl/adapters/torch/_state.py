"""Find the cursor in a state of torchdata's StatefulDataLoader."""

from collections.abc import Mapping
from typing import Any, Final

from yogadl.errors import CursorError

_MARK: Final = "yogadl"


def cursor(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cursor in a StatefulDataLoader's `state_dict`, to resume with any other loader.

    The cursor counts the delivered records, not those that workers had ready. If the epoch was read to its
    end, the cursor is at the start of the next one.

    Args:
        state_dict: The state of a StatefulDataLoader over yogadl's `Sampler`, `BatchSampler` or
            `IterableDataset`, with any number of workers. A cursor is returned as it is.

    Raises:
        CursorError: if the state has no cursor; or if the delivered records are not the beginning of the
            epoch: between snapshots (``snapshot_every_n_steps``), or if DataLoader makes batches of the
            records of several workers.

    Example:
        >>> import yogadl
        >>> from yogadl.adapters import torch as yogadl_torch
        >>> stream = yogadl.from_source([10, 11, 12]).stream()
        >>> yogadl_torch.cursor(stream.cursor(delivered=2))["position"]
        2
    """
    if _MARK in state_dict:
        return dict(state_dict)
    main, shares = _states_in(state_dict)
    found = _of_shares(shares) if shares else _first(main, ("_sampler_iter_state", "_index_sampler_state"))
    if found is None:
        raise CursorError(
            "there is no yogadl cursor in this state: save state_dict() of a StatefulDataLoader whose "
            "sampler, batch_sampler or dataset is of yogadl.adapters.torch"
        )
    if state_dict.get("_iterator_finished"):
        return {**found, "epoch": found["epoch"] + 1, "position": 0}
    return dict(found)


def _states_in(state: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[Mapping[str, Any]]]:
    """Return the state of the training process, and those of the iterators of `IterableDataset`."""
    snapshot = state.get("_snapshot")
    if snapshot is None:
        main, fetchers = state, [state.get("fetcher_state")]
    else:
        steps = state.get("_steps_since_snapshot", 0)
        if steps:
            were = "batch was" if steps == 1 else "batches were"
            raise CursorError(
                f"{steps} {were} delivered after the last snapshot of the workers: save when a multiple of "
                "snapshot_every_n_steps was delivered, or leave that at 1"
            )
        main = snapshot["_main_snapshot"]
        fetchers = [worker.get("fetcher_state") for worker in snapshot["_worker_snapshots"].values()]
    found = [fetcher.get("dataset_iter_state") for fetcher in fetchers if fetcher]
    return main, [share for share in found if isinstance(share, Mapping) and _MARK in share.get("cursor", ())]


def _of_shares(shares: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the cursor after the items of all workers; refuse if these are no beginning of the epoch."""
    workers = shares[0]["workers"]
    delivered = sum(share["yielded"] for share in shares)
    in_turn = all(share["yielded"] == -(-max(0, delivered - share["worker"]) // workers) for share in shares)
    if len(shares) != workers or not in_turn:
        counts = ", ".join(str(share["yielded"]) for share in shares)
        raise CursorError(
            f"the {workers} workers delivered {counts} items, which is not a beginning of the epoch: let the "
            "dataset make the batches (IterableDataset(stream, batch_size=...), DataLoader(batch_size=None)) "
            "or save when each worker delivered as many batches"
        )
    if all("end" in share for share in shares):
        return dict(shares[0]["end"])
    last = max(shares, key=lambda share: (share["cursor"]["epoch"], share["cursor"]["position"]))
    return dict(last["cursor"])


def _first(state: Any, keys: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the first cursor under one of these keys, or under the keys in which samplers nest it."""
    for key in keys:
        inner = state.get(key)
        if isinstance(inner, Mapping):
            found = dict(inner) if _MARK in inner else _first(inner, ("sampler_iter_state", "sampler_state"))
            if found is not None:
                return found
    return None
