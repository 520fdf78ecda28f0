"""What others have written is shown without steering what is around it, and secrets are not shown."""

import logging
import pickle
import traceback

import pytest
from inside import printable, without_secrets

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


def test_an_endpoint_of_the_environment_with_a_secret_is_refused_without_it(monkeypatch, caplog):
    pytest.importorskip("boto3")
    caplog.set_level(logging.INFO, "yogadl")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://user:{SECRET}@127.0.0.1:9/")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    storage = yogadl.open_storage("s3://bucket", mirror=None, patience_s=0.1)
    with pytest.raises(
        ConfigurationError, match="endpoint_url has more than the address of a store"
    ) as caught:
        storage.fetch("d", "1")
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
