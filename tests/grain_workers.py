"""Let Grain's workers be forks of a process that has loaded Grain, which each of them takes seconds for."""

import multiprocessing
from types import SimpleNamespace

from grain._src.python.dataset.transformations import process_prefetch


def fork_workers(*modules: str) -> None:
    """Start workers by a server of forks, which imports these modules, too.

    What the workers get is pickled as where Grain starts them itself.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["grain", "yogadl.adapters.grain", *modules])
    process_prefetch.mp = SimpleNamespace(get_context=lambda _: context)
