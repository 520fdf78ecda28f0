"""Write what was found as a table, a plot and a page, in README.md and docs/."""

import ast
import json
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from _compare import works
from _compare.figures import Found, rates_of, shown_number
from _compare.peers import PEERS
from _compare.plot import plot
from _compare.sets import SETS

_RESULTS: Final = "results.json"
_READERS: Final = Path(__file__).resolve().parent / "readers"
_REFERENCE: Final = "numpy"
# What the README shows; docs/comparison.md shows all.
_MET_MOST: Final = (
    "numpy",
    "yogadl",
    "yogadl_torch",
    "yogadl_tf",
    "tf_cached",
    "torch_files",
    "torch_ram",
    "grain",
    "mosaicml",
    "hf",
)
_IN_SHORT: Final = {
    "{u8[32,32,3], i64}": "images of 32 x 32",
    "{i32[2048]}": "rows of 2,048 tokens",
    "{bytes 40-160 KB, i64}": "files of 40 - 160 KB",
}


def save(found: Found, folder: Path) -> None:
    """Keep what was found, for `load`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _RESULTS).write_text(json.dumps(found, indent=1) + "\n")


def load(folder: Path) -> Found:
    """Return what was found last."""
    found: Found = json.loads((folder / _RESULTS).read_text())
    return found


def joined(before: Found, found: Found) -> Found:
    """Return what was found before, with the sets and the versions of what was found now.

    A set that only some peers read now keeps what was found of the others, as often on such a machine; one
    that was found elsewhere stays as it was.
    """
    sets = {each["name"]: each for each in before.get("sets", [])}
    for now in found["sets"]:
        old = sets.get(now["name"], now)
        if set(old["peers"]) <= set(now["peers"]):
            sets[now["name"]] = now
        elif all(old[what] == now[what] for what in ("machine", "rounds")):
            apart = old.get("apart", {}) | dict.fromkeys(now["peers"], now["date"])
            sets[now["name"]] = {**old, "peers": {**old["peers"], **now["peers"]}, "apart": apart}
    peers = {**before.get("peers", {}), **found["peers"]}
    return {
        **found,
        "peers": {peer.key: peers[peer.key] for peer in PEERS if peer.key in peers},
        "sets": [sets[each.name] for each in SETS if each.name in sets],
    }


def write(found: Found, checkout: Path) -> None:
    """Write it into the pages that show it, each between two comments, and draw the plot."""
    for name, text in pages(found).items():
        page = checkout / name
        page.write_text(text if name.endswith(".svg") else between(page.read_text(), text))


def pages(found: Found) -> dict[str, str]:
    """Return what each page says of it; of the plot, the whole file."""
    return {
        "README.md": short(found),
        "docs/comparison.md": summary(found),
        "docs/peers.md": details(found),
        "docs/pictures/compare.svg": plot(found),
    }


def write_works(found: Found, checkout: Path) -> None:
    """Write the tables of works into the page that shows them."""
    page = checkout / "docs/comparison.md"
    page.write_text(between(page.read_text(), works.tables(found), "benchmarks works"))


def between(page: str, text: str, what: str = "benchmarks compare") -> str:
    """Put a text between the comments of a page where it belongs."""
    begin, end = f"<!-- {what} -->", f"<!-- end of {what} -->"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    if not rest or not after:
        raise ValueError(f"the page has no {begin} ... {end}")
    return f"{before}{begin}\n{text}\n{end}{after}"


def summary(found: Found) -> str:
    """Return two tables with a row for each peer: of speed, and of all else."""
    sets = found["sets"]
    looked = next((each for each in sets if "32,32,3" in each["name"]), sets[0])
    speeds = [["", *(f"`{each['name'].split(' x ')[0]}`" for each in sets)]]
    others = [
        ["", "first batch", "resume at 50 %", "build", "on disk", "memory", "global shuffle", "exact resume"]
    ]
    keys = list(found["peers"])
    best = [
        [max(column, default=0.0) for column in zip(*_pairs(keys, each["peers"]), strict=True)]
        for each in sets
    ]
    for key in keys:
        peer = found["peers"][key]
        if "why" in peer:
            for rows in (speeds, others):
                rows.append([peer["name"], peer["why"], *[""] * (len(rows[0]) - 2)])
            continue
        tops = [[0.0, 0.0]] * len(sets) if key == _REFERENCE else best
        rates = (_rates(each["peers"].get(key, {}), top) for each, top in zip(sets, tops, strict=True))
        speeds.append([peer["name"], *rates])
        of = looked["peers"].get(key, {})
        row = [
            _value(of, "first_s_0", _seconds),
            _value(of, "resume_s", _seconds),
            _value(of, "build_s", _seconds),
            _value(of, "bytes", lambda size: f"{size / looked['bytes']:.2f} x"),
            _value(of, "memory_mib_0", _mib),
            _is_global(of),
            _is_exact(of),
        ]
        others.append([peer["name"], *row])
    quick = " **A quick run: these numbers mean little.**" if found["is_quick"] else ""
    return "\n\n".join([_table(speeds), _table(others), _legend(found, looked) + quick])


def short(found: Found) -> str:
    """Return one table of the peers that are met most, with the sets of one field that say most."""
    sets = [each for each in found["sets"] if each["name"].split(" x ")[0] in _IN_SHORT]
    looked = sets[0]
    heads = [_IN_SHORT[each["name"].split(" x ")[0]] for each in sets]
    rows = [["", *heads, "first batch", "resume at 50 %", "memory", "global shuffle", "exact resume"]]
    for key in found["peers"]:
        if key in _MET_MOST and "why" not in found["peers"][key]:
            of = looked["peers"].get(key, {})
            fastest = (max(rates_of(each["peers"].get(key, {}))) for each in sets)
            rates = [shown_number(rate) if rate else "-" for rate in fastest]
            others = [_value(of, "first_s_0", _seconds), _value(of, "resume_s", _seconds)]
            others += [_value(of, "memory_mib_0", _mib), _is_global(of), _is_exact(of)]
            rows.append([found["peers"][key]["name"], *rates, *others])
    return (
        f"{_table(rows)}\n\nShuffled records a second, without workers or with two, whichever is faster; "
        "seconds from the start of the process to the first batch, and to the next one in the middle of an "
        'epoch; memory without the page cache. "no (1.2 x)": the records of a batch are 1.2 times as alike '
        'as in a random order. "by reading again": all that came before is read again. '
        f"Medians of {looked['rounds']} interleaved rounds, {looked['date']}: {looked['machine']}."
        + _apart(found, looked)
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def _legend(found: Found, looked: Found) -> str:
    there = [each["name"] for each in found["sets"]]
    missing = ", ".join(f"`{each.name}`" for each in SETS if each.name not in there)
    return (
        "The first table has shuffled records a second: without workers / with two worker processes, the "
        "fastest peer in bold. These records need no work but reading, so workers often cost more than they "
        f"bring. The second table is of `{looked['name']}`: seconds from the start of the process to the "
        "first batch; the same from a checkpoint in the middle of an epoch; seconds to build; size on disk "
        'against the records\'; memory without the page cache. "No (15 x)": the records of a batch are 15 '
        "times more alike than in a random order. Each number is the median of "
        f"{looked['rounds']} interleaved rounds, {looked['date']}: {looked['machine']}."
        + _apart(found, looked)
        + (f" Not measured yet: {missing}." if missing else "")
    )


def _apart(found: Found, of: Found) -> str:
    """Name the peers that did not take turns with the others."""
    named = [f"{found['peers'][key]['name']} ({date})" for key, date in of.get("apart", {}).items()]
    return f" Measured apart from the others: {', '.join(named)}." if named else ""


def details(found: Found) -> str:
    """Return the page's part: how each peer is configured, and each set's own table, with ranges."""
    said = ["## How each is configured", ""]
    for peer in PEERS:
        seen = found["peers"].get(peer.key, {})
        versions = ", ".join(f"{name} {version}" for name, version in seen.get("versions", {}).items())
        said += [f"### {peer.name}", "", _docstring(peer.reader), ""]
        said += [f"Measured: {versions}." if versions else f"Not measured: {seen.get('why', 'not run')}.", ""]
    said += [
        "## All numbers",
        "",
        "The median of the rounds, and in brackets the least and the greatest.",
        "",
    ]
    for each in found["sets"]:
        said += _set_table(found, each)
    return "\n".join(said).rstrip()


def _set_table(found: Found, each: Found) -> list[str]:
    records, mib = each["records"], each["bytes"] / 2**20
    lines = [
        f"### `{each['name']}`",
        "",
        f"{records:,} records, {mib:,.0f} MiB, batches of {each['batch']}; {each['rounds']} rounds, "
        f"{each['date']}: {each['machine']}.{_apart(found, each)}",
        "",
    ]
    lines += ["| | " + " | ".join(head for head, _, _ in _COLUMNS) + " |", "|---" * (len(_COLUMNS) + 1) + "|"]
    for key, peer in found["peers"].items():
        if "why" not in peer:
            cells = [
                _value(each["peers"].get(key, {}), metric, shown, is_range=True)
                for _, metric, shown in _COLUMNS
            ]
            lines.append("| " + " | ".join(map(_cell, [peer["name"], *cells])) + " |")
    return [*lines, ""]


def _docstring(reader: str) -> str:
    """Return a reader's docstring, read without importing its peer."""
    module, name = reader.split(":")
    tree = ast.parse((_READERS / f"{module}.py").read_text())
    said = next(
        ast.get_docstring(node) for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name
    )
    return (said or "").replace("\n\nArgs:", "\n")


