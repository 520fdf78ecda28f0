"""How Sphinx makes the site of these pages: `tox -e site`."""

import importlib
import re
from collections.abc import Iterator
from typing import Any, Generic, get_origin

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.autodoc.mock import _MockModule, _MockObject
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.inspect import signature, stringify_signature

import yogadl
import yogadl.storage
import yogadl.testing

project = "yogadl"
author = "the authors of yogadl"
copyright = author
version = release = yogadl.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
nb_execution_mode = "off"  # a test runs the notebooks, and compares what they show
exclude_patterns = ["pictures"]
html_theme = "furo"
html_title = f"yogadl {release}"
html_copy_source = False
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]

myst_heading_anchors = 4
highlight_language = "none"  # a block without a language is a picture, a tree of files, a formula
maximum_signature_line_length = 80

# Single backticks are code, as in all docstrings here.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
napoleon_google_docstring, napoleon_numpy_docstring = True, False
napoleon_use_ivar = True  # else what a class lists under `Attributes:` is there twice

# The adapters' frameworks are not installed where the site is made. tests/with_sphinx compares what the
# site shows with tests/public_names, which the frameworks' own environments check.
autodoc_mock_imports = [
    "absl", "boto3", "botocore", "datasets", "google", "grain", "jax", "keras", "lightning", "ml_dtypes",
    "obstore", "orbax", "pandas", "polars", "pyarrow", "ray", "tensorflow", "torch", "transformers",
]  # fmt: skip
# What adapters do with a framework at import, beside subclassing it: compare its version, write `X | None`.
_MockModule.__version__ = "999"
_MockObject.__or__ = lambda self, other: self

# A function is shown with all its arguments; overloads are for type checkers.
_analyze = ModuleAnalyzer.analyze


def analyze(analyzer: ModuleAnalyzer) -> None:
    """Analyze a module, but for its overloads."""
    _analyze(analyzer)
    analyzer.overloads = {}


ModuleAnalyzer.analyze = analyze

# Nothing is looked up on the network, so names of others can't be links. Names of ours must be.
OTHERS = (
    "abc|collections|concurrent|contextlib|os|pathlib|typing|"  # Python's library
    "datasets|grain|keras|lightning|numpy|np|ray|tensorflow|torch|transformers"
)
nitpick_ignore_regex = [
    (r"py:.*", rf"({OTHERS})\..*"),
    (r"py:class", r"Executor"),  # concurrent.futures.Executor
    (r"py:class", r"Codec"),  # the docstrings say what it is
    (r"py:class", r"yogadl\._core\.forms\.Forms"),  # only a storage makes them
]
PUBLIC = {*yogadl.__all__, *yogadl.storage.__all__, *yogadl.testing.__all__, *vars(yogadl.errors)}
COLUMNS_ON_A_PHONE = 2  # beside the names of the rows
TYPE_VARIABLES = {"Item_co", "Made", "P", "TrainerT"}

# Called so, as functions are; else autodoc shows no more than that they are aliases.
yogadl.partitioned.__name__ = "partitioned"
yogadl.image_folder.__name__ = "image_folder"

# Handed out by functions, never made by users: what their `__init__` takes is no part of the reference.
NOT_MADE_BY_USERS = {
    "CacheStorage", "Document", "DrawnRef", "Loader", "Locality", "MixedRef", "PackedEpoch", "PackedRef",
    "PartitionedBuild", "Plan", "ReadingCost", "RecordStream", "RecordsRef", "Rejected", "Spec", "Stats",
    "StoreBucket", "StreamIterator", "StreamMapDataset", "Ticket", "Tickets",
}  # fmt: skip


def setup(app: Sphinx) -> None:
    """Tell Sphinx what these pages need besides."""
    app.connect("autodoc-process-signature", signature_of_class)
    app.connect("autodoc-process-docstring", links_to_pages)
    app.connect("autodoc-process-bases", public_bases_only)
    app.connect("doctree-read", without_private_modules)
    app.connect("doctree-read", narrow_tables_for_phones)
    app.connect("missing-reference", public_reference)


