"""Measure what a training waits for: pictures that are decoded, accelerators that are fed, text."""

import datetime
import json
import platform
import shutil
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from _compare.figures import Found, shown_number
from _compare.peers import PEERS, TENSORFLOW, TORCH, Peer
from _compare.rounds import Settings, TaskError, machine, run_task
from _compare.venvs import InstallError

_RESULTS: Final = "works.json"
_WORKERS: Final = 2
_SCALE: Final = 10  # an accelerator here takes this part of the records that a real one takes
_DECODERS: Final = ("simplejpeg==1.9.0", "opencv-python-headless==5.0.0.93")
_FEED_S: Final = 900  # a reader that is slow needs long for so many batches
_BY_KEY: Final = {peer.key: peer for peer in PEERS}


@dataclass(frozen=True)
class Work:
    """One table's column.

    Args:
        name: As the table calls it.
        maker: As `_data` calls the records.
        records: How many records.
        batch: Records in a batch.
        rate: The records a second that a real accelerator takes; 0: pictures are decoded instead.
    """

    name: str
    maker: str
    records: int
    batch: int
    rate: float = 0.0


DECODING: Final = Work("JPEG", "jpegs", 4_000, 64)
FEEDING: Final = (
    Work("resnet50, H100: 1,786/s of 115 KB", "resnet50", 6_000, 64, 1_786),
    Work("unet3d, H100: 21.7/s of 146 MB", "unet3d", 12, 1, 21.7),
    Work("cosmoflow, H100: 286/s of 2.8 MB", "cosmoflow", 400, 8, 286),
    Work("retinanet, B200: 505/s of 323 KB", "retinanet", 3_000, 16, 505),
    Work("flux, B200: 36/s of 2.2 MB", "flux", 500, 8, 36),
)
TEXT: Final = Work("text", "text", 6_000, 256)
TARS: Final = Work("tars", "tars", 8_000, 64)
ALL: Final = (DECODING, *FEEDING, TEXT, TARS)
_OURS: Final = (".", *_DECODERS)
DECODERS: Final = (
    Peer("yogadl, 2 threads", "jpeg_threads", "jpeg_yogadl:Threads", _OURS),
    Peer("yogadl, 2 workers", "jpeg_workers", "jpeg_yogadl:Workers", _OURS),
    Peer("torch DataLoader, 2 workers", "jpeg_torch", "jpeg_torch:Loader", (TORCH, *_DECODERS)),
    Peer("SPDL, 2 threads", "jpeg_spdl", "jpeg_spdl:Pipeline", (TORCH, "spdl==0.8.0", *_DECODERS)),
    Peer(
        "torch DataLoader, 2 workers, torchvision",
        "jpeg_torchvision",
        "jpeg_torchvision:Loader",
        ("torchvision==0.29.1",),
    ),
    Peer("tf.data, 2 threads, `decode_and_crop_jpeg`", "jpeg_tf", "jpeg_tf:Decoding", (TENSORFLOW,)),
    Peer("FFCV, 2 threads", "jpeg_ffcv", "jpeg_ffcv:Beton", _BY_KEY["ffcv"].needs),
)
FEEDERS: Final = (
    Peer("yogadl, 2 threads", "feed_threads", "yogadl_core:Threads", (".",)),
    Peer("yogadl, 2 workers", "feed_workers", "yogadl_core:Core", (".",)),
    *(_BY_KEY[key] for key in ("torch_files", "mosaicml", "litdata")),
    Peer("LanceDB", "lancedb", "lancedb_reader:Table", (TORCH, "lancedb==0.40.0")),
)
_ZSTD: Final = (".[zstd]",)
TEXTS: Final = (
    Peer("yogadl, zstd", "text_zstd", "yogadl_core:Zstd", _ZSTD),
    Peer("yogadl, zstd, threads for workers", "text_threads", "yogadl_core:ZstdThreads", _ZSTD),
    Peer("yogadl, zstd, level 9", "text_zstd9", "yogadl_core:Zstd9", _ZSTD),
    Peer("yogadl, raw", "text_raw", "yogadl_core:Core", _ZSTD),
    Peer("MosaicML Streaming, zstd", "text_mosaicml", "mosaicml:Compressed", _BY_KEY["mosaicml"].needs),
    Peer(
        "LitData, zstd",
        "text_litdata",
        "litdata_reader:Compressed",
        (*_BY_KEY["litdata"].needs, "zstd==1.5.7.2"),
    ),
    Peer("HF datasets, Parquet with zstd", "text_hf", "hf_datasets:Parquet", _BY_KEY["hf"].needs),
    Peer("Grain, ArrayRecord", "text_grain", "grain_arrayrecord:Compressed", _BY_KEY["grain"].needs),
)
_AFAR: Final = (".[s3]",)
SHARDS: Final = (
    Peer("yogadl, shuffled as a whole", "tars_global", "tars_yogadl:Global", _AFAR),
    Peer("yogadl, `Blocks`: 1,000 records mixed", "tars_blocks", "tars_yogadl:InBlocks", _AFAR),
    Peer("yogadl, in order", "tars_ordered", "tars_yogadl:InOrder", _AFAR),
    Peer(
        "WebDataset, a buffer of 1,000 records",
        "tars_webdataset",
        "tars_webdataset:Buffered",
        _BY_KEY["webdataset"].needs,
    ),
)
_FAR_S: Final = 5  # times as long: what is read ahead must be little of it


