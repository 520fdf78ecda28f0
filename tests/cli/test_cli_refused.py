"""What is refused: words, the exit code, and the one line that is said; nothing is written."""

import re
import shlex
import shutil

import pytest
from cli_files import tree_of

import yogadl

CODE = """
def make():
    return [{"number": n, "square": n * n} for n in range(7)]

def told():
    print("called")
    return make()

def cubes():
    return [{"number": 1, "cube": 1}]

def squares(count=11, *, offset=0):
    return make()

def needs(count, split):
    return make()

def breaks():
    yield from range(40)
    raise KeyError("no image\\nhere")

def leaves():
    raise SystemExit("enough")

def unsuitable():
    return [{"x": 1}, {"x": None}]

def iterated():
    yield from make()

class Items:
    pass

LIST = [1, 2, 3]
"""
BROKEN = {
    "parenthesis": "def make(:\n  pass",
    "module": "\nimport nonsense_module",
    "zero": "x = 1 / 0",
    "exits": "import sys\nsys.exit(3)",
    "nul": "\0",
    "other": "def other(): pass",
    "empty": "",
}
FORMATS = (
    "can't be told from ...(--format), one of arrow, jsonl, mds, megatron, npy, parquet, tfrecord, webdataset"
)
NO_FUNCTION = "give a file and a function, as in data.py:squares"
NO_TASK = "counted from 1, as in 3/100"
NO_NAME = "give ID VERSION, or ID@TAG"

