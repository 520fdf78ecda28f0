"""What `yogadl doctor` finds in stores and folders that are well, and in those that are not."""

import os
import resource

import pytest
import stores
from command import run_command
from inside import Object, Outcome, RetryPolicy, examine_bucket, examine_process, set_constants
from inside import storage_doctor as _doctor
from places import Place
from sizes import constant
from store_proxy import refuses

from yogadl.testing import MemoryBucket


def state_of(ended, what):
    """Return how a check ended."""
    (line,) = (line for line in ended.out.splitlines() if f" {what} " in line[8:24])
    return line.split()[0]


@pytest.fixture
def doctor(capsys, tmp_path, monkeypatch):
    """Run the command on a place, with its options and a mirror of the test's own."""
    set_constants(monkeypatch, PATIENCE=RetryPolicy(2.0, 3.0))

    def run(place, *words):
        options = []
        if isinstance(place, Place):
            for name, value in place.options.get("client_options", {}).items():
                monkeypatch.setenv({"region_name": "AWS_DEFAULT_REGION"}.get(name, name.upper()), value)
            options += ["--endpoint-url", place.options["endpoint_url"], "--mirror", str(tmp_path / "mirror")]
            options += ["--anonymous"] if place.options.get("anonymous") else []
            place = place.url
        return run_command(capsys, "doctor", place, *options, *words)

    return run


def by_what(findings):
    return {finding.what: finding for finding in findings}


def test_a_store_that_is_well_is_found_so_and_left_as_it_was(doctor, any_place, tmp_path):
    ended = doctor(any_place).ends(0)
    assert ended.out.endswith("All is well.\n")
    for what in (
        "access",
        "list",
        "read",
        "write",
        "clock",
        "put-if-absent",
        "delete",
        "mirror",
        "mirror: locks",
    ):
        assert state_of(ended, what) == "ok"
    assert [found.name for found in any_place.open().list()] == [".yogadl/put-if-absent"]
    assert not list((tmp_path / "mirror").glob(".*"))


def test_read_only_writes_nothing_there_nor_here(doctor, any_place, tmp_path):
    ended = doctor(any_place, "--read-only").ends(0)
    assert state_of(ended, "write") == "note"
    assert list(any_place.open().list()) == []
    assert not (tmp_path / "mirror").exists()


def test_as_json_it_has_stable_keys(doctor, s3_place):
    document = doctor(s3_place, "--json").json
    assert sorted(document) == ["checks", "problems", "storage"]
    assert document["problems"] == 0
    assert {tuple(sorted(check)) for check in document["checks"]} == {("mend", "state", "text", "what")}


@pytest.mark.parametrize(
    ("takes", "code", "what"),
    [
        (lambda request: "list-type" in request.path, "AccessDenied", "list"),
        (lambda request: request.is_of_bytes, "AccessDenied", "read"),
        (lambda request: request.is_write, "AccessDenied", "write"),
    ],
    ids=["list", "read", "write"],
)
def test_a_permission_that_is_missing_is_named_with_its_mend(doctor, broken, takes, code, what):
    place, proxy = broken
    if place.url.startswith("gs://") and what == "list":
        takes = lambda request: request.method == "GET" and "/o?" in request.path  # noqa: E731
    place.open().put("some-object", b"content")
    proxy.breaks(takes, refuses(403, code))
    ended = doctor(place).ends(1)
    assert state_of(ended, what) == "problem"
    name, _, prefix = place.url.partition("://")[2].partition("/")
    if place.url.startswith("gs://"):
        permission = {"list": "list", "read": "get", "write": "create and storage.objects.delete"}[what]
        assert f"allow to {what}: storage.objects.{permission} on the bucket {name}" in ended.out
        assert "s3:" not in ended.out
    else:
        permission = {"list": "s3:ListBucket", "read": "s3:GetObject", "write": "s3:PutObject"}[what]
        where = name if what == "list" else f"{name}/{prefix}/*"
        assert f"allow to {what}: {permission} on arn:aws:s3:::{where}" in ended.out
        assert "storage.objects" not in ended.out
    assert "Problems found: " in ended.out


@pytest.mark.parametrize(
    ("broken", "status", "code", "said"),
    [
        ("s3", 403, "SignatureDoesNotMatch", "credentials are wrong"),
        ("s3", 400, "ExpiredToken", "credentials have expired"),
        ("s3", 403, "RequestTimeTooSkewed", "clocks"),
        ("s3", 400, "IllegalLocationConstraintException", "another region"),
        ("s3", 404, "NoSuchBucket", "no such bucket"),
        ("s3", 503, "SlowDown", "tried"),
    ],
    indirect=["broken"],
)
def test_what_a_store_refuses_is_one_problem_with_its_reason(doctor, broken, status, code, said):
    place, proxy = broken
    proxy.breaks(lambda request: True, refuses(status, code))
    ended = doctor(place).ends(1)
    assert said in ended.out
    assert ended.out.count(code) == 1 or "credentials" not in said  # of which it is said once


