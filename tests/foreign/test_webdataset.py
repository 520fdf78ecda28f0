"""The samples of tar archives, written by hand and by Python's tarfile."""

import itertools
import re
import tarfile

import pytest
from foreign_files import WINDOWS, pax_record, reader_of, records_of, refusal, tar_header, tar_member, tar_of
from inside import WebDataset, split_name

from yogadl.errors import ConfigurationError

END = bytes(1024)


def archive(*members, end=END):
    return b"".join(members) + end


SIZES = [0, 1, 511, 512, 513, 1024, 3001, 17]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_samples_with_names_of_all_lengths(form, window):
    members, expected = [], []
    for k, size in enumerate(SIZES):
        key = "/".join(["d" * 30] * k) + f"/n{k}" if k < 7 else "ü" * 40 + "/" + "x" * 80
        values = {"JPG": bytes([65 + k]) * size, "seg.png": b"%d" % k}
        members += [(f"{key}.{extension}", content) for extension, content in values.items()]
        expected.append({"__key__": key, "jpg": values["JPG"], "seg.png": values["seg.png"]})
    assert records_of(WebDataset(), tar_of(members, form), window) == expected


def test_numbers_are_octal_or_binary_and_checksums_of_either_sign():
    content = archive(
        tar_header(b"a.x", 5, size_field=b"\x80" + bytes(10) + b"\5") + b"12345" + bytes(507),
        tar_header(b"b.x", 5, size_field=b"          5\0") + b"12345" + bytes(507),
        tar_header(b"c.x", 5, size_field=b"5 " + bytes(10)) + b"12345" + bytes(507),
        tar_header(b"d.x", 5, size_field=b"000000000005") + b"12345" + bytes(507),
        tar_member("ü.x".encode(), b"12345", negative=True),
        tar_header(b"f.x", 0, size_field=bytes(12)),
    )
    records = records_of(WebDataset(), content)
    assert [record["__key__"] for record in records] == ["a", "b", "c", "d", "ü", "f"]
    assert [record["x"] for record in records] == [b"12345"] * 5 + [b""]


@pytest.mark.parametrize("kind", [b"0", b"\0", b"7"])
def test_regular_files_of_all_kinds_and_what_lies_between_them(kind):
    content = archive(
        tar_member(b"", pax_record(b"comment", b"of git archive"), b"g"),
        tar_header(b"d/", 0, b"5"),
        tar_header(b"d.x/", 0, b"\0"),  # a directory before POSIX
        tar_header(b"d.y", 99, b"5"),  # a directory's size means nothing
        tar_member(b"d/a.x", b"1", kind),
        tar_member(b"README", b"no dot"),
        tar_member(b"__meta__", b"of webdataset"),
        tar_member(b"__meta__/b.x", b"of webdataset"),
        tar_member(b"d/a.y", b"2", kind),
        tar_member(b"d/.hidden", b"3"),
        tar_member(b"a.b/c", b"no dot after the slash"),
    )
    form = WebDataset(("x", "y"), missing="empty")
    assert records_of(form, content) == [
        {"__key__": "d/a", "x": b"1", "y": b"2"},
        {"__key__": "d/", "x": b"", "y": b""},
    ]


def test_long_names_and_sizes_of_extended_headers():
    long = b"k" * 300
    content = archive(
        tar_member(b"././@LongLink", long + b"1.x\0", b"L"),
        tar_member(b"truncated.z", b"1"),
        tar_member(b"", pax_record(b"mtime", b"1.5") + pax_record(b"path", long + b"2.x"), b"x"),
        tar_member(b"", pax_record(b"path", b"the first header counts.x"), b"x"),
        tar_member(b"truncated.z", b"2"),
        tar_member(b"", pax_record(b"size", b"3"), b"x"),
        tar_header(b"3.x", 0) + b"333" + bytes(509),
        tar_member(b"", pax_record(b"path", b""), b"X"),
        tar_member(b"4.x", b"4", prefix=b"p"),
        tar_member(b"5.x", b"5", prefix=b"14735", magic=b"ustar  \0"),  # a time of GNU tar
    )
    for window in WINDOWS:
        assert [tuple(record.values()) for record in records_of(WebDataset(), content, window)] == [
            ((long + b"1").decode(), b"1"),
            ((long + b"2").decode(), b"2"),
            ("3", b"333"),
            ("p/4", b"4"),
            ("5", b"5"),
        ]


@pytest.mark.parametrize("end", [bytes(512), END, bytes(10240), END + b"what lies behind the end"])
def test_archives_end_in_many_ways(end):
    content = archive(tar_member(b"a.x", b"1"), end=end)
    assert records_of(WebDataset(), content) == [{"__key__": "a", "x": b"1"}]


