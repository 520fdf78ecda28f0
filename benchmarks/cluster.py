"""Let a crowd of processes want one dataset in a bucket at once, and count who builds; kill some of them.

    python benchmarks/cluster.py crowd [--processes 64] [--stores moto ministack gcs]
    python benchmarks/cluster.py kills [--rounds 40] [--stores moto]

Needs what `tox -e buckets` installs. Bars: one build, one manifest and 64 equal fingerprints in every store;
after each of 40 rounds of SIGKILL and SIGSTOP one manifest, every survivor served, every byte sound.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "remote"))
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"

import crowds
import stores
from hosts import processes
from places import Place, gcs_place_at, s3_place_at

STORES = {
    "moto": (stores.moto, s3_place_at),
    "ministack": (stores.ministack, s3_place_at),
    "gcs": (stores.fake_gcs_server, gcs_place_at),
}


def crowd(place: Place, root: Path, count: int) -> str:
    """Let so many processes of four hosts ask at once."""
    with processes(crowds.ask, [(place, root, f"host-{number % 4}") for number in range(count)]) as asking:
        fingerprints = {process.result(900)[0] for process in asking}
    crowds.assert_sound(place, root, fingerprints)
    built = len(list(root.glob("built-*")))
    assert built == 1, f"{built} builds"
    return f"{count} processes, {built} build, {len(fingerprints)} fingerprint"


def kills(place: Place, root: Path, seed: int) -> str:
    """Kill one builder or waiter and stop another past its time to live, at random moments."""
    crowds.assert_sound(place, root, crowds.killed_and_stopped(place, root, random.Random(seed)))
    return f"{len(list(root.glob('built-*')))} builds begun, one manifest, all survivors served"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["crowd", "kills"])
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES))
    arguments = parser.parse_args()
    for name in arguments.stores:
        store, place_at = STORES[name]
        serving: AbstractContextManager[str] = store()
        with serving as endpoint:
            for number in range(arguments.rounds if arguments.what == "kills" else 1):
                with tempfile.TemporaryDirectory() as folder:
                    started = time.perf_counter()
                    task: Any = (place_at(endpoint), Path(folder))
                    if arguments.what == "kills":
                        said = f"round {number}: {kills(*task, number)}"
                    else:
                        said = crowd(*task, arguments.processes)
                    print(f"{name}: {said}, {time.perf_counter() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