def _pairs(keys: list[str], peers: Found) -> list[tuple[float, float]]:
    """Return the rates of all but the one that is no peer."""
    return [rates_of(peers.get(key, {})) for key in keys if key != _REFERENCE]


def _rates(of: Found, best: Sequence[float]) -> str:
    """Return both rates, those in bold that are the best."""
    if isinstance(why := of.get("build_s"), str):
        return why
    rates = rates_of(of)
    if isinstance(why := of.get("records_per_s_0"), str) and not rates[1]:
        return why
    texts = [
        (f"**{shown_number(rate)}**" if rate == top else shown_number(rate)) if rate else "-"
        for rate, top in zip(rates, best, strict=True)
    ]
    return " / ".join(texts)


def _value(of: Found, metric: str, shown: Callable[[Any], str], is_range: bool = False) -> str:
    values = of.get(metric)
    if not isinstance(values, list):
        return str(values) if values and is_range else "-"
    text = shown(statistics.median(values))
    return f"{text} ({shown(min(values))} - {shown(max(values))})" if is_range and len(values) > 1 else text


def _is_global(of: Found) -> str:
    if not isinstance(of.get("clumping"), list):
        return "-"
    clumping, reach = of["clumping"][0], of["reach"][0]
    if not of["is_once"][0]:
        return "no: not each record once"
    if not of["is_fresh"][0]:
        return "no: the same each epoch"
    if of["is_even"][0]:
        return "yes"
    return f"no ({max(clumping, 1 / max(reach, 0.001)):.1f} x)"