# With `-s STORAGE` at the end.
REFUSED = [
    # Words too many, too few or of no sense.
    ("head a 1 --bogus", 2, "; see `yogadl head -h`"),
    ("head a 1 2", 2, "; see `yogadl head -h`"),
    ("head a", 2, "; see `yogadl head -h`"),
    ("ls --nonsense", 2, "-h`"),
    ("info", 2, "-h`"),
    ("verify --al", 2, "--al"),  # a script would break when another option of that beginning comes
    ("export squares@stable", 2, "give ID VERSION FOLDER, or ID@TAG FOLDER"),
    ("push squares@stable", 2, "yogadl push ID VERSION TARGET, or ID@TAG TARGET"),
    ("explain squares 1", 2, "give ID VERSION OTHER, or ID@TAG OTHER"),
    ("export squares@stable 1 out", 2, "both ID and VERSION: leave '1' out"),
    ("head squares@stable 1", 2, "both ID and VERSION: leave '1' out"),
    *((f"info {name}", 2, "") for name in ("squares@", "@stable", "@")),
    *((f"info {name}", 2, NO_NAME) for name in ("squares", "me@home")),
    *((f"verify {words}", 2, "give ID and VERSION, or --all, or ID --all")
      for words in ("", "squares", "squares 1 --all")),
    *((f"refresh {words}", 2, "") for words in ("d 1", "d", "d@1")),
    ("push squares 1", 2, ""),
    ("push squares 1 x --to y", 2, ""),
    ("doctor .", 2, ""),  # says twice which storage
    *((f"report squares 1 {words}", 2, "") for words in ("", "-o", "-o x --seed one", "-o x --seed")),
    ("report squares 1 -o - --json", 2, "give -o a file"),
    # Numbers, sizes and other values.
    *((f"head squares 1 -n{count}", 2, "give a number of records, 1 or more")
      for count in ("0", "-1", "many", "1.5")),
    *((f"bench squares 1 {words}", 2, "") for words in ("--batch 0", "--seconds 0", "--seconds nan")),
    *((f"prune --grace={days}", 2, "give a number of days, 0 or more")
      for days in ("-1", "nan", "inf", "week")),
    *((f"build data.py:make d 1 --part-bytes={text}", 2, "give a size such as 256MB or 1GiB")
      for text in ("0", "-1", "MB", "1XB", "1e9", "''", "0.1")),
    *((f"build data.py:make d 1 --workers={text}", 2, "give a number of workers, 0 or more")
      for text in ("-1", "1.5", "two")),
    *((f"build data.py:make d 1 --arg {text}", 2, "give name=value, as in count=1000")
      for text in ("count", "=1", "'a b=1'", "1=1")),
    *((f"build data.py:make d 1 --task={text}", 2, NO_TASK)
      for text in ("0/3", "4/3", "3", "/", "1/0", "a/b", "1/", "-1/3", "1/2/3", "²/3")),
    *((f"build {text} d 1", 2, NO_FUNCTION)
      for text in ("data.py", "data.py:", ":squares", "'data.py:no name'", "data.py:a..b", "''")),
    *((f"ls --foreign {url}", 2, "give a URL, such as s3://bucket/prefix")
      for url in ("raw", "/raw", "s3:/b", "://b", "s3://")),
    *((f"adopt d 1 a.tfrecord --feature '{text}'", 2, "argument --feature: ")
      for text in ("a", "=int64", "a=", "a=float64", "a=bytes[]", "a=int64[,]", "a=int64[3", "a=int64[x]",
                   "a=int64[-1]", "a=nonsense", "a=int64[1 2]")),
    ("adopt d 1 a.tfrecord --feature a=int64 --feature a=int64", 2, "--feature names a feature twice"),
    ("build data.py:make d 1 --missing x=1 --missing x=2", 2, ""),
    ("build data.py:make d 1 --missing x", 2, ""),
    ("export squares 1 out --format csv", 2, ""),
    # Options that make no sense here, or together.
    *((f"{command} {words}", 2, "") for command in ("build data.py:make d 1", "adopt d 1 a.tar")
      for words in ("--task 1/2 --commit", "--run x", "--task 1/2 --workers 2")),
    *((f"build data.py:make d 1 {words} --on-error skip", 2, "") for words in ("--task 1/2", "--commit")),
    ("build data.py:make squares 1 --task 1/1 --replace", 2, "--replace by tasks needs --run"),
    ("adopt squares 1 a.tar --task 1/1 --replace", 2, ""),
    *((f"adopt d 1 a.tar --base 0 {words}", 2,
       "--base is for an append in one call: leave out --task and --commit")
      for words in ("--task 1/2", "--commit")),
    ("adopt d 1 a.tar --feature a=int64", 1, ": no option of the format '"),
    ("adopt d 1 a.tar --format jsonl --missing empty", 1, ": no option of the format '"),
    ("ls --profile p", 2, "yogadl: --profile: "),
    ("ls --endpoint-url http://store:9000", 2, "yogadl: --endpoint-url: "),
    ("push squares 1 t --endpoint-url http://store:9000", 2, "yogadl: --endpoint-url: "),
    ("prune --unfinished --grace 1", 2, ""),
    ("recompress squares 1 2", 2, ""),
    # What is not there, or may not be.
    *((f"{command} squares 3", 1, "there are the versions ['1', '1+1', '2']")
      for command in ("info", "head", "verify", "bench", "rm", "delete")),
    ("info ../up 1", 2, ""),
    ("rm squares ''", 1, ""),
    ("info squares@absent", 1, "there is no 'squares' version 'absent'"),
    ("info absent@stable", 1, "there is no 'absent' version 'stable'"),
    ("rm squares@stable", 2, ""),
    ("rm squares stable", 1, ""),
    ("rm squares 1+1", 1, ""),  # which has a tag
    ("tag squares 1 newer", 2, "1 is a version; you want `yogadl tag squares newer 1`"),
    ("tag squares 1 2", 1, "a tag can't have that name"),
    *((f"tags {words}", 1, f"there is no dataset '{words.split()[0]}' in ...'squares'")
      for words in ("absent", "squares@stable", "absent --json")),
    ("ls cubes", 1, "there is no dataset 'cubes'...'squares'"),
    ("verify cubes --all", 1, ""),
    ("undelete squares 1", 1, ""),
    ("export squares 1 .", 1, ""),
    ("export squares 3 out", 1, ""),
    ("export squares 1 out --field cube", 1, ""),
    ("export more/texts 2024-05 out", 1, "'text'"),
    ("report squares 1 -o data.py/page.html", 1, "page.html"),
    ("refresh squares 1 3", 1, "was not adopted from foreign files"),
    ("pull squares 1", 1, "give --to, the storage to copy it to"),
    ("import-014 nothing --trust-pickle", 1, "cache.mdb"),
    ("adopt d 1 a.parquet", 1, "a.parquet is empty"),
    ("adopt d 1 no.tar", 1, "there is no file ...no.tar: check the path"),
    *((f"adopt d 1 {names}", 1, FORMATS)
      for names in ("a.bin", "a.txt", "a.bin tokens.bin", "t*")),
    ("append data.py:told squares 4 7", 1, "there is no 'squares' version '7'"),
    ("append data.py:told squares 1 1", 1, "can't be appended to itself"),
    ("append data.py:told squares auto 1", 1, "'auto' works only with storage.cacheable"),
    ("append data.py:cubes squares 4 1", 1, "the field 'square' (int64) is missing in the new records"),
    ("append data.py:absent squares 4 1", 1, "has no function absent"),
    *((f"build data.py:make 'a\u202eb' 1 {words}", 1, "an invisible character")
      for words in ("", "--replace")),
    # What can't be built.
    ("build data.py:square d 1", 1, "has no function square; there are make, told, cubes,"),
    ("build data.py:Items.many d 1", 1, "has no function Items.many; there are"),
    ("build data.py:LIST d 1", 1, "LIST of data.py is not a function, but a list"),
    ("build data.py:needs d 1", 1,
     "needs(count, split): missing a required argument: 'count'; arguments are given as --arg"),
    ("build data.py:squares d 1 --arg size=1", 1,
     "squares(count=11, *, offset=0): got an unexpected keyword argument 'size'"),
    ("build data.py:unsuitable d 1", 1, "record 1: field 'x' is None"),
    ("build data.py:leaves d 1", 1, "yogadl: data.py, line 23: SystemExit: enough"),
    ("build data.py:breaks d 1", 1,
     "yogadl: data.py, line 20: KeyError: 'no image\\nhere' (while reading record 40 of the source); "
     "--traceback shows the whole traceback"),
    ("build data.py:iterated d 1 --task 1/2", 1, "yogadl.partitioned"),
    ("build parenthesis.py:make d 1", 1, "parenthesis.py, line 1: SyntaxError: "),
    ("build module.py:make d 1", 1, "module.py, line 2: ModuleNotFoundError: No module named"),
    ("build zero.py:make d 1", 1, "zero.py, line 1: ZeroDivisionError: division by zero"),
    ("build exits.py:make d 1", 1, "exits.py, line 2: SystemExit: 3"),
    ("build nul.py:make d 1", 1, "nul.py"),
    ("build other.py:make d 1", 1, "other.py has no function make; there are other"),
    ("build empty.py:make d 1", 1, "empty.py has no function make; it has none at all"),
    *((f"build {name}:make d 1", 1, "") for name in ("missing.py", "caches", "a.txt")),
]  # fmt: skip

