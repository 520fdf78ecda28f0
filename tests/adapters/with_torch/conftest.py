"""Let the forkserver of `multiprocessing` load PyTorch once, not each worker that it forks."""

import multiprocessing

multiprocessing.set_forkserver_preload(["torch", "yogadl.adapters.torch"])
