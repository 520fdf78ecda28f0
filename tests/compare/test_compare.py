"""The benchmark that compares with peers: what it says is what it found, and a peer that fails is a row."""

import ast
import os
import re
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
BENCHMARKS = CHECKOUT / "benchmarks"
LITTLE = {"name": "{f32[16], i64} x 100", "maker": "vectors", "records": 100, "batch": 16}


def summary(rooms: SimpleNamespace, found: dict) -> str:
    """Return both tables, with spaces that break."""
    return rooms.render.summary(found).replace("\N{NO-BREAK SPACE}", " ")


@pytest.fixture(scope="module")
def rooms() -> SimpleNamespace:
    """The benchmark's own modules, as its command imports them."""
    for folder in (BENCHMARKS / "_compare", BENCHMARKS):
        sys.path.insert(0, str(folder))
    sys.modules.pop("data", None)  # a name that tests of the command have files of, too
    try:
        import data
        from _compare import figures, peers, plot, render, rounds, sets, venvs, works
    finally:
        del sys.path[:2]
        sys.modules.pop("data", None)
    return SimpleNamespace(
        data=data,
        figures=figures,
        peers=peers,
        plot=plot,
        render=render,
        rounds=rounds,
        sets=sets,
        venvs=venvs,
        works=works,
    )


class ThisPython:
    """In place of `Venvs`: every peer has what this process has."""

    def python(self, peer: object) -> Path:
        return Path(sys.executable)


@pytest.fixture
def settings(rooms: SimpleNamespace, tmp_path: Path) -> object:
    return rooms.rounds.Settings(tmp_path, ThisPython(), count=2, seconds=0.05, part=1)


def little(rooms: SimpleNamespace) -> object:
    return rooms.sets.Set(*LITTLE.values())


def measured(rooms: SimpleNamespace, settings: object, *readers: str) -> dict:
    known = [
        rooms.peers.Peer(reader, f"peer{number}", reader, ("numpy",)) for number, reader in enumerate(readers)
    ]
    return rooms.rounds.measure(known, [little(rooms)], settings)


def test_all_numbers_of_yogadl_and_numpy(
    rooms: SimpleNamespace, settings: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms.rounds, "_EXAMINED_SET", "vectors")
    found = measured(rooms, settings, "arrays:InRam", "yogadl_core:Core")
    limit, ours = (found["sets"][0]["peers"][key] for key in ("peer0", "peer1"))
    for metric in ("build_s", "bytes", "first_s_0", "records_per_s_0", "memory_mib_0", "resume_s"):
        assert len(limit[metric]) == len(ours[metric]) == settings.count
        assert all(value > 0 for value in limit[metric] + ours[metric])
    assert ours["is_exact_0"] == ours["is_exact_2"] == limit["is_exact_0"] == [True]
    assert ours["is_same_order_0"] == [True]
    assert ours["is_once"] == ours["is_fresh"] == [True]
    assert limit["records_per_s_2"] == "arrays in RAM have no workers"
    table = summary(rooms, found)
    row = [line for line in table.splitlines() if line.startswith("| yogadl_core")][-1]
    assert row.rstrip(" |").endswith("yes")
    assert "<svg" in rooms.plot.plot(found)


def reader(rooms: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str) -> str:
    """Write a reader among the others for this test alone, by a child of our own that finds it first."""
    folder = tmp_path / "room"
    (folder / "readers").mkdir(parents=True)
    for name in ("child.py", "data.py", "readers/__init__.py", "readers/arrays.py"):
        (folder / name).write_text((BENCHMARKS / "_compare" / name).read_text())
    (folder / "readers" / "odd.py").write_text(
        "import time\nimport numpy as np\nfrom readers.arrays import InRam\n\n\nclass Odd(InRam):\n" + body
    )
    (tmp_path / "_data.py").write_text((BENCHMARKS / "_data.py").read_text())
    monkeypatch.setattr(rooms.rounds, "_CHILD", folder / "child.py")
    return "odd:Odd"


