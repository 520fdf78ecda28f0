"""Compare yogadl with what a user would pick instead; write the table and the plot of README.md and docs/.

Run ``python -m benchmarks compare`` on a machine that does nothing else: about an hour on two cores, 25 GB
below ``--dir``, and some below ``--venvs``, where each peer is installed by pip once. Every peer reads the
same records by its own public API, in processes of its own; peers take turns, round by round. Needs Linux.
Sets can be measured on different days: `--sets` adds to what is known, as does `--peers` on the same machine.
"""

import argparse
import sys
from pathlib import Path

from _compare import render, rounds, works
from _compare.peers import PEERS, TORCH
from _compare.rounds import Settings
from _compare.sets import SETS
from _compare.venvs import Venvs
from _folders import temporary_folder

FOLDER = Path(__file__).resolve().parent
ROOM = FOLDER / "_compare"


def main() -> int:
    """Measure, and write what was found."""
    options = _options()
    if options.render:
        render.write(render.load(ROOM), FOLDER.parent)
        render.write_works(works.load(ROOM), FOLDER.parent)
        return 0
    peers = [peer for peer in PEERS if peer.key in options.peers]
    sets = [each for each in SETS if each.maker in options.sets]
    with temporary_folder(options.dir) as folder:
        settings = Settings(
            folder,
            Venvs(options.venvs, FOLDER.parent, options.torch),
            count=1 if options.quick else options.rounds,
            seconds=0.5 if options.quick else 2.0,
            part=10 if options.quick else 1,
        )
        of_works: render.Found = {}
        for name in options.works:
            of_works |= works.measure([name], settings)
            if not options.quick:
                works.save(of_works, ROOM)
                render.write_works(works.load(ROOM), FOLDER.parent)
        found: render.Found = {}
        for each in sets:  # one after the other: what is measured stays, however this ends
            one = rounds.measure(peers, [each], settings)
            found = render.joined(found, one)
            if options.output:
                render.save(found, options.output)
            if not options.quick:
                known = render.joined(render.load(ROOM), one)
                render.save(known, ROOM)
                render.write(known, FOLDER.parent)
    if of_works:
        print(works.tables(of_works))
    if found:
        print(render.summary(found))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks compare", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the data, one round: does it work at all?"
    )
    parser.add_argument("--rounds", type=int, default=3, help="how many rounds count (default: 3)")
    parser.add_argument(
        "--peers",
        type=_some(peer.key for peer in PEERS),
        default=[peer.key for peer in PEERS],
        help="some of " + ",".join(peer.key for peer in PEERS),
    )
    parser.add_argument(
        "--sets",
        type=_some(each.maker for each in SETS),
        default=[each.maker for each in SETS],
        help="some of " + ",".join(each.maker for each in SETS),
    )
    parser.add_argument(
        "--works",
        type=_some(work.maker for work in works.ALL),
        default=[],
        help="measure pictures that are decoded (jpegs), accelerators that are fed (resnet50,unet3d,...), "
        "compressed text (text): some of these beside --sets",
    )
    parser.add_argument(
        "--torch", default=TORCH, help="what to ask pip for as PyTorch, e.g. a build for processors"
    )
    parser.add_argument("--dir", type=Path, help="where files are made: the disk that is measured")
    parser.add_argument("--venvs", type=Path, default=FOLDER / ".venvs", help="where peers are installed")
    parser.add_argument("--output", type=Path, help="a folder for results.json, besides")
    parser.add_argument(
        "--render", action="store_true", help="measure nothing: write the pages from what was measured"
    )
    return parser.parse_args()


def _some(known):
    allowed = list(known)

    def parse(text: str) -> list[str]:
        chosen = text.split(",") if text else []
        for name in chosen:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"no {name!r}: one of {', '.join(allowed)}")
        return chosen

    return parse


if __name__ == "__main__":
    sys.exit(main())