# As typed, in the folder above the storage, `caches`.
TYPED = [
    ("-s", 2, "COMMAND; see `yogadl -h`"),
    ("lss squares 1", 2, "yogadl: there is no command 'lss'; you want `yogadl ls`; `yogadl -h` lists all"),
    ("remove squares 1", 2, "there is no command 'remove'; "),
    ("zzzz squares 1", 2, "there is no command 'zzzz'; `yogadl -h` lists all"),
    ("'' squares 1", 2, "there is no command ''; `yogadl -h` lists all"),
    *((f"demo --records={count}", 2, "give a number from 1,000 to 500,000")
      for count in ("999", "500001", "-1", "many", "1e4", "")),
    ("completion nonsense", 2, ""),
    # Nothing that steers a terminal is printed.
    *((words, code, r"\x1b[31m") for words, code in [
        ("\x1b[31m", 2), ("ls a \x1b[31m", 2), ("head a 1 -n \x1b[31m", 2), ("head \x1b[31m 1 -s caches", 1),
        ("ls -s \x1b[31m", 1)]),
    # Options that would do nothing.
    *((f"{words} {option} {value}", 2, f"yogadl: {option}: ") for words, option, value in [
        ("ls -s caches", "--mirror", "m"), ("ls -s caches", "--mirror-fill", "never"),
        ("ls -s file:///b", "--profile", "p"), ("ls -s s3://b", "--shared", ""),
        ("doctor file:///b", "--region", "r"),
        ("push a 1 t -s s3://b", "--to-endpoint-url", "http://store:9000"),
        ("pull a 1 -s s3://b --to t", "--to-anonymous", ""), ("pull a 1 -s s3://b", "--to-region", "r")]),
    ("pull squares 1 -s file://{root} --materialize", 2, "--materialize is for --to"),
    # Storages that are none.
    *((f"{words} -s misspelt", 1, "yogadl: the storage misspelt is not there; say which one with -s STORAGE")
      for words in ("ls", "info squares 1", "head squares 1", "verify squares 1", "rm a 1", "undelete a 1",
                    "prune")),
    ("append data.py:make d 2 1 -s misspelt", 1, ""),
    ("ls -s data.py", 1, "is a file, not a folder of caches"),
    ("ls -s ftp://host/caches", 1, "ftp://"),
    ("build data.py:make d 1 -s data.py/caches", 1, ""),
    *((f"ls '{url}'", 2, f"{url} is the location of a storage...`yogadl ls -s {shown}` lists the datasets")
      for url, shown in [("s3://bucket/a prefix", "'s3://bucket/a prefix'"), ("gs://bucket", "gs://bucket"),
                         ("file:///tmp/x", "file:///tmp/x")]),
    ("ls caches", 2, "`yogadl ls -s caches` lists the datasets there"),
    # Paths in the place of ids: the command is answered that was meant.
    *((f"head {given}{rest}", 2, f"is a path, not a dataset's id; you want `yogadl head {meant}`")
      for rest in ("", " -s {root}") for given, meant in [
        ("{root}/squares", "squares VERSION -s {root}"), ("{root}/squares/", "squares VERSION -s {root}"),
        ("{root}/squares/2", "squares 2 -s {root}"),
        ("{root}/squares/versions/2.json", "squares 2 -s {root}"),
        ("{root}/squares/parts", "squares VERSION -s {root}"),
        ("{root}/more/texts", "texts 2024-05 -s {root}/more")]),
    *((words, 2, f"is a path, not a dataset's id; you want `yogadl {meant} -s {{root}}`")
      for words, meant in [
        ("head {root}/squares 1", "head squares 1"),
        ("rm {root}/squares/1", "rm squares 1"),
        ("rm {root}/squares", "rm squares VERSION"),
        ("delete {root}/squares", "delete squares VERSION"),
        ("tag {root}/squares stable", "tag squares stable VERSION"),
        ("tag {root}/squares/2 stable", "tag squares stable 2"),
        ("tag {root}/squares stable 1", "tag squares stable 1"),
        ("explain {root}/squares 1 2", "explain squares 1 2"),
        ("export {root}/squares/2 out", "export squares 2 out"),
        ("export {root}/squares 2 out", "export squares 2 out"),
        ("build data.py:make {root}/squares 3", "build data.py:make squares 3"),
        ("build data.py:make {root}/squares", "build data.py:make squares VERSION"),
        ("info caches/squares", "info squares VERSION"),
        ("adopt caches/squares 2 a.tar b.tar", "adopt squares 2 a.tar b.tar")]),
    *((words, 2, f"`yogadl ls -s {{root}}` lists ..., then `yogadl {words.split()[0]} ID ... -s {{root}}`")
      for words in ("info {root} 1", "build data.py:f {root} 1", "rm {root} 1", "tag {root} stable 1",
                    "explain {root} 1 2")),
    *((f"info {path} 1", 2, f"{path} is a path, not a dataset's id")
      for path in ("/nowhere/at/all", "./nothing", "../nothing", ".")),
    ("info caches/squares 1 -s caches", 1, ""),  # an id that is not there
]  # fmt: skip


