"""A build of a tf.data pipeline that was killed goes on, and ends as one that nobody killed."""

import signal

import numpy as np
import pytest
import tensorflow as tf
from programs import programs

import yogadl

RECORDS = 600

# Each record that the pipeline reads is noted in a file; at one of them the process is killed.
BUILD = """
    import os, signal, sys
    import numpy as np
    import tensorflow as tf
    import yogadl
    from yogadl.adapters.tensorflow import _source as source

    root, log, is_stateful = sys.argv[1], sys.argv[2], sys.argv[4] == "stateful"
    source._CHUNK_BYTES, source._NOTE_INTERVAL_FACTOR = 2**18, 0  # so that little data is much
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def read(i):
        if i == int(sys.argv[3]):  # a value of the program's would be one of the pipeline's, too
            os.kill(os.getpid(), signal.SIGKILL)
        os.write(file, b"%d " % i)
        return np.full([8192], i, np.int64)

    def of(i):
        return tf.ensure_shape(tf.numpy_function(read, [i], tf.int64, stateful=is_stateful), [8192])

    options = tf.data.Options()  # else it is tf.data that reads hundreds of records ahead
    options.experimental_optimization.map_parallelization = False
    options.autotune.enabled = False
    dataset = tf.data.Dataset.range(600).map(of).with_options(options)
    yogadl.open_storage(root).submit(dataset, "set", "1", build=yogadl.BuildOptions(part_bytes=2**23))
    """


def build(root, log, kill_at, kind="stateless"):
    """Build until record `kill_at` is read; return how the process ended and which records it read."""
    log.unlink(missing_ok=True)
    ended = programs("tensorflow").run(BUILD, root, log, kill_at, kind)
    assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
    return ended.returncode, [int(i) for i in log.read_text().split()]


def expected(folder):
    storage = yogadl.open_storage(folder)
    rows = np.repeat(np.arange(RECORDS), 8192).reshape(RECORDS, 8192)
    storage.submit(rows, "set", "1")
    return storage.fetch("set", "1").fingerprint


def test_a_pipeline_that_can_be_checkpointed_goes_on_where_the_killed_build_was(tmp_path):
    root, log = tmp_path / "caches", tmp_path / "log"
    for kill_at in (400, 590):
        code, _ = build(root, log, kill_at)
        assert code == -signal.SIGKILL
        assert yogadl.open_storage(root).datasets() == []
    sealed = [int(path.stem) for path in sorted(root.glob("set/builds/*/one/*.json"))]
    assert len(sealed) >= 2
    end = sealed[-1] + sealed[1]
    code, read = build(root, log, -1)
    assert code == 0
    # What is compared: the first records of each part, and the last ones before each seal.
    assert len([i for i in read if i < end]) < end / 2
    assert set(read) >= set(range(end + 16, RECORDS))
    storage = yogadl.open_storage(root)
    storage.verify("set", "1")
    assert storage.fetch("set", "1").fingerprint == expected(tmp_path / "expected")
    assert list(root.rglob("*.state")) == []


def test_a_pipeline_that_can_not_be_checkpointed_is_read_again_and_goes_on(tmp_path):
    root, log = tmp_path / "caches", tmp_path / "log"
    code, _ = build(root, log, 500, "stateful")
    assert code == -signal.SIGKILL
    parts = {path.name: path.stat().st_mtime_ns for path in root.glob("set/parts/*.mdb")}
    assert len(parts) >= 2
    code, read = build(root, log, -1, "stateful")
    assert code == 0
    assert read == list(range(RECORDS)), "once, in order"
    after = {path.name for path in root.glob("set/parts/*.mdb")}
    assert parts.keys() <= after, "what was sealed is used"
    assert yogadl.open_storage(root).fetch("set", "1").fingerprint == expected(tmp_path / "expected")


def test_a_pipeline_that_failed_goes_on_after_the_records_that_are_sealed(tmp_path, caplog):
    storage = yogadl.open_storage(tmp_path)
    read = []

    def gen(stop):
        for i in range(RECORDS):
            if i == stop:
                raise KeyError("broken")
            read.append(i)
            yield np.full(8192, i, np.int64)

    def dataset(stop):
        return tf.data.Dataset.from_generator(
            gen, args=[stop], output_signature=tf.TensorSpec([8192], tf.int64)
        )

    with pytest.raises(tf.errors.OpError, match="broken"):
        storage.submit(dataset(500), "set", "1", build=yogadl.BuildOptions(part_bytes=2**21))
    read.clear()
    with caplog.at_level("INFO", "yogadl"):
        storage.submit(dataset(-1), "set", "1", build=yogadl.BuildOptions(part_bytes=2**21))
    going_on = [record.args[1] for record in caplog.records if "continuing at record" in record.msg]
    assert going_on
    assert going_on[0] > 100
    assert [int(x[0]) for x in storage.fetch("set", "1")] == list(range(RECORDS))
    assert read == list(range(RECORDS)), "the pipeline ran once, in order"
    storage.verify("set", "1")


def test_another_pipeline_does_not_go_on_with_what_a_killed_one_sealed(tmp_path):
    storage = yogadl.open_storage(tmp_path)

    def dataset(k, stop):
        def of(i):
            with tf.control_dependencies([tf.debugging.assert_less(i, tf.constant(stop, tf.int64))]):
                return tf.fill([8192], i * k)

        return tf.data.Dataset.range(RECORDS).map(of)

    with pytest.raises(tf.errors.InvalidArgumentError):
        storage.submit(dataset(1, 500), "set", "1", build=yogadl.BuildOptions(part_bytes=2**21))
    storage.submit(dataset(3, 99_999), "set", "1", build=yogadl.BuildOptions(part_bytes=2**21))
    assert [int(x[0]) for x in storage.fetch("set", "1")] == [3 * i for i in range(RECORDS)]


@pytest.mark.parametrize("stateful", [True, False])
@pytest.mark.parametrize("call", [tf.numpy_function, tf.py_function])
def test_after_ctrl_c_and_a_change_of_a_python_function_no_record_is_the_old_ones(tmp_path, call, stateful):
    storage = yogadl.open_storage(tmp_path)

    def label(special):
        return lambda i: np.int64(special if i == 40 else i)

    def build(special, progress=None):
        options = {"stateful": stateful} if call is tf.numpy_function else {}

        def of(i):
            return tf.fill([8192], tf.ensure_shape(call(label(special), [i], tf.int64, **options), []))

        dataset = tf.data.Dataset.range(RECORDS).map(of)
        storage.submit(dataset, "set", "1", build=yogadl.BuildOptions(part_bytes=2**21, progress=progress))

    def stop(records, total, size_bytes):
        if records > 400:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(-1, stop)
    assert len(list(tmp_path.glob("set/builds/*/one/*.json"))) >= 2
    build(-2)
    assert [int(x[0]) for x in storage.fetch("set", "1")] == [-2 if i == 40 else i for i in range(RECORDS)]