def measure(names: Sequence[str], settings: Settings) -> Found:
    """Return what was found of these works, by maker, as JSON can hold it."""
    found: Found = {}
    for work in ALL:
        if work.maker in names:
            found[work.maker] = _measured(work, settings)
    return found


def _measured(work: Work, settings: Settings) -> Found:
    """Let peers take turns at one work."""
    data = settings.folder / work.maker
    records = max(2 * work.batch, work.records // settings.part)
    peers = _peers_of(work)
    sizes = {"name": work.name, "records": records, "batch": work.batch}
    of_set = run_task(settings, peers[0], "make", maker=work.maker, folder=str(data), **sizes)
    of_peers: dict[str, Any] = {}
    for number in range(settings.count):
        for peer in peers:
            if isinstance(of_peers.get(peer.key), str):
                continue
            made = settings.folder / f"{work.maker}-{peer.key}"
            places = {"reader": peer.reader, "data": str(data), "folder": str(made)}
            try:
                if not number:
                    built = run_task(settings, peer, "build", **places)
                    of_peers[peer.key] = [] if work in (DECODING, *FEEDING) else {"bytes": [built["bytes"]]}
                answer = _turn(work, peer, settings, places)
                _keep(of_peers[peer.key], answer)
            except (InstallError, TaskError) as error:
                answer = of_peers[peer.key] = str(error)
            print(f"  {work.maker}: {peer.key}, {answer}", file=sys.stderr, flush=True)
    shutil.rmtree(data)
    for path in settings.folder.glob(f"{work.maker}-*"):
        shutil.rmtree(path)
    said = {"date": datetime.date.today().isoformat(), "rounds": settings.count}
    if work in (TEXT, TARS):
        said |= of_set
    return said | {"machine": f"{machine()}, Python {platform.python_version()}", "peers": of_peers}


def _peers_of(work: Work) -> tuple[Peer, ...]:
    if work is DECODING:
        return DECODERS
    if work is TEXT:
        return TEXTS
    return SHARDS if work is TARS else FEEDERS


def _turn(work: Work, peer: Peer, settings: Settings, places: dict[str, str]) -> Any:
    """Let a peer do its work once; return the number that counts, or several by name."""
    seconds = settings.seconds
    if work is DECODING:
        return run_task(settings, peer, "decode", **places, workers=_WORKERS, seconds=seconds)["images_per_s"]
    if work in FEEDING:
        turn = {"workers": _WORKERS, "rate": work.rate / _SCALE, "seconds": seconds / 2}  # of each trial
        return run_task(settings, peer, "feed", **places, **turn, limit_s=_FEED_S)["accelerators"]
    found = {
        f"workers={count}": run_task(
            settings,
            peer,
            "read",
            **places,
            workers=count,
            begun=True,
            seconds=seconds * _FAR_S if work is TARS else seconds,
        )["records_per_s"]
        for count in (0, _WORKERS)
    }
    files = [path for path in Path(places["folder"]).rglob("*") if path.is_file()]
    return found | {"bytes_after": sum(path.stat().st_size for path in files)}


def _keep(found: Any, answer: Any) -> None:
    if isinstance(found, list):
        found.append(answer)
        return
    for name, number in answer.items():
        found.setdefault(name, []).append(number)


def save(found: Found, folder: Path) -> None:
    """Keep what was found, beside what is known of other works."""
    known = load(folder) | found
    known = {work.maker: known[work.maker] for work in ALL if work.maker in known}
    (folder / _RESULTS).write_text(json.dumps(known, indent=1) + "\n")


def load(folder: Path) -> Found:
    """Return what is known."""
    path = folder / _RESULTS
    known: Found = json.loads(path.read_text()) if path.exists() else {}
    return known


def tables(found: Found) -> str:
    """Return the tables of all kinds of work, of those that were measured."""
    made = [
        _table_of_decoders(found),
        _table_of_feeders(found),
        _table_of_text(found),
        _table_of_tars(found),
    ]
    return "\n\n".join(filter(None, made))


def _table_of_decoders(found: Found) -> str:
    if DECODING.maker not in found:
        return ""
    of = found[DECODING.maker]
    rows = [f"| {peer.name} | {_shown(of['peers'].get(peer.key))} |" for peer in DECODERS]
    text = (
        "JPEGs of 375 x 500 and 71 KB, to uint8 of 224 x 224 x 3: decode, RandomResizedCrop, flip. Images a "
        f"second, the median of {of['rounds']} interleaved rounds and their range, {of['date']}: "
        f"{of['machine']}. The first four rows decode by simplejpeg and crop by OpenCV, the others by what "
        "each brings. FFCV encodes the pictures itself, at the same quality."
    )
    return "\n".join([text, "", "| | images/s |", "|---|---|", *rows])


def _table_of_feeders(found: Found) -> str:
    fed = [work for work in FEEDING if work.maker in found]
    if not fed:
        return ""
    of = found[fed[0].maker]
    text = (
        "After MLPerf Storage: how many accelerators one process feeds, with 2 workers or threads, so that "
        "they compute during 90 % of the time. An accelerator is a sleep. It takes a "
        f"{_SCALE}th of the records a second that the real one in the head takes, since this machine has "
        "2 cores; a record is an array of the true size, and files lie in memory (tmpfs). A thread takes the "
        "batches two ahead, for every row, as a training's own does that pins them or sends them on. "
        f"Medians of {of['rounds']} interleaved rounds and their range, {of['date']}: {of['machine']}."
    )
    rows = []
    for peer in FEEDERS:
        shown = [_shown(found[work.maker]["peers"].get(peer.key)) for work in fed]
        rows.append(f"| {peer.name} | {' | '.join(shown)} |")
    head = f"| | {' | '.join(work.name for work in fed)} |"
    return "\n".join([text, "", head, f"|---|{'---|' * len(fed)}", *rows])


def _table_of_text(found: Found) -> str:
    if TEXT.maker not in found:
        return ""
    of = found[TEXT.maker]
    text = (
        f"Compressed text: {of['records']:,} source files of Python's library and packages, 0.5 to 50 KB "
        f"each, {of['bytes'] / 1e6:.3g} MB, shuffled, in batches of {TEXT.batch}, each loader with its own "
        "compression. MB on disk as built, and after they were read, since some keep decompressed files; "
        f"records a second, the median of {of['rounds']} interleaved rounds and their range, {of['date']}: "
        f"{of['machine']}."
    )
    rows = []
    for peer in TEXTS:
        got = of["peers"].get(peer.key)
        sizes = [_shown(got)] * 2
        if isinstance(got, dict):
            sizes = [f"{max(got[name]) / 1e6:.3g}" for name in ("bytes", "bytes_after")]
        rows.append(f"| {peer.name} | {' | '.join([*sizes, *_both_rates(got)])} |")
    head = [
        f"| | MB on disk | after reading | records/s, no workers | {_WORKERS} workers |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([text, "", *head, *rows])


def _table_of_tars(found: Found) -> str:
    if TARS.maker not in found:
        return ""
    of = found[TARS.maker]
    text = (
        f"Tar files in a bucket: {of['records']:,} records of 40 to 160 KB, {of['bytes'] / 1e6:.0f} MB, on a "
        f"server of this machine that answers after 20 ms; nothing is kept here. Records a second, the "
        f"median of {of['rounds']} interleaved rounds and their range, {of['date']}: {of['machine']}."
    )
    rows = [f"| {peer.name} | {' | '.join(_both_rates(of['peers'].get(peer.key)))} |" for peer in SHARDS]
    head = ["| | records/s | 2 workers or threads |", "|---|---|---|"]
    return "\n".join([text, "", *head, *rows])


def _both_rates(got: Any) -> list[str]:
    """Return what is shown of the rates without workers and with them, or twice why there are none."""
    return [_shown(got[f"workers={count}"] if isinstance(got, dict) else got) for count in (0, _WORKERS)]


def _shown(values: Any) -> str:
    if not isinstance(values, list):
        return str(values or "not measured").replace("|", "/").replace("\n", " ")[:80]
    low, high = shown_number(min(values)), shown_number(max(values))
    return f"{shown_number(statistics.median(values))} ({low} - {high})"