@pytest.fixture(scope="module")
def here(built, tmp_path_factory):
    """A folder with a storage that has tags, code, and files that can't be adopted."""
    folder = tmp_path_factory.mktemp("here")
    shutil.copytree(built, folder / "caches")
    storage = yogadl.open_storage(folder / "caches")
    storage.append({"number": [1], "square": [1]}, "squares", "1+1", base_version="1")
    storage.tag("squares", "stable", "1+1")
    storage.submit([1, 2], "me@home", "1")
    for name, code in {"data": CODE, **BROKEN}.items():
        (folder / f"{name}.py").write_text(code)
    for name in ("a.bin", "a.txt", "a.parquet", "tokens.bin", "tokens.idx"):
        (folder / name).write_bytes(b"")
    return folder


def check(yoga, here, words, code, says):
    before = tree_of(here)
    ended = yoga(*words)
    assert (ended.code, ended.out, ended.err.count("\n")) == (code, "", 1), ended
    assert ended.err.startswith("yogadl: ")
    assert "\x1b" not in ended.err
    pattern = ".*".join(map(re.escape, says.replace("{root}", str(here / "caches")).split("...")))
    assert re.search(pattern, ended.err), ended.err
    versions = [{path for path in tree if path.parent.name == "versions"} for tree in (before, tree_of(here))]
    assert versions[0] == versions[1]
    assert code == 1 or tree_of(here) == before


