"""What others have written is shown without steering what is around it, and secrets are not shown."""

import ast
import logging
import pickle
import traceback
from pathlib import Path

import pytest
from inside import masked, printable, without_secrets

import yogadl
from yogadl import cli, errors
from yogadl.errors import CacheFormatError, ConfigurationError, DatasetNotFoundError, StorageError

SECRET = "hunter2"
BIDI = "\u202e\u2066\u200b\u2028\u061c\ufeff\x1b\x07\x85"


@pytest.mark.parametrize("character", BIDI)
def test_what_is_not_seen_is_escaped(character):
    assert printable(f"a{character}b").isascii()
    assert printable(f"a{character}b", kept=character) == f"a{character}b"
    assert printable("Grüße, 日本") == "Grüße, 日本"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:hunter2@host:9000/x", "http://***@host:9000/x"),
        ("(https://hunter2@host)", "(https://***@host)"),
        ("at s3://b/p?sig=hunter2&x=1 now", "at s3://b/p?*** now"),
        ("'https://h/x#hunter2'", "'https://h/x?***'"),
        ("can't read s3://b/a@b", "can't read s3://b/a@b"),
        ("why? http://host/x", "why? http://host/x"),
        ("user@host, what?", "user@host, what?"),
        ("Invalid endpoint: user:hunter2@host", "Invalid endpoint: ***@host"),
        ("('user:hunter2@host:9')", "('***@host:9')"),
        ("at 12:30, a@b", "at 12:30, a@b"),
    ],
)
def test_secrets_of_urls_are_not_shown(text, shown):
    assert without_secrets(text) == shown


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://user:hunter2@127.0.0.1:9",
        "http://hunter2@127.0.0.1:9",
        "http://127.0.0.1:9/?key=hunter2",
        "http://127.0.0.1:9/#hunter2",
        "user:hunter2@127.0.0.1:9",
        "http://user:hun/hunter2@127.0.0.1:9",
        "ftp://user:hunter2@127.0.0.1",
    ],
)
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_an_endpoint_with_a_secret_is_refused_without_it(scheme, endpoint):
    with pytest.raises(ConfigurationError, match=r"endpoint_url (is not|has more than)") as caught:
        yogadl.open_storage(f"{scheme}://bucket", endpoint_url=endpoint)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "location",
    [
        "s3://user:hunter2@bucket/prefix",
        "s3://bucket/prefix?key=hunter2",
        "s3://bucket?key=hunter2",
        "gs://bucket/prefix#hunter2",
        "https://user:hunter2@host/bucket",
        "https://host/bucket?sig=hunter2",
        "S3://user:hunter2@bucket",
        "s3:bucket?key=hunter2",
    ],
)
def test_a_location_with_a_secret_is_refused_without_it(location, capsys, caplog):
    caplog.set_level(logging.DEBUG)
    for options in ({}, {"shared": True}):
        with pytest.raises(ConfigurationError) as caught:
            yogadl.open_storage(location, **options)
        assert SECRET not in str(caught.value)
    for words in (["ls", "-s", location], ["doctor", location, "--json"], ["doctor", location, "--shared"]):
        if location != "s3:bucket?key=hunter2":  # a folder's name, to the command
            assert cli.main(words) in (1, 2)
    shown = capsys.readouterr()
    assert SECRET not in shown.out + shown.err + caplog.text