def signature_of_class(
    _: Sphinx, what: str, name: str, obj: Any, options: Any, arguments: str | None, returns: str | None
) -> tuple[str, None] | None:
    """Show how a class is called, unless users do not make its objects."""
    if what != "class":
        return None
    if name.rpartition(".")[2] in NOT_MADE_BY_USERS:
        return "", None
    if _MockObject in obj.__mro__:  # whose `__new__` would be taken for that of the class
        found = signature(obj.__init__, bound_method=True)
        return stringify_signature(found, unqualified_typehints=True), None
    return None


def links_to_pages(_: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Make links of the pages that a docstring names, as in `docs/cli.md`."""
    lines[:] = [re.sub(r"`?\bdocs/([\w/-]+)\.md`?", r":doc:`/\1`", line) for line in lines]


def public_bases_only(_: Sphinx, name: str, obj: type, options: Any, bases: list[type]) -> None:
    """Show the bases of a private base in its place."""
    bases[:] = dict.fromkeys(shown for base in bases for shown in public_bases(base))


def public_bases(base: Any) -> Iterator[Any]:
    """Yield a base, or those of its bases that are public."""
    kind = get_origin(base) or base  # `Stream[Item_co]` is shown as `Stream`
    if kind in (object, Generic):
        return
    if not kind.__module__.startswith("yogadl.") or kind.__name__ in PUBLIC:
        yield kind
    else:
        for one in kind.__bases__:
            yield from public_bases(one)


def without_private_modules(_: Sphinx, doctree: nodes.document) -> None:
    """Show `RecordStream` where a class has no public path: nobody is to import it from where it lies."""
    for path in list(doctree.findall(addnodes.desc_addname)):
        if "._" in path.astext():
            path.parent.remove(path)


def narrow_tables_for_phones(app: Sphinx, doctree: nodes.document) -> None:
    """Add to each wide table of the comparison tables of two columns, which site.css shows on a phone."""
    if app.env.docname != "comparison":
        return
    for table in list(doctree.findall(nodes.table)):
        columns = len(list(table.findall(nodes.colspec)))
        if columns <= COLUMNS_ON_A_PHONE + 1:
            continue
        starts = range(1, columns, COLUMNS_ON_A_PHONE)
        narrow = [with_columns(table, {0, *range(start, start + COLUMNS_ON_A_PHONE)}) for start in starts]
        table["classes"].append("wide")
        table.parent.insert(table.parent.index(table) + 1, narrow)


def with_columns(table: nodes.table, kept: set[int]) -> nodes.table:
    """Return a copy of a table that has only these of its columns."""
    narrow = table.deepcopy()
    narrow["classes"].append("narrow")
    group = next(narrow.findall(nodes.tgroup))
    rows = [list(group.findall(nodes.colspec)), *(list(row) for row in group.findall(nodes.row))]
    for row in rows:
        for place, cell in enumerate(row):
            if place not in kept:
                cell.parent.remove(cell)
    group["cols"] = len(list(group.findall(nodes.colspec)))
    return narrow


def public_reference(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, text: nodes.TextElement
) -> nodes.Element | None:
    """Lead from the module in which a name is defined to where it is documented."""
    name = node["reftarget"].rpartition(".")[2]
    if name in TYPE_VARIABLES:
        return text
    found = [key for key in env.domaindata["py"]["objects"] if key.rpartition(".")[2] == name]
    if len(found) > 1:
        meant = located(node["reftarget"])
        found = [key for key in found if meant is not None and located(key) is meant]
    if len(found) != 1:
        return None
    return env.domains["py"].resolve_xref(
        env, node["refdoc"], app.builder, node["reftype"], found[0], node, text
    )


def located(path: str) -> Any:
    """Return the object at a path, or None."""
    try:
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)
    except (AttributeError, ImportError, ValueError):
        return None