@pytest.fixture(autouse=True)
def in_the_folder(here, forgets_modules, monkeypatch):
    monkeypatch.chdir(here)


@pytest.mark.parametrize(("words", "code", "says"), REFUSED)
def test_it_is_refused_in_one_line(yoga, here, words, code, says):
    check(yoga, here, [*shlex.split(words), "-s", here / "caches"], code, says)


@pytest.mark.parametrize(("words", "code", "says"), TYPED)
def test_it_is_refused_as_typed(yoga, here, words, code, says):
    check(yoga, here, shlex.split(words.replace("{root}", str(here / "caches"))), code, says)


@pytest.mark.parametrize("name", ["a\nb", "x" * 300, "x/" * 3000, "\0", ""], ids=lambda name: repr(name)[:9])
def test_what_is_neither_a_path_nor_an_id_is_one_line(yoga, here, name):
    ended = yoga("info", name, "1", "-s", here / "caches")
    assert (ended.code in (1, 2), ended.err.count("\n")) == (True, 1)


def test_a_path_of_nobodys_home_is_said(yoga):
    ended = yoga("info", "~/nothing-here/x/", "1")
    assert ended.code in (1, 2)


def test_the_command_that_is_answered_works(yoga, here):
    answered = re.search("`yogadl (.*)`", yoga("head", here / "caches/squares/2").err)
    assert yoga(*answered[1].split()).code == 0


def test_in_a_storage_a_path_may_be_an_id(yoga, here, monkeypatch):
    monkeypatch.chdir(here / "caches")
    assert yoga("info", "more/texts", "2024-05").code == yoga("info", "me@home", "1").code == 0


def test_all_of_an_error_is_shown_by_wish(yoga, here):
    ended = yoga("build", "data.py:breaks", "d", "1", "--traceback", "-s", here / "caches").ends(1)
    assert ended.err.startswith("Traceback (most recent call last):\n")
    last = ended.err.splitlines()[-1]
    assert last.startswith("yogadl: ")
    assert "--traceback" not in last