def test_an_archive_without_an_end_is_refused():
    members = tar_member(b"a.x", b"1"), tar_member(b"b.x", b"2")
    for count in (1, 2):
        said = refusal(WebDataset(), b"".join(members[:count]))
        assert f"byte {1024 * count}: the archive has no end: it is cut" in said


def test_only_consecutive_members_are_a_sample():
    content = archive(*[tar_member(name, name) for name in (b"a.x", b"b.x", b"a.y")])
    assert [r["__key__"] for r in records_of(WebDataset(missing="empty"), content)] == ["a", "b", "a"]
    assert "sample 'a' has no 'y'" in refusal(WebDataset(), content)


def test_fields_that_are_given_are_taken_alone():
    content = archive(
        *[tar_member(name, name) for name in (b"a.x", b"a.y", b"a.Y", b"b.z", b"b.y.x", b"b.x")]
    )
    assert records_of(WebDataset(("x",)), content) == [
        {"__key__": "a", "x": b"a.x"},
        {"__key__": "b", "x": b"b.x"},
    ]
    assert "sample 'a' has two members 'y'" in refusal(WebDataset(), content)
    said = refusal(WebDataset(["x", "z"]), content)
    assert "byte 0: sample 'a' has no 'z'" in said
    assert 'missing="empty"' in said
    assert "fields=(" in said


def test_only_the_fields_that_are_named_may_be_empty():
    content = archive(*[tar_member(name, name) for name in (b"a.x", b"a.y", b"b.x", b"c.y")])
    for form in (WebDataset(("x", "y"), {"x": "empty"}), WebDataset(missing={"x": "empty"})):
        assert "sample 'b' has no 'y'" in refusal(form, content)
    form = WebDataset(missing={"x": "empty", "y": "empty"})
    assert [r["x"] for r in records_of(form, content)] == [b"a.x", b"b.x", b""]
    assert "no sample of this first file has 'z'" in refusal(WebDataset(("x", "z"), {"z": "empty"}), content)
    for missing in ({"x": -1}, {"other": "empty"}):
        with pytest.raises(ConfigurationError, match="missing="):
            WebDataset(("x", "y"), missing)
        with pytest.raises(ConfigurationError, match="missing="):
            records_of(WebDataset(missing=missing), content)


def test_the_first_file_decides_the_fields_in_the_order_they_come():
    first = archive(*[tar_member(name, name) for name in (b"a.z", b"b.x", b"b.z")])
    form = WebDataset(missing="empty").of_first_file(reader_of(first))
    assert form.fields == ("z", "x")
    assert form.are_of_first_file
    assert form.of_first_file(reader_of(b"")) is form
    second = archive(tar_member(b"dir/c.z", b""), tar_member(b"dir/c.new", b""))
    said = refusal(form, second)
    assert "folder/data, byte 1024: sample 'dir/c' has 'new'" in said
    assert "fields=(" in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (END, "there is no sample"),
        (archive(tar_member(b"README", b"")), "there is no sample"),
        (b"\x1f\x8b\x08\0", "gunzip"),
        (b"BZh91AY&SY", "bunzip2"),
        (b"\xfd7zXZ\0", "unxz"),
        (b"\x28\xb5\x2f\xfd", "unzstd"),
        *(
            (archive(tar_header(b"a.x", 0, kind)), said)
            for kind, said in (
                (b"1", "'a.x' is a hard link: .*--hard-dereference"), (b"2", "a symbolic link"),
                (b"3", "a device"), (b"4", "a device"), (b"6", "a pipe"), (b"S", "a sparse file"),
                (b"M", "begins in another archive"), (b"?", "the unknown kind"),
            )
        ),
        (archive(tar_member(b"", pax_record(b"GNU.sparse.major", b"1"), b"x")), "a sparse file"),
        (archive(tar_member(b"", pax_record(b"path", b"a.x"), b"g")), "for all members"),
        (archive(tar_member(b"", pax_record(b"size", b"1"), b"g")), "for all members"),
        *(
            (archive(tar_member(b"", content, b"x")), "no record of a pax header")
            for content in (b"nonsense", b"0 a=b\n", b"99 a=b\n", b"5 a=b\n", b"99999999999 a=b\n")
        ),
        *(
            (archive(tar_member(b"", pax_record(b"size", size), b"x"), tar_member(b"a.x", b"")), "size of a")
            for size in (b"-1", b"9" * 30)
        ),
        (archive(tar_member(b"", pax_record(b"mtime", b"1"), b"x")), "ends after the extended header"),
        (archive(tar_member(b"", b"a.x", b"L"), end=b""), "ends after the extended header"),
        (archive(tar_header(b"", 2**20 + 1, b"x") + bytes(2**21)), "an extended header has 1048577 bytes"),
        (archive(tar_member(b"\xff.x", b"")), "not UTF-8"),
        (archive(tar_member(b"a.", b"")), "no extension after its dot"),
        (archive(tar_member(b"a.__key__", b"")), "two members '__key__'"),
        (archive(tar_member(b"a.x", b""), b"?" * 512), "this is no header .* not a number"),
        (archive(tar_member(b"a.x", b"")[:-1] + b"!"), "its checksum differs"),
        (archive(tar_header(b"a.x", 0, size_field=b"00000000009\0")), "not a number"),
        (archive(tar_header(b"a.x", 0, size_field=b"-0000000001\0")), "not a number"),
        (archive(tar_header(b"a.x", 0, size_field=b"\xff" * 12)), "not a number"),
        (archive(tar_header(b"a.x", 2000)), "the file is cut: a member ends at 2560, the file at 1536"),
        (archive(tar_header(b"a.x", 0, size_field=b"\x80" + b"\xff" * 11)), "the file is cut"),
        (archive(tar_member(b"a.x", b"1")[:-1], end=b""), "the file is cut"),
        (archive(tar_member(b"a.x", b"1"), end=b"\0"), "the file ends at 1025"),
    ],
)  # fmt: skip
def test_what_is_refused(content, said):
    assert re.search(f"folder/data, byte [0-9]+: .*{said}", refusal(WebDataset(), content))


