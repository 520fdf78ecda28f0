"""Show the size, the fields and the origin of a version.

The fingerprint is a hash of the content: the same records have the same fingerprint on every machine. The
digest is a hash of these files: `storage.fetch(..., digest=...)` refuses any others.

Example:
  yogadl info squares 1 -s /data/caches
"""

import argparse
import math
from typing import Any

from yogadl._core.printable import printable
from yogadl.cli._arguments import add_json, add_storage, add_tagged, open_version
from yogadl.cli._output import (
    ago,
    counted,
    cut,
    day_and_time,
    moment,
    say,
    say_json,
    say_table,
    size,
    stored,
    table,
    width,
)
from yogadl.cli._values import names_of, row_of_field
from yogadl.storage import DatasetInfo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_tagged(parser)
    add_storage(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    storage = open_version(arguments)
    info = storage.info(arguments.id, arguments.version)
    if arguments.json:
        say_json(storage=storage.location, **info_to_json(info))
        return 0
    for name, text in _lines(info):
        say(f"{name:<12} {text}")
    say()
    named = zip(names_of(info.spec), info.spec.fields, strict=True)
    lines = table(("field", "dtype", "shape"), [row_of_field(name, field.leaf) for name, field in named])
    say_table([cut(line, width()) for line in lines])
    return 0


def info_to_json(info: DatasetInfo) -> dict[str, Any]:
    """Return all facts about a version, as JSON."""
    return {
        "id": info.id,
        "version": info.version,
        "records": info.records,
        "size_bytes": info.size_bytes,
        "parts": info.parts,
        "created": moment(info.created),
        "fingerprint": info.fingerprint,
        "digest": info.digest,
        "fields": [
            {"name": field.name, "dtype": field.leaf.dtype, "shape": field.leaf.shape}
            for field in info.spec.fields
        ],
        "spec": info.spec.to_json(),
        "builder": _builder_to_json(info.builder),
        "earlier": [dict(vars(earlier)) for earlier in info.earlier],
    }


def _builder_to_json(builder: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = _finite(builder)
    if isinstance(found.get("started"), int | float):
        found["started"] = moment(found["started"])
    return found


def _finite(value: Any) -> Any:  # any JSON value
    """Return JSON with None for NaN and infinity, which a manifest may hold and JSON can't express."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _lines(info: DatasetInfo) -> list[tuple[str, str]]:
    each = f", {size(info.size_bytes / info.records)} a record" if info.records else ""
    lines = [
        ("dataset", info.id),
        ("version", info.version),
        ("records", f"{info.records:,}"),
        ("size", f"{stored(info)}{each}"),
        ("built", f"{day_and_time(info.created)} UTC, {ago(info.created)}"),
    ]
    if info.earlier:
        last = info.earlier[-1]
        more = info.records - last.records
        lines.append(("continues", _text(f"version {last.version}, with {counted(more, 'record')} more")))
    builder = info.builder
    if builder.get("function"):
        lines.append(("from", _text(builder["function"])))
    arguments = builder.get("arguments")
    if isinstance(arguments, dict) and arguments:
        said = ", ".join(f"{name}={value}" for name, value in arguments.items())
        lines.append(("arguments", cut(_text(said), width() - 13)))
    names = {"yogadl": "yogadl", "python": "Python", "numpy": "numpy"}
    software = ", ".join(f"{names[name]} {builder[name]}" for name in names if builder.get(name))
    if software:
        lines.append(("with", _text(software)))
    return [*lines, ("fingerprint", info.fingerprint), ("digest", info.digest)]


def _text(value: object) -> str:
    """Return a value as text, cut if it is long, because a manifest may hold any value."""
    return printable(f"{value!s:.1000}")
