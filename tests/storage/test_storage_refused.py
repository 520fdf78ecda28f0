"""Arguments that make no sense: one clear error each, before anything is written."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from inside import Lease, RetryPolicy, open_bucket

import yogadl
from yogadl.errors import ConfigurationError

ENGINE = ThreadPoolExecutor(1)  # no thread is started before it has work
NAMES = ["..", "../x", "/etc", "a/../../x", "a\0", "x" * 300, "", "versions", "a/parts", "a//b", 1]
NAMED = ("fetch", "info", "verify", "delete", "undelete", "cacheable")
NOT_JSON = [
    (["a"], "must be a dict, not a list"),
    ({1: "a"}, "the keys of metadata must be str"),
    ({"a": {"b": (1,)}}, r"metadata\['a'\]\['b'\] is a tuple"),
    ({"a": [np.float32(1)]}, r"metadata\['a'\]\[0\] is a float32"),
    ({"a": float("nan")}, "must be JSON"),
]


def in_order():
    return [iter([1, 2]), {1, 2}, lambda: iter([1, 2])]


def at_bucket(s, options):
    return yogadl.open_storage(Path(s.location).as_uri(), **options)


def at_folder(s, options):
    return yogadl.open_storage(s.location, **options)


def planned(_, options):
    return yogadl.from_source([1]).stream().plan(**options)


METADATA, PARTS = yogadl.BuildOptions(metadata={"a": 1}), yogadl.BuildOptions(part_bytes=9)
NO_USE = [
    lambda s: s.compact("d", "1", "2", build=METADATA),
    lambda s: s.recompress("d", "1", "2", codec=None, build=METADATA),
    lambda s: s.refresh("d", "1", "2", build=METADATA),
    lambda s: s.refresh("d", "1", "2", build=PARTS),
    lambda s: s.adopt("x", "d", "1", build=PARTS),
    lambda s: s.append([1], "d", "2", base_version="1", records=yogadl.RecordOptions(spec={"a": 1})),
    lambda s: s.begin("d", "1", partitions=1, records=yogadl.RecordOptions(on_error="skip")),
]

# What is called with each of some values, and what the error says.
CALLS = {
    "part_bytes": (lambda s, v: s.submit([1], "d", "1", build=yogadl.BuildOptions(part_bytes=v)),
        [0, -1, 1.5, "1 GB", True], "part_bytes must be a positive number of bytes"),
    "build": (lambda s, v: s.cacheable("d", "1", build=v),
        [0, {}, yogadl.RecordOptions()], r"build must be yogadl\.BuildOptions\(\.\.\.\), not "),
    "records": (lambda s, v: s.begin("d", "1", partitions=1, records=v),
        [0, {}, yogadl.BuildOptions()], r"records must be yogadl\.RecordOptions\(\.\.\.\), not "),
    "allow_pickle": (lambda _, v: yogadl.RecordOptions(allow_pickle=v),
        [1, None], "allow_pickle must be True or False"),
    "check_space": (lambda _, v: yogadl.BuildOptions(check_space=v),
        [1, None], "check_space must be True or False"),
    "what a method has no use for": (lambda s, v: v(s),
        NO_USE, "has no use for .* of yogadl.*: leave it out"),
    "workers": (lambda s, v: s.submit([1, 2], "d", "1", workers=v),
        [-1, 1.5, "2", None, True], "workers must be a whole number of at least 0, not "),
    "workers of a decorator": (lambda s, v: s.cacheable("d", "1", workers=v),
        [-1, 1.5, True], "workers must"),
    "engine": (lambda s, v: s.submit([1, 2], "d", "1", build=yogadl.BuildOptions(engine=v)),
        ["spark", 3, object()], 'engine must be "ray", or an executor'),
    "engine and workers": (
        lambda s, v: s.submit([1, 2], "d", "1", build=yogadl.BuildOptions(engine=ENGINE), workers=v),
        [2], "leave out workers, or engine"),
    "workers for what is read in order": (lambda s, v: s.submit(v, "d", "1", workers=2),
        in_order(), r"workers, an engine and tasks need a source .* with __len__ and .*yogadl\.partitioned"),
    "an engine for what is read in order": (
        lambda s, v: s.submit(v, "d", "1", build=yogadl.BuildOptions(engine=ENGINE)),
        in_order(), r"workers, an engine and tasks need a source .* with __len__ and .*yogadl\.partitioned"),
    "partitions": (lambda s, v: s.begin("d", "1", partitions=v),
        [0, -1, 1.5, "3", True, None], "partitions must be a positive integer"),
    "partitions of a source": (lambda s, v: s.begin("d", "1", partitions=v, source=[1, 2, 3]),
        [0, -1, 1.5, "3", True], "partitions must be a positive integer"),
    "a partition": (lambda s, v: s.begin("d", "1", partitions=3).write(v, [1]),
        [-1, 3, 1.0, "0", None], "there is no partition .*: they are 0 to 2"),
    "run": (lambda s, v: s.begin("d", "1", partitions=1, run=v),
        ["../x", ".x", "a\0b", "/x", "a/b", "", 7], "a run can't be called"),
    "no records": (lambda s, v: s.begin("d", "1", partitions=v).write(0), [1], "begin was given no source"),
    "records twice": (lambda s, v: s.begin("d", "1", partitions=1, source=[1]).write(0, v),
        [[1]], "leave the records"),
    "other partitions than the source has": (
        lambda s, v: s.begin("d", "1", source=yogadl.partitioned.of(["a", "b"], list), partitions=v), [3],
        "the source has 2 partitions, not 3"),
    "no partitions": (lambda _, v: yogadl.partitioned(v), [[]], "needs one at least: the list is empty"),
    "a partition of records": (lambda _, v: yogadl.partitioned(v),
        [[[1, 2]]], "partition 0 is .* can't be called"),
    "partitions in no list": (lambda _, v: yogadl.partitioned(v),
        [list, 7], "give a list of functions, one for each partition"),
    "paths in no list": (lambda _, v: yogadl.partitioned.of(v, len), ["a.csv", 7], "give a list of paths"),
    "read": (lambda _, v: yogadl.partitioned.of(["a.csv"], v), ["b"], "read must be a function"),
    "a misspelt option": (lambda s, v: getattr(s, v[0])(*v[1:], "d", "1", alow_pickle=True),
        [("submit", [1]), ("fetch",), ("cacheable",)], r"(did you mean allow_pickle=|it has )"),
    "an option that is unknown": (lambda s, v: s.cached([1], "d", **v), [{"worker": 2}], "worker"),
    "on_error": (lambda _, v: yogadl.RecordOptions(on_error=v),
        ["substitute"], 'on_error must be "raise" or "skip"'),
    "on_error of what is not read one by one": (
        lambda s, v: s.submit(v, "d", "1", records=yogadl.RecordOptions(on_error="skip")),
        [*in_order()[::2], np.arange(3), {"a": np.arange(3)}, yogadl.partitioned([lambda: [1, 2]])],
        'on_error="skip" needs records that are read one by one'),
    "ids": (lambda s, v: getattr(s, v[0])(v[1], "1"), itertools.product(NAMED, NAMES), "dataset id"),
    "versions": (lambda s, v: getattr(s, v[0])("d", v[1]),
        itertools.product(NAMED, NAMES), "dataset version"),
    "ids of builds": (lambda s, v: s.submit(pytest.fail, v, "1"), NAMES, "dataset id"),
    "ids of partitions": (lambda s, v: s.begin(v, "1", partitions=1), NAMES, "dataset id"),
    "ids of lists": (lambda s, v: s.versions(v), NAMES, "dataset id"),
    "ids of what is cached": (lambda s, v: s.cached(range(3), v), NAMES, "dataset id"),
    **{s: (lambda _, v: yogadl.BuildOptions(metadata=v), [given], s) for given, s in NOT_JSON},
    "location": (lambda _, v: yogadl.open_storage(v), [""], "location of a storage"),
    "scheme": (lambda _, v: yogadl.open_storage(v), ["ftp://host/x"], "ftp://"),
    "almost a scheme": (lambda _, v: yogadl.open_storage(v), ["s3x://b"], "s3x://"),
    "url": (lambda _, v: open_bucket(v),
        ["", "bucket", "/folder", "s3://", "s3:///prefix", "gs:bucket", "http://bucket", "file://host/folder"],
        "pass s3://bucket/prefix"),
    "a prefix that leaves its root": (lambda _, v: open_bucket(v),
        ["s3://bucket/a/../b", "gs://bucket/a//b"], "name"),
    "options of a bucket": (lambda _, v: open_bucket(v, speed=1, colour="red"),
        ["s3://bucket", "gs://bucket", "file:///folder"], "colour, speed: no option of .*it takes"),
    "options without a mirror": (lambda _, v: yogadl.Mirror(None, **v),
        [{"limit": "5GB"}, {"fill": "always"}], r"Mirror\(None\) keeps nothing"),
    "when a mirror is filled": (lambda _, v: yogadl.Mirror(fill=v),
        ["sometimes"], "'auto', 'always' or 'never', not 'sometimes'"),
    "the size of a mirror": (lambda _, v: yogadl.Mirror(limit=v), ["much", 0, -1], "give a size"),
    "mirror": (at_bucket, [{"mirror": 5}], "Mirror: path must be a folder, 'auto' or None, not 5"),
    "verify": (at_bucket,
        [{"verify": value} for value in ("blocks", True, "", 0, ["block"])],
        "verify must be None or 'block', not"),
    "limits": (at_bucket, [{"limits": 5}], r"limits must be yogadl\.Limits\(\.\.\.\), not 5"),
    **{f"Limits: {name}": (lambda _, v: yogadl.Limits(**v),
        [{name: value} for value in (0, -1, True, "5")], f"Limits: {name} must be a number above 0, not ")
        for name in ("requests", "requests_per_s", "price")},
    "a price without prices": (at_bucket,
        [{"limits": yogadl.Limits(price=7)}], "no price is known of this store; pass prices="),
    "prices": (lambda _, v: yogadl.Limits(prices=v), [0.1], r"Limits: prices must be yogadl\.Prices"),
    "lease": (at_bucket, [{"lease": 5}], r"lease must be yogadl\.Lease\(\.\.\.\), not 5"),
    "options of buckets for a folder": (at_folder,
        [{"mirror": 1}, {"mirror": yogadl.Mirror()}, {"limits": yogadl.Limits()}, {"verify": 1}],
        "no option of the folder"),
    "a lease for a folder of one machine": (at_folder,
        [{"lease": yogadl.Lease()}], "lease: no option of the folder"),
    "a lease that excludes nobody, for a folder": (at_folder,
        [{"shared": True, "lease": yogadl.Lease(exclusive=False)}], "exclusive=False: no option of the f"),
    "patience_s": (lambda _, v: yogadl.open_storage("s3://bucket", patience_s=v),
        [True, 0, "5"], ": patience_s must be a number of seconds above 0, not "),
    "almost patience_s": (lambda _, v: yogadl.open_storage("s3://bucket", **v),
        [{"patience": 5}, {"silence_s": 5}], "patience_s"),
    "a policy of retries": (lambda _, v: RetryPolicy(*v),
        [(0, 1), (1, 0), (-1, 1), (1, float("nan"))], "above 0"),
    "total_s": (lambda _, v: RetryPolicy(total_s=v), [0, -1, "long", None, True], "patience_s"),
    "a policy of leases": (lambda _, v: Lease(**v),
        [{"ttl_s": 0.5}, {"ttl_s": float("inf")}, {"ttl_s": "5"}, {"wait_s": -1}], "must be"),
    "epochs": (planned, [{"epochs": 0}], "epochs must be a whole number of at least 1, not 0"),
    "records_per_s": (planned,
        [{"records_per_s": 0}, {"records_per_s": True}], "records_per_s must be a number above 0, not "),
    "prices of a plan": (planned, [{"prices": 3}], "prices must be yogadl.Prices"),
    "a price": (lambda _, v: yogadl.Prices(per_gb=v),
        [-1, float("nan"), True, "3"], "per_gb must be a number, 0 or more"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_what_makes_no_sense_is_refused_and_writes_nothing(storage, name):
    call, values, says = CALLS[name]
    for value in values:
        with pytest.raises(ConfigurationError, match=says):
            call(storage, value)
    files = [path for path in Path(storage.location).rglob("*") if path.is_file()]
    assert [path for path in files if path.parent.name != "locks"] == []
