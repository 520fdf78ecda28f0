"""Every error is the builtin that a stranger would catch, and crosses processes whole."""

import inspect
import pickle
import traceback

import pytest

from yogadl import errors

BUILTINS = {
    "ConfigurationError": ValueError,
    "UnsupportedDataError": TypeError,
    "MissingDependencyError": ImportError,
    "RemovedError": ImportError,
    "DatasetNotFoundError": LookupError,
    "CacheFormatError": ValueError,
    "StorageError": OSError,
    "CredentialsError": OSError,
    "SpendingError": OSError,
    "LeaseError": TimeoutError,
    "CursorError": ValueError,
    "TicketError": RuntimeError,
    "StageError": RuntimeError,
    "WorkerDiedError": RuntimeError,
    "WorkerTimeoutError": TimeoutError,
}
EVERY = [found for _, found in inspect.getmembers(errors, inspect.isclass)]


def test_the_tree_has_no_other_errors():
    assert {error.__name__ for error in EVERY} == {*BUILTINS, "YogaError"}


@pytest.mark.parametrize("name", BUILTINS)
def test_an_error_is_a_yoga_error_and_the_builtin_it_promises(name):
    error = getattr(errors, name)
    assert issubclass(error, errors.YogaError)
    assert issubclass(error, BUILTINS[name])


@pytest.mark.parametrize("error", EVERY)
def test_an_error_pickles_with_its_text_and_notes(error):
    original = error("record 5: field 'x' is None")
    original.add_note("while reading record 5 of the source")
    copy = pickle.loads(pickle.dumps(original))
    assert type(copy) is error
    assert str(copy) == "record 5: field 'x' is None"
    assert copy.__notes__ == ["while reading record 5 of the source"]


def test_a_storage_error_pickles_with_errno_and_file():
    copy = pickle.loads(pickle.dumps(errors.StorageError(28, "the disk is full", "/data/part.mdb")))
    assert (copy.errno, copy.strerror, copy.filename) == (28, "the disk is full", "/data/part.mdb")
    assert type(copy) is errors.StorageError


@pytest.mark.parametrize("kind", [errors.StorageError, errors.CredentialsError])
@pytest.mark.parametrize("path", [None, "/data/part.mdb"])
def test_the_text_of_a_storage_error_begins_with_words_not_with_a_number(kind, path):
    error = kind(28, "can't write a part: the disk is full", path)
    for each in (error, pickle.loads(pickle.dumps(error))):
        expected = "can't write a part: the disk is full" + ("" if path is None else ": '/data/part.mdb'")
        assert str(each) == expected
        assert each.errno == 28
    assert "Errno" not in "".join(traceback.format_exception_only(error))


@pytest.mark.parametrize("error", EVERY)
def test_the_docstring_draws_every_error(error):
    assert error.__name__ in errors.__doc__
    assert error.__doc__