def test_without_credentials_it_says_so_once(doctor, s3_place, tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "absent"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    endpoint = s3_place.options["endpoint_url"]
    ended = doctor(s3_place.url, "--endpoint-url", endpoint, "--mirror", tmp_path / "mirror").ends(1)
    assert ended.out.count("no credentials were found") == 1
    assert "--profile" in ended.out
    assert ended.out.endswith("Problems found: 1.\n")


def test_a_store_that_is_not_there_is_said_in_time(doctor):
    place = Place("s3://bucket/root", {"endpoint_url": "http://127.0.0.1:9", "client_options": {
        "aws_access_key_id": "k", "aws_secret_access_key": "s", "region_name": "us-east-1"}})  # fmt: skip
    ended = doctor(place).ends(1)
    assert state_of(ended, "access") == "problem"
    assert "--endpoint-url, proxies" in ended.out


def test_who_waits_for_the_result_waits_less_than_who_reads():
    here, elsewhere = constant("cli._checking._PATIENCE"), RetryPolicy()
    assert here.silence_s < here.total_s < elsewhere.silence_s


def test_a_store_that_ignores_conditions_is_found_out(doctor, heedless_place):
    ended = doctor(heedless_place).ends(1)
    assert state_of(ended, "put-if-absent") == "problem"
    assert "exclusive=False" in ended.out


def test_a_store_whose_conditions_fail_only_under_a_crowd_is_found_out():
    class Racy(MemoryBucket):
        def put_if_absent(self, name, content):
            return super().put_if_absent(name, content) or "doctor" in name

    found = by_what(examine_bucket(Racy()))
    assert found["put-if-absent"].state is Outcome.PROBLEM
    assert "8 of 8 concurrent conditional writes" in found["put-if-absent"].text


@pytest.mark.parametrize(
    ("skew_s", "state"),
    [
        *((skew_s, "ok") for skew_s in (0, -5.5)),
        *((skew_s, "note") for skew_s in (30, -6.5, -30)),
        *((skew_s, "problem") for skew_s in (7_200, -7_200)),
    ],
)
def test_clocks_that_are_apart_are_said(skew_s, state):
    """A store says whole seconds: one more of them that it is behind is none."""

    class Skewed(MemoryBucket):
        def put(self, name, content):
            written = super().put(name, content)
            return Object(written.name, written.size_bytes, written.tag, written.modified + skew_s)

    found = by_what(examine_bucket(Skewed()))["clock"]
    assert found.state == state
    assert bool(found.mend) == (state != "ok")


def test_a_mirror_where_locks_do_not_work_is_a_problem(doctor, s3_place, monkeypatch):
    monkeypatch.setattr(_doctor, "try_lock", lambda *_, **__: True)
    ended = doctor(s3_place).ends(1)
    assert state_of(ended, "mirror: locks") == "problem"


def test_a_mirror_in_a_folder_of_other_files_is_a_problem(doctor, s3_place, tmp_path):
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "thesis.tex").touch()
    ended = doctor(s3_place)
    assert state_of(ended, "mirror") == "problem"
    assert "thesis.tex" in ended.out


def test_a_folder_on_a_network_file_system_is_noted(doctor, tmp_path, monkeypatch):
    monkeypatch.setattr(_doctor, "file_system", lambda folder: "nfs4")
    ended = doctor(str(tmp_path)).ends(0)
    assert state_of(ended, "folder") == "note"
    assert "network file system (nfs4)" in ended.out


def test_a_folder_without_room_is_a_problem(doctor, tmp_path, monkeypatch):
    set_constants(monkeypatch, LITTLE_ROOM_BYTES=2**60)
    assert state_of(doctor(str(tmp_path)), "folder: room") == "problem"


@pytest.mark.parametrize(("most", "state"), [(1023, Outcome.PROBLEM), (1024, Outcome.OK)])
def test_limits_of_the_process_are_said_with_what_raises_them(most, state):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        found = by_what(examine_process())["open files"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert found.state is state
    assert found.mend == ("" if state is Outcome.OK else "ulimit -n 65536")


@pytest.mark.parametrize(
    "words",
    [
        ["ftp://somewhere/x"],
        ["s3://bucket/x", "--endpoint-url", "nonsense"],
        ["gs://bucket/x", "--profile", "p"],
    ],
)
def test_what_makes_no_sense_is_a_problem_and_not_a_crash(doctor, words, monkeypatch, tmp_path):
    ended = doctor(*words, "--mirror", tmp_path / "mirror").ends(1)
    assert state_of(ended, "access") == "problem"


def test_no_secret_is_printed(doctor, s3_place):
    ended = doctor(s3_place)
    assert stores.SECRET not in ended.out
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == stores.SECRET