WRONG = {
    "a byte is wrong": (
        "    @staticmethod\n    def columns(batch):\n"
        "        return {'x': batch['x'] + np.float32(1), 'id': batch['id']}\n",
        "is not what the set has",
    ),
    "another dtype": (
        "    @staticmethod\n    def columns(batch):\n"
        "        return {'x': batch['x'], 'id': batch['id'].astype('i4')}\n",
        "is not what the set has",
    ),
    "a field is missing": (
        "    @staticmethod\n    def columns(batch):\n        return {'id': batch['id']}\n",
        "a batch has the fields",
    ),
    "it fails": ("    def epoch(self):\n        raise OSError('no such thing')\n", "no such thing"),
    "it says nothing": ("    def epoch(self):\n        import os\n        os._exit(3)\n", "failed: 3"),
    "it takes too long": ("    def epoch(self):\n        time.sleep(600)\n", "more than 5 s"),
    "it has no such thing": (
        "    def epoch(self):\n        raise NotImplementedError('no epochs at all')\n",
        "no epochs at all",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_peer_that_fails_is_a_row_that_says_why(
    name: str, rooms: SimpleNamespace, settings: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    body, why = WRONG[name]
    monkeypatch.setattr(rooms.rounds, "_TASK_S", 5)
    odd = reader(rooms, monkeypatch, tmp_path, body)
    others = ["arrays:InRam"] if name in ("it fails", "it takes too long") else []  # which are measured
    found = measured(rooms, replace(settings, count=1), odd, *others)
    of = found["sets"][0]["peers"]
    assert why in of["peer0"]["records_per_s_0"]
    assert all(isinstance(of["peer1"]["records_per_s_0"], list) for _ in others)
    assert why in summary(rooms, found)


def test_an_epoch_that_repeats_a_record_is_said(
    rooms: SimpleNamespace, settings: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(rooms.rounds, "_EXAMINED_SET", "vectors")
    body = (
        "    def epoch(self):\n        first = None\n        for batch in super().epoch():\n"
        "            first = first or batch\n            yield batch\n        yield first\n"
    )
    found = measured(rooms, settings, reader(rooms, monkeypatch, tmp_path, body))
    of = found["sets"][0]["peers"]["peer0"]
    assert of["is_once"] == [False]
    assert "no: not each record once" in summary(rooms, found)


def test_an_order_of_blocks_is_not_global(
    rooms: SimpleNamespace, settings: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(rooms.rounds, "_EXAMINED_SET", "vectors")
    body = (
        "    def epoch(self):\n        self._epoch += 1\n"
        "        blocks = np.random.default_rng(self._epoch).permutation(self.data.records // 16 + 1)\n"
        "        for block in blocks:\n"
        "            chosen = np.arange(block * 16, min(self.data.records, block * 16 + 16))\n"
        "            if len(chosen):\n"
        "                yield {name: column[chosen] for name, column in self._columns.items()}\n"
    )
    large = rooms.sets.Set("{f32[16], i64} x 2 k", "vectors", 2_000, 16)
    odd = rooms.peers.Peer("odd", "odd", reader(rooms, monkeypatch, tmp_path, body), ("numpy",))
    found = rooms.rounds.measure([odd], [large], settings)
    of = found["sets"][0]["peers"]["odd"]
    assert of["is_even"] == [False]
    assert of["clumping"][0] > 3
    assert re.search(r"no \(\d+\.\d x\)", summary(rooms, found))


def test_nothing_of_a_peer_lives_on(
    rooms: SimpleNamespace, settings: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(rooms.rounds, "_TASK_S", 3)
    body = (
        "    def epoch(self):\n        import subprocess, sys\n"
        f"        subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', '{tmp_path}'])\n"
        "        time.sleep(600)\n"
    )
    found = measured(rooms, replace(settings, count=1), reader(rooms, monkeypatch, tmp_path, body))
    assert "more than 3 s" in found["sets"][0]["peers"]["peer0"]["records_per_s_0"]
    deadline = time.monotonic() + 20
    while any(str(tmp_path) in command for command in commands() if "time.sleep" in command):
        assert time.monotonic() < deadline


def commands() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found


def test_what_does_not_install_is_a_row_that_says_why(rooms: SimpleNamespace, tmp_path: Path) -> None:
    peer = rooms.peers.Peer("nowhere", "nowhere", "arrays:InRam", (str(tmp_path / "nowhere"),))
    settings = rooms.rounds.Settings(
        tmp_path / "work", rooms.venvs.Venvs(tmp_path / "venvs", CHECKOUT, "torch"), 1, 0.05, 1
    )
    settings.folder.mkdir()
    found = rooms.rounds.measure([peer], [], settings)
    said = {"bytes": 1, "date": "2026-11-23", "machine": "none", "rounds": 1}
    assert found["peers"]["nowhere"]["why"].startswith("does not install: ")
    assert "does not install" in summary(rooms, {**found, "sets": [{**LITTLE, **said, "peers": {}}]})


@pytest.mark.parametrize("columns", [{"id": np.arange(5)}, {"x": np.zeros((5, 2)), "id": np.arange(5)}])
def test_data_are_as_they_were_written(rooms: SimpleNamespace, tmp_path: Path, columns: dict) -> None:
    columns = {**columns, "data": [b"", b"a", b"\0b", b"", b"ccc"]}
    rooms.data.write("name", 5, 2, columns, tmp_path / "set")
    read = rooms.data.Data(tmp_path / "set")
    assert [record["data"] for record in read] == columns["data"]
    assert all(
        np.array_equal(read.columns[name], column) for name, column in columns.items() if name != "data"
    )
    read.check(
        {
            name: [column[3], column[1]] if name == "data" else column[[3, 1]]
            for name, column in columns.items()
        }
    )


def test_tokens_are_known_by_their_first_values(rooms: SimpleNamespace, tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 50_000, (3_000, 8), np.int32)
    rooms.data.write("tokens", len(tokens), 2, {"tokens": tokens}, tmp_path / "set")
    read = rooms.data.Data(tmp_path / "set")
    chosen = np.random.default_rng(1).permutation(len(tokens))
    assert np.array_equal(read.ids({"tokens": tokens[chosen]}), chosen)
    with pytest.raises(ValueError, match="is not what the set has"):
        read.check({"tokens": tokens[:2] + 1})


def test_the_pages_say_what_was_measured(rooms: SimpleNamespace) -> None:
    found = rooms.render.load(BENCHMARKS / "_compare")
    assert not found["is_quick"]
    assert list(found["peers"]) == [peer.key for peer in rooms.peers.PEERS]
    assert [each["name"] for each in found["sets"]] == [each.name for each in rooms.sets.SETS]
    assert all(each["rounds"] >= 3 for each in found["sets"])
    for name, text in rooms.render.pages(found).items():
        page = (CHECKOUT / name).read_text()
        assert (text if name.endswith(".svg") else rooms.render.between(page, text)) == page, (
            f"{name}: run python -m benchmarks compare --render"
        )


def feeding(
    rooms: SimpleNamespace, settings: object, monkeypatch: pytest.MonkeyPatch, rate: float, *readers: str
) -> dict:
    works = rooms.works
    work = works.Work("blobs", "resnet50", 40, 8, rate)
    peers = [rooms.peers.Peer(reader, reader, reader, ("numpy",)) for reader in readers]
    monkeypatch.setattr(works, "ALL", (work,))
    monkeypatch.setattr(works, "FEEDING", (work,))
    monkeypatch.setattr(works, "FEEDERS", tuple(peers))
    return works.measure(["resnet50"], settings)


def test_accelerators_are_fed_as_many_as_the_records_allow(
    rooms: SimpleNamespace, settings: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = feeding(rooms, settings, monkeypatch, 500, "yogadl_core:Threads", "yogadl_core:Nothing")
    of = found["resnet50"]["peers"]
    assert len(of["yogadl_core:Threads"]) == settings.count
    assert all(count > 1 for count in of["yogadl_core:Threads"])
    assert "Nothing" in of["yogadl_core:Nothing"]
    table = rooms.works.tables(found)
    assert "| yogadl_core:Nothing | failed: AttributeError" in table
    found = feeding(rooms, settings, monkeypatch, 1e12, "yogadl_core:Threads")
    assert found["resnet50"]["peers"]["yogadl_core:Threads"] == [0] * settings.count


def test_text_is_read_out_of_what_each_reader_made_of_it(
    rooms: SimpleNamespace, settings: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("zstandard")
    works = rooms.works
    work = works.Work("text", "text", 300, 32)
    readers = ("yogadl_core:Core", "yogadl_core:Zstd", "yogadl_core:Nothing")
    monkeypatch.setattr(works, "TEXT", work)
    monkeypatch.setattr(works, "ALL", (work,))
    peers = [rooms.peers.Peer(reader, reader, reader, ("numpy",)) for reader in readers]
    monkeypatch.setattr(works, "TEXTS", tuple(peers))
    found = works.measure(["text"], settings)
    of_set, of = found["text"], found["text"]["peers"]
    assert of_set["records"] == 300
    assert of_set["bytes"] > 300 * 500
    raw, packed = (of[f"yogadl_core:{name}"] for name in ("Core", "Zstd"))
    assert raw["bytes"][0] > of_set["bytes"] > 2 * packed["bytes"][0]
    assert packed["bytes_after"] == packed["bytes"] * settings.count  # reading leaves no file
    for each in (raw, packed):
        assert all(len(each[f"workers={count}"]) == settings.count for count in (0, 2))
    table = works.tables(found)
    assert "| yogadl_core:Nothing | failed: AttributeError" in table
    size = f"{of_set['bytes'] / 1e6:.3g} MB"
    assert f"300 source files of Python's library and packages, 0.5 to 50 KB each, {size}" in table
    assert f"| yogadl_core:Zstd | {packed['bytes'][0] / 1e6:.3g} |" in table


def test_the_page_has_what_was_found_of_works(rooms: SimpleNamespace) -> None:
    found = rooms.works.load(BENCHMARKS / "_compare")
    makers = [work.maker for work in rooms.works.ALL]
    assert list(found) == makers
    assert all(each["rounds"] >= 3 for each in found.values())
    page = (CHECKOUT / "docs/comparison.md").read_text()
    assert rooms.render.between(page, rooms.works.tables(found), "benchmarks works") == page


def test_the_text_beside_the_table_has_figures_of_the_table() -> None:
    page = (CHECKOUT / "docs/comparison.md").read_text().replace("\N{NO-BREAK SPACE}", " ")
    before, _, rest = page.partition("<!-- benchmarks compare -->")
    table, _, after = rest.partition("<!-- end of benchmarks compare -->")
    after = re.sub("<!-- benchmarks works -->.*<!-- end of benchmarks works -->", "", after, flags=re.DOTALL)
    units = {"k": 1e3, "M": 1e6}
    measured = [float(number) * units[unit] for number, unit in re.findall(r"([\d.]+) ([kM])\b", table)]
    figures = re.findall(r"([\d.]+) ([kM])\b", before + after)
    assert figures
    for number, unit in figures:
        digits = len(number.partition(".")[2])
        found = [round(value / units[unit], digits) for value in measured]
        assert float(number) in found, f"{number} {unit} is in no cell"


def test_a_set_that_is_measured_again_takes_the_place_of_the_old(rooms: SimpleNamespace) -> None:
    names = [each.name for each in rooms.sets.SETS]
    before = {
        "peers": {"numpy": 1, "tf_memory": 1},
        "sets": [{"name": names[3], "at": 1, "peers": {}}, {"name": names[1], "at": 1, "peers": {}}],
    }
    now = {
        "peers": {"numpy": 2},
        "sets": [{"name": names[1], "at": 2, "peers": {}}, {"name": names[0], "at": 2, "peers": {}}],
    }
    found = rooms.render.joined(before, now)
    assert [(each["name"], each["at"]) for each in found["sets"]] == [
        (names[0], 2),
        (names[1], 2),
        (names[3], 1),
    ]
    assert list(found["peers"].items()) == [("numpy", 2), ("tf_memory", 1)]
    assert rooms.render.joined({}, now)["sets"] == rooms.render.joined(now, {**now, "sets": []})["sets"]


@pytest.mark.parametrize("other", [{}, {"machine": "another"}, {"rounds": 1}])
def test_a_peer_that_is_measured_again_keeps_the_others(rooms: SimpleNamespace, other: dict) -> None:
    peers = {"grain": {"name": "Grain"}, "numpy": {"name": "numpy"}}
    said = {**LITTLE, "name": rooms.sets.SETS[0].name, "bytes": 1, "machine": "none", "rounds": 3}
    old = {**said, "date": "then", "peers": {"grain": {"build_s": [1]}, "numpy": {"build_s": [2]}}}
    new = {**said, "date": "now", "peers": {"grain": {"build_s": [3]}}, **other}
    found = rooms.render.joined({"peers": peers, "sets": [old]}, {"peers": peers, "sets": [new]})
    (joined,) = found["sets"]
    is_kept = not other
    assert joined["date"] == "then"
    assert joined["peers"] == {"grain": {"build_s": [3 if is_kept else 1]}, "numpy": {"build_s": [2]}}
    for text in (summary(rooms, {**found, "is_quick": False}), rooms.render.details(found)):
        assert ("Measured apart from the others: Grain (now)." in text) == is_kept
    (whole,) = rooms.render.joined(found, {"peers": peers, "sets": [{**old, "date": "later"}]})["sets"]
    assert whole["date"] == "later"
    assert "apart" not in whole


def test_a_page_without_its_place_is_refused(rooms: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match="the page has no <!-- benchmarks compare -->"):
        rooms.render.between("a page", "a table")


def test_every_peer_says_how_it_is_configured(rooms: SimpleNamespace) -> None:
    assert len({peer.key for peer in rooms.peers.PEERS}) == len(rooms.peers.PEERS)
    for peer in rooms.peers.PEERS:
        module, name = peer.reader.split(":")
        tree = ast.parse((BENCHMARKS / "_compare" / "readers" / f"{module}.py").read_text())
        classes = {node.name: ast.get_docstring(node) for node in tree.body if isinstance(node, ast.ClassDef)}
        assert len(classes[name].split()) > 20, f"{name} says too little"


@pytest.mark.skipif(
    "YOGADL_COMPARE_VENVS" not in os.environ, reason="installs the peers from the registry: tox -e compare"
)
def test_the_command_installs_and_compares(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "compare", "--quick", "--peers", "yogadl"]
    command += ["--sets", "vectors,small_images"]
    places = ["--venvs", os.environ["YOGADL_COMPARE_VENVS"], "--dir", str(tmp_path / "work")]
    pages = [
        CHECKOUT / "README.md",
        CHECKOUT / "docs" / "comparison.md",
        BENCHMARKS / "_compare" / "results.json",
    ]
    before = [page.read_bytes() for page in pages]
    done = subprocess.run([*command, *places], cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith(("| numpy", "| yogadl"))]
    speed, others = rows
    assert "fail" not in speed + others
    assert "install" not in speed + others
    assert speed.count(" / ") == 2  # a rate for each set
    assert others.count("yes") == 2
    assert "A quick run" in done.stdout
    assert [page.read_bytes() for page in pages] == before
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--peers", "nobody"], "no 'nobody': one of numpy"), (["--sets", "none"], "no 'none': one of vectors")],
)
def test_a_name_that_is_none_is_refused(arguments: list[str], said: str) -> None:
    command = [sys.executable, "-m", "benchmarks", "compare", *arguments]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 2
    assert said in done.stderr


def test_scripts_find_what_they_use_of_each_other(rooms: SimpleNamespace) -> None:
    ours = {path.stem: path for path in BENCHMARKS.glob("_*.py")}
    trees = {path.stem: ast.parse(path.read_text()) for path in BENCHMARKS.glob("*.py")}
    used = {
        (node.value.id, node.attr)
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ours
    }
    assert len(used) > 10
    for module, name in used:
        there = {getattr(node, "name", None) for node in trees[module].body}
        there |= {
            alias.name
            for node in trees[module].body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        there |= {
            target.id
            for node in trees[module].body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        assert name in there, f"{module}.{name}"


def test_the_first_page_quotes_what_was_measured(rooms: SimpleNamespace) -> None:
    found = rooms.render.load(BENCHMARKS / "_compare")
    peers = next(each["peers"] for each in found["sets"] if "32,32,3" in each["name"])
    page = " ".join((CHECKOUT / "docs" / "index.md").read_text().split())
    ours, numpys = (rooms.render.rates_of(peers[key])[0] for key in ("yogadl", "numpy"))
    resumes = {key: statistics.median(of["resume_s"]) for key, of in peers.items()}
    others = [seconds for key, seconds in resumes.items() if not key.startswith(("yogadl", "numpy"))]
    shown = rooms.render.shown_number
    assert f"**{shown(ours)} images of 32 x 32 a second**" in page
    assert f"numpy takes {shown(numpys)} from arrays" in page
    assert f"**{resumes['yogadl']:.2f} s from the start of the process" in page
    assert f"The other loaders take {min(others):.2f} to {max(others):.1f} s." in page
    assert f"beside {['eleven', 'twelve', 'thirteen'][len(others) - 11]} other loaders" in page
    afar = re.search(
        r"first batch of a global shuffle of 8 KB records, 20 ms .*? \| (\S+ s) \|",
        (BENCHMARKS / "README.md").read_text(),
    )
    assert f"**{afar[1]} to the first batch of a global shuffle from a bucket**" in page
