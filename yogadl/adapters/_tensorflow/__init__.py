"""Hold the rooms of the TensorFlow adapter; `yogadl.adapters.tensorflow` is the door.

In: `specs` says how components are stored, `source` reads a pipeline, `states` goes on within it, `graph`
looks at what it does. Out: `gather` reads rows, `pack` makes arrays of them, `tensors` tensors of those,
`parts` and `trees` elements, `items` the items of an epoch, `dataset` a tf.data.Dataset, and `resumable` lets
checkpoints say which epoch is next. `cache`: both in one line.
"""