@pytest.mark.parametrize(
    ("endpoint", "says"),
    [
        ("http://user:hunter2@127.0.0.1:9/", "endpoint_url has more than the address of a store"),
        *[(endpoint, "") for endpoint in ("user:hunter2@host", "http://user:hunter2@host ", "hunter2@host")],
    ],
)
def test_an_endpoint_of_the_environment_with_a_secret_is_refused_without_it(
    monkeypatch, caplog, endpoint, says
):
    pytest.importorskip("boto3")
    caplog.set_level(logging.INFO, "yogadl")
    variables = {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    storage = yogadl.open_storage("s3://bucket", mirror=None, patience_s=0.1)
    with pytest.raises(errors.YogaError) as caught:
        storage.fetch("d", "1")
    assert says in str(caught.value)
    shown = "".join(traceback.format_exception(caught.value))
    assert SECRET not in shown + caplog.text + repr(storage)
    assert SECRET.encode() not in pickle.dumps(storage)


@pytest.mark.parametrize("kind", [ConfigurationError, CacheFormatError, DatasetNotFoundError])
def test_errors_escape_what_is_not_seen(kind):
    error = kind(f"a{BIDI}\nb\tc")
    assert str(error).isascii()
    assert "\nb\tc" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(StorageError(5, f"x{BIDI}", "/a\u202eb")).isascii()


def test_names_with_marks_of_direction_are_shown_escaped(tmp_path, capsys):
    folder = tmp_path / "a\u202eb"
    storage = yogadl.open_storage(folder)
    storage.submit([1], "d", "1")
    (folder / "d").rename(folder / "d\u202ee")
    for call in (lambda: storage.fetch("d", "1"), lambda: storage.fetch("d\u202ee", "1")):
        with pytest.raises(errors.YogaError) as caught:
            call()
        assert "\u202e" not in str(caught.value)
        assert r"\u202e" in str(caught.value)
    assert "\u202e" not in repr(storage)
    assert cli.main(["ls", "-s", str(folder)]) == 1
    shown = capsys.readouterr()
    assert "\u202e" not in shown.out + shown.err
    assert r"d\u202ee" in shown.out


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("s3://bucket/a ?sig=hunter2", "s3://bucket/a ?***"),
        ("s3://bucket/a\n?sig=hunter2", "s3://bucket/a\n?***"),
        ("user:hunter2@host", "***@host"),
        ("user:hunter2@host:9000/x", "***@host:9000/x"),
        ("hunter2@host", "***@host"),
        ("host/x?sig=hunter2", "host/x?***"),
        ("http://user:hun/hunter2@host", "http://***@host"),
        ("http://user:hun?hunter2@host", "http://***"),
        ("http://user:hun#hunter2@host", "http://***"),
        ("https://host/x?mail=a@hunter2", "https://host/x?***"),
        ("http:/user:hunter2@host", "http:/***@host"),
        ("s3://user:hunter2@bucket/a@b", "s3://***@b"),
        ("s3://user:hun/hunter2@bucket", "s3://***@bucket"),
        ("//user:hunter2@host/x", "//***@host/x"),
        (b"//user:hunter2@host/x", "//***@host/x"),
        (b"/data/\xff", "/data/\ufffd"),
        (Path("/data/user:x@b"), "/data/user:x@b"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("file:///a@b", "file:///a@b"),
        ("/data/00?.tar", "/data/00?.tar"),
        ("data/00?.tar", "data/00?.tar"),
        ("http://host:9000", "http://host:9000"),
        ("host:9000", "host:9000"),
        ("", ""),
        (["s3://a?hunter2", b"//hunter2@a", {"a": "hunter2"}], "['s3://a?***', '//***@a', {'a': ***}]"),
        ({"raw/x": {"secret_key": "hunter2"}}, "{'raw/x': {'secret_key': ***}}"),
        ({"s3://user:hunter2@b": "hunter2"}, "{'s3://***@b': ***}"),
        (None, "None"),
        (object(), "a object"),
    ],
)
def test_what_a_caller_gave_is_shown_without_secrets(given, shown):
    assert masked(given) == shown
    assert masked(shown) == shown or not isinstance(given, str | bytes)


@pytest.mark.parametrize("length", [0, 299, 300, 301])
def test_long_locations_are_cut(length):
    assert len(masked("a" * length)) == min(length, 300)


# Names of what callers give: locations, patterns and options.
GIVEN = {
    "address", "client_options", "endpoint_url", "foreign", "location", "locations", "options", "paths",
    "pattern", "patterns", "url", "urls",
}  # fmt: skip
# Where such a name has something else.
KNOWN = {
    "storage/_image_folder.py": "its `location` was masked when the folder was opened",
    "storage/_objects/bucket.py": "`url` is that of an open bucket, whose location was checked",
    "storage/_objects/s3.py": "`url` is that of an open bucket, whose location was checked",
    "storage/_objects/store.py": "`url` is that of an open bucket, whose location was checked",
}


def is_message(node):
    """Return whether a piece of code makes an error, a warning, a line of a log or of the command."""
    if not isinstance(node, ast.Call):
        return isinstance(node, ast.Raise)
    called = node.func
    if isinstance(called, ast.Attribute):
        is_log = isinstance(called.value, ast.Name) and called.value.id in ("_log", "warnings")
        return is_log or called.attr == "refuse"
    return isinstance(called, ast.Name) and (called.id.endswith("Error") or called.id == "say")


