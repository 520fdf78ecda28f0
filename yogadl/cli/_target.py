"""Find the function that a command line names, and call it with errors of one line."""

import argparse
import contextlib
import importlib.machinery
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from yogadl._core.frozen import MANY_DIGITS, parse_json
from yogadl.cli._output import cut, error_line
from yogadl.errors import ConfigurationError, YogaError


@dataclass(frozen=True)
class Target:
    """The name of a function in a file; a name with dots is inside of a class. Or a folder of pictures.

    Args:
        path: The file.
        name: The name of the function.
        folder: The path or URL of the folder instead; empty if there is none.
    """

    path: Path
    name: str
    folder: str = ""

    def __str__(self) -> str:
        return self.folder or f"{self.path}:{self.name}"

    @staticmethod
    def parse(text: str) -> "Target":
        """Return the target in a text such as ``data.py:squares``."""
        if text and ("://" in text or Path(text).expanduser().is_dir()):
            folder = text if "://" in text else str(Path(text).expanduser())
            return Target(Path("yogadl"), "image_folder", folder)
        path, _, name = text.rpartition(":")
        if not path or not all(part.isidentifier() for part in name.split(".")):
            raise argparse.ArgumentTypeError(
                f"give a file and a function, as in data.py:squares, or a folder of pictures, not {text!r}"
            )
        return Target(Path(path).expanduser(), name)


def parse_argument(text: str) -> tuple[str, Any]:
    """Return name and value of a text such as ``count=1000``; a value that is no JSON stays a string."""
    name, separator, value = text.partition("=")
    if not separator or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"give name=value, as in count=1000, not {text!r}")
    try:
        return name, parse_json(value, most_digits=MANY_DIGITS)
    except ValueError:
        return name, value


def parse_fill(text: str) -> tuple[str, Any]:
    """Return a field's name and what comes in the place of its missing values, ``label=-1`` or ``x=nan``."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"give FIELD=VALUE, as in label=-1 or text=empty, not {text!r}")
    for parse in (parse_json, float):
        with contextlib.suppress(ValueError):
            return name, parse(value)
    return name, value


def load(target: Target) -> Callable[..., Any]:
    """Import the file, as ``python FILE`` would, and return the function.

    Raises:
        ConfigurationError: if there is no such file or function.
        Exception: any error that the file raises.
    """
    if target.folder:
        from yogadl.storage._image_folder import image_folder  # loads what reads buckets

        return image_folder
    path = target.path.absolute()
    if not path.is_file():
        raise ConfigurationError(f"there is no file {target.path}")
    module = _load_module(path)
    attribute: Any = module
    for part in target.name.split("."):
        attribute = getattr(attribute, part, None)
    if callable(attribute):
        function: Callable[..., Any] = attribute
        return function
    if attribute is not None:
        raise ConfigurationError(
            f"{target.name} of {target.path} is not a function, but a {type(attribute).__name__}; "
            "give a function that returns it"
        )
    names = _function_names(module)
    alternatives = f"there are {', '.join(names)}" if names else "it has none at all"
    raise ConfigurationError(f"{target.path} has no function {target.name}; {alternatives}")


def check_arguments(target: Target, function: Callable[..., Any], arguments: dict[str, Any]) -> None:
    """Raise a `ConfigurationError` that shows the function's signature if these arguments do not fit it."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a callable without a signature: the call itself fails if the arguments do not fit
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise ConfigurationError(
            f"{target.name}{cut(str(signature), 200)}: {error}; arguments are given as --arg name=value"
        ) from None


@contextlib.contextmanager
def errors_in_one_line(path: Path, shows_traceback: bool = False) -> Iterator[None]:
    """Turn any error of the user's code into a `YogaError` of one line that names the line of the file.

    Raises:
        YogaError: in place of the error.
    """
    try:
        yield
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        if shows_traceback:
            traceback.print_exc()
        if isinstance(error, YogaError):
            raise
        hint = "" if shows_traceback else "; --traceback shows the whole traceback"
        raise YogaError(_message_of(error, path) + hint) from error


def _message_of(error: BaseException, path: Path) -> str:
    kind = type(error).__name__
    if isinstance(error, SyntaxError):
        return f"{error.filename or path.name}, line {error.lineno}: {kind}: {error.msg}"
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)
    ]
    where = f"{path.name}, line {lines[-1]}: " if lines else ""
    text = error_line(error)
    notes: Sequence[str] = getattr(error, "__notes__", ())
    notes_text = ", ".join(" ".join(note.split()) for note in notes)
    return f"{where}{kind}{text and ': '}{text}{notes_text and f' ({notes_text})'}"


class _FreshLoader(importlib.machinery.SourceFileLoader):
    """Load a file without the bytecode cache, which misses a change in the same second to the same size."""

    def get_code(self, fullname: str) -> CodeType | None:
        return self.source_to_code(self.get_data(self.path), self.path)


def _load_module(path: Path) -> ModuleType:
    name = path.stem
    other = sys.modules.get(name)
    has_other_module = name in sys.stdlib_module_names or (
        other is not None and getattr(other, "__file__", None) != str(path)
    )
    # The file's folder is put on the path, so that the file can import its neighbours, and workers can import
    # the file. If another module has the file's name, the folder comes last, so as not to hide that module.
    sys.path.insert(len(sys.path) if has_other_module else 0, str(path.parent))
    if has_other_module:
        name = f"_yogadl_build_{name}"
    if path.suffix != ".py":
        raise ConfigurationError(f"{path} is not a Python file; its name must end in .py")
    loader = _FreshLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None  # because the loader is given
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    if has_other_module:
        import cloudpickle

        cloudpickle.register_pickle_by_value(module)  # workers can't import it
    return module


def _function_names(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and callable(value)
        and getattr(value, "__module__", None) == module.__name__
    ]
