"""Tasks of a run publish together only what was written with one codec."""

import pytest

import yogadl
from yogadl import cli
from yogadl.errors import ConfigurationError


@pytest.fixture
def storage(tmp_path):
    return yogadl.open_storage(tmp_path)


CODECS = [None, "zstd", yogadl.Zstd(level=9), {"n": "zstd"}]


@pytest.mark.parametrize("with_source", [True, False])
@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 0), (1, 2), (1, 3)])
def test_tasks_with_and_without_a_codec_are_not_published_together(storage, first, second, with_source):
    texts = {"n": [b"a" * 100] * 40}

    def begun(number):
        options = {"source": texts} if with_source else {}
        return storage.begin("d", "1", run="job", partitions=2, codec=CODECS[number], **options)

    def write(number, partition):
        given = () if with_source else ([{"n": b"a" * 100}] * 20,)
        begun(number).write(partition, *given)

    write(first, 0)
    write(second, 1)
    with pytest.raises(
        ConfigurationError,
        match=f"1 of 2 partitions were written with {'the codec zstd' if first else 'no codec'}, ",
    ) as caught:
        begun(second).commit()
    assert "again" in str(caught.value)
    assert "[0]" in str(caught.value)
    write(second, 0)  # as the error says
    begun(second).commit()
    assert storage.fetch("d", "1").gather(range(40))["n"] == [b"a" * 100] * 40


def test_the_files_of_the_command_name_the_codec(storage, tmp_path, capsys):
    (tmp_path / "texts.py").write_text("def texts():\n    return {'n': [b'a' * 100] * 40}\n")
    words = ["build", f"{tmp_path}/texts.py:texts", "d", "1", "--run", "job", "-s", str(tmp_path / "caches")]
    assert cli.main([*words, "--task", "1/2"]) == 0
    assert cli.main([*words, "--task", "2/2", "--codec", "zstd"]) == 0
    assert cli.main([*words, "--commit", "--codec", "zstd"]) == 1
    assert "were written with no codec, and the commit has the codec zstd" in capsys.readouterr().err
    assert cli.main([*words, "--task", "1/2", "--codec", "zstd"]) == 0
    assert cli.main([*words, "--commit", "--codec", "zstd"]) == 0