def test_one_function_shows_locations_and_options_and_nothing_else_does():
    library = Path(yogadl.__file__).parent
    found = []
    for path in sorted(library.rglob("*.py")):
        name, text = path.relative_to(library).as_posix(), path.read_text()
        if name != "_core/printable.py" and "***" in text.replace("/***", ""):
            found.append(f"{name} hides something by itself")
        for message in filter(is_message, ast.walk(ast.parse(text))):
            shown = [each.value for each in ast.walk(message) if isinstance(each, ast.FormattedValue)]
            shown += message.args if isinstance(message, ast.Call) else []
            for value in shown:
                is_argument = isinstance(value, ast.Attribute) and ast.unparse(value.value) == "arguments"
                given = value.attr if is_argument else getattr(value, "id", None)
                if (given in GIVEN or (is_argument and given in ("storage", "to"))) and name not in KNOWN:
                    found.append(f"{name}:{value.lineno}: {given}")
    assert not found


@pytest.mark.parametrize(
    "call",
    [
        lambda storage: storage.adopt("s3://user:hunter2@b/x.jsonl", "d", "1", format="jsonl"),
        lambda storage: storage.adopt("s3://b/x.jsonl ?sig=hunter2", "d", "1", format="jsonl"),
        lambda storage: storage.adopt("s3://b/x.jsonl?sig=hunter2", "d", "1", format="jsonl"),
        lambda storage: storage.adopt("https://u:hunter2@b/x.jsonl", "d", "1", format="jsonl"),
        lambda storage: storage.adopt(["s3://b/x?sig=hunter2", 7], "d", "1", format="jsonl"),
        lambda storage: storage.adopt(b"s3://b/x?sig=hunter2", "d", "1", format="jsonl"),
        lambda storage: storage.adopt({"key": "hunter2"}, "d", "1", format="jsonl"),
        lambda storage: storage.adopt("s3://b/{1..0}?sig=hunter2", "d", "1", format="jsonl"),
        lambda storage: storage.adopt("s3://b/{0..9999999}?sig=hunter2", "d", "1", format="jsonl"),
        lambda storage: storage.adopt("file:///x?sig=hunter2", "d", "1", format="jsonl"),
        lambda storage: yogadl.open_storage("x", foreign={"raw/x": {"secret": "hunter2"}}),
        lambda storage: yogadl.open_storage("x", foreign={"https://u:hunter2@raw/x": {}}),
        lambda storage: yogadl.open_storage("x", foreign={"s3://raw/x ?sig=hunter2": {}}),
        lambda storage: yogadl.open_storage("x", foreign=["s3://raw/x?sig=hunter2"]),
        lambda storage: yogadl.open_storage("x", foreign={"s3://raw/x": {"hidden": "hunter2"}}),
        lambda storage: yogadl.open_storage("s3://bucket/a ?sig=hunter2"),
        lambda storage: yogadl.open_storage("s3://bucket/x", client_options="hunter2", nothing=1),
        lambda storage: yogadl.image_folder("s3://u:hunter2@b/x"),
    ],
)
def test_no_error_or_log_of_the_fence_shows_a_secret(tmp_path, caplog, call):
    caplog.set_level(logging.DEBUG)
    storage = yogadl.open_storage(tmp_path, foreign={f"file://{tmp_path}": {}})
    with pytest.raises(errors.YogaError) as caught:
        call(storage)
    assert SECRET not in "".join(traceback.format_exception(caught.value)).split("Error: ", 1)[1]
    assert SECRET not in caplog.text


@pytest.mark.filterwarnings("default")
def test_the_command_shows_no_secret_in_warnings_and_errors(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_bytes(b"a\n" * 9)
    is_jsonl = ["--format", "jsonl"]
    for location, options, code, said in (
        (f"{tmp_path}/a.jsonl", is_jsonl, 0, ""),
        (f"s3://bucket/a.jsonl?sig={SECRET}", is_jsonl, 0, "s3://bucket/a.jsonl?***"),  # the version exists
        (f"s3://bucket/a.x?sig={SECRET}", [], 1, "s3://bucket/"),  # which can not tell the format
    ):
        assert cli.main(["adopt", "d", "1", location, *options, "-s", f"{tmp_path}/caches"]) == code
        shown = capsys.readouterr()
        assert said in shown.err
        assert SECRET not in shown.out + shown.err