@pytest.mark.parametrize("fields", ["jpg", ("JPG",), ("",), ("a/b",), ("__key__",)])
def test_fields_are_extensions(fields):
    with pytest.raises(ConfigurationError):
        WebDataset(fields)
    with pytest.raises(ConfigurationError):
        WebDataset(missing="none")


@pytest.mark.parametrize("length", range(10))
def test_any_name_is_split_as_webdataset_splits_it(length):
    for letters in itertools.product("a./\n", repeat=min(length, 6)):
        name = "".join(letters) + "/.A"[: length - 6] * (length > 6)
        match = re.match(r"^((?:.*/|)[^.]+)[.]([^/]*)$", name)
        assert split_name(name) == (match and (match[1], match[2].lower()))


def test_a_hostile_name_takes_no_long_time():
    content = archive(tar_member(b"", b"/" * 2**20, b"L"), tar_member(b"a.x", b""), tar_member(b"a.x", b""))
    assert records_of(WebDataset(), content) == [{"__key__": "a", "x": b""}]
    assert split_name("a./" + "/" * 2**20 + "./.x") is None


@pytest.mark.parametrize("missing", [None, "empty"])
def test_a_name_that_no_sample_of_the_first_file_has_is_refused(missing):
    content = archive(tar_member(b"a.jpg", b"1"), tar_member(b"b.jpg", b"2"), tar_member(b"b.cls", b"3"))
    said = refusal(WebDataset(("jpg", "jgp"), missing), content)
    assert "'jgp'" in said
    assert ("no sample of this first file has 'jgp'" in said) == (missing == "empty")
    records = records_of(WebDataset(("cls", "jpg"), "empty"), content)
    assert [record["cls"] for record in records] == [b"", b"3"]


def test_the_way_out_names_the_fields_that_there_are():
    content = archive(tar_member(b"a.x", b"1"), tar_member(b"a.y", b"2"), tar_member(b"b.x", b"3"))
    assert "fields=('x',), or make it empty" in refusal(WebDataset(), content)
    assert "'b' has no 'y': make it empty" in refusal(WebDataset(("y",)), content)


@pytest.mark.parametrize(
    "zeros", [512, 1024, 10240, 2**16 - 512, 2**16, 2**20 - 512, 2**20, 2**20 + 512, 3 * 2**20 + 512]
)
def test_an_archive_behind_the_end_of_another_is_refused(zeros):
    first, second = tar_member(b"a.x", b"1"), tar_member(b"b.x", b"2")
    said = refusal(WebDataset(), first + bytes(zeros) + second + END)
    assert f"byte {1024 + zeros}: another archive begins there" in said
    assert len(records_of(WebDataset(), first + bytes(zeros))) == 1


@pytest.mark.parametrize("rest", [511, 512, 513])
def test_what_lies_behind_the_end_and_is_no_archive_is_left_alone(rest):
    content = tar_member(b"a.x", b"1") + END
    assert len(records_of(WebDataset(), content + b"x" * rest)) == 1
