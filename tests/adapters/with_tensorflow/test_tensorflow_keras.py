"""Keras and tf.distribute over a stream, in processes of their own."""

import json
import socket

import numpy as np
import pytest
from programs import programs

import yogadl

RECORDS = 240

TRAIN = """
    import json, sys
    import keras
    import numpy as np
    import tensorflow as tf
    import yogadl
    from yogadl.adapters import tensorflow as adapter

    root, folder, begin, end = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    keras.utils.set_random_seed(1)
    tf.config.experimental.enable_op_determinism()
    ref = yogadl.open_storage(root).fetch("points", "1")
    stream = ref.stream(shuffle=True, shuffle_seed=3)
    layers = keras.layers
    model = keras.Sequential([keras.Input([4]), layers.Dense(8, activation="tanh"), layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    if begin:
        model = keras.models.load_model(f"{folder}/model.keras")
        with open(f"{folder}/cursor.json") as file:
            stream = ref.stream(shuffle=True, shuffle_seed=3, cursor=json.load(file))
    dataset = adapter.make_tf_dataset(stream, batch_size=16).map(lambda r: (r["x"], r["y"]))
    model.fit(dataset.repeat(), epochs=1, steps_per_epoch=end - begin, verbose=0)
    model.save(f"{folder}/model.keras")
    with open(f"{folder}/cursor.json", "w") as file:
        json.dump(stream.cursor(delivered=16 * (end - begin)), file)
    print(json.dumps([weight.tolist() for weight in model.get_weights()]))
    """

BACK_UP = """
    import json, sys
    import keras
    import numpy as np
    import tensorflow as tf
    import yogadl
    from yogadl.adapters import tensorflow as adapter

    class Fail(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 5:
                raise InterruptedError

    stream = yogadl.open_storage(sys.argv[1]).fetch("points", "1").stream(shuffle=True, shuffle_seed=3)
    for others in ([Fail()], []):  # the model counts how often it was trained on each record
        weights = keras.layers.Embedding(len(stream), 1, embeddings_initializer="zeros")
        model = keras.Sequential([keras.Input([1]), weights, keras.layers.Flatten()])
        model.compile(keras.optimizers.SGD(1.0), keras.losses.MeanAbsoluteError(reduction="sum"))
        dataset = adapter.make_tf_dataset(stream, batch_size=16)
        dataset = dataset.map(lambda r: (r["id"][:, None], tf.fill([tf.size(r["id"]), 1], 1e9)))
        backup = keras.callbacks.BackupAndRestore(sys.argv[2], save_freq=4)
        try:
            model.fit(dataset, epochs=1, callbacks=[backup, *others], verbose=0)
        except InterruptedError:
            pass
    counts = np.ravel(model.get_weights()[0]).tolist()
    print(json.dumps([counts, stream.indices()[: 4 * 16].tolist()]))
    """

WORK = """
    import json, sys
    import tensorflow as tf
    import yogadl
    from yogadl.adapters import tensorflow as adapter

    root, is_sharded = sys.argv[1], sys.argv[2] == "sharded"
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    resolver = strategy.cluster_resolver
    shard = {"shard_rank": resolver.task_id, "num_shards": 2} if is_sharded else {}
    stream = yogadl.open_storage(root).fetch("points", "1").stream(shuffle=True, **shard)
    dataset = adapter.make_tf_dataset(stream, batch_size=None if sys.argv[3] == "records" else 8)
    if sys.argv[3] == "records":
        dataset = dataset.batch(8)
    found = []
    for batch in strategy.experimental_distribute_dataset(dataset):
        found += [int(i) for part in strategy.experimental_local_results(batch["id"]) for i in part.numpy()]
    print(json.dumps(found))
    """


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("caches")
    random = np.random.default_rng(0)
    x = random.normal(size=(RECORDS, 4)).astype(np.float32)
    data = {"x": x, "y": x.sum(axis=1, keepdims=True), "id": np.arange(RECORDS)}
    yogadl.open_storage(root).submit(data, "points", "1")
    return root


def start(code, *arguments, **environment):
    return programs("tensorflow").start(code, *arguments, variables=environment)


def outcome(process):
    return process.answer(timeout_s=150)


def test_a_training_that_stopped_within_an_epoch_ends_with_the_same_weights(root, tmp_path):
    folders = [tmp_path / name for name in ("whole", "halves")]
    for folder in folders:
        folder.mkdir()
    whole = outcome(start(TRAIN, root, folders[0], 0, 40))  # of 15 steps an epoch
    outcome(start(TRAIN, root, folders[1], 0, 22))
    resumed = outcome(start(TRAIN, root, folders[1], 22, 40))
    for ours, theirs in zip(resumed, whole, strict=True):
        np.testing.assert_array_equal(np.array(ours), np.array(theirs))


def test_keras_own_backup_within_an_epoch_reads_records_again_as_the_page_says(root, tmp_path):
    counts, again = outcome(start(BACK_UP, root, tmp_path / "backup"))
    expected = np.ones(RECORDS)
    expected[again] += 1  # of the four batches whose weights were saved
    assert counts == expected.tolist()


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


@pytest.mark.parametrize("kind", ["records", "batches"])
@pytest.mark.parametrize("sharding", ["sharded", "unsharded"])
def test_two_workers_share_the_records_out(root, sharding, kind):
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    workers = []
    for index in range(2):
        config = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        workers.append(start(WORK, root, sharding, kind, TF_CONFIG=json.dumps(config)))
    found = [outcome(worker) for worker in workers]
    assert sorted(found[0] + found[1]) == list(range(RECORDS))
    assert abs(len(found[0]) - len(found[1])) <= 8