def _is_exact(of: Found) -> str:
    exact = {}
    for workers in (0, 2):
        found = of.get(f"is_exact_{workers}")
        if isinstance(found, list):
            exact[workers] = found[0]
    if not any(exact.values()):
        return "no" if exact else "-"
    how = "yes" if of["is_checkpoint_0"][0] else "yes, by reading again"
    but = {(False, True): "; only with workers", (True, False): "; not with workers"}
    return how + but.get(tuple(exact.values()), "")


def _cell(text: str) -> str:
    text = re.sub(r"\s+", " ", text).replace("|", "\\|")
    return re.sub(r"(?<=\d) (?=(?:M|k|s|x|MiB)\b)", "\N{NO-BREAK SPACE}", text)


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 9.95 else f"{value:.1f} s" if value >= 0.995 else f"{value:.2f} s"


def _mib(value: float) -> str:
    return f"{value:,.0f} MiB"


def _mebibytes(value: float) -> str:
    return _mib(value / 2**20)


# Head, metric, and how a number of it is written.
_COLUMNS: Final[tuple[tuple[str, str, Callable[[float], str]], ...]] = (
    ("records/s", "records_per_s_0", shown_number),
    ("records/s, 2 workers", "records_per_s_2", shown_number),
    ("first batch", "first_s_0", _seconds),
    ("first batch, 2 workers", "first_s_2", _seconds),
    ("resume at 50 %", "resume_s", _seconds),
    ("build", "build_s", _seconds),
    ("on disk", "bytes", _mebibytes),
    ("memory", "memory_mib_0", _mib),
    ("memory, 2 workers", "memory_mib_2", _mib),
)
