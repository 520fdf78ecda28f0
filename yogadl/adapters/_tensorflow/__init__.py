"""Hold the rooms of the TensorFlow adapter; `yogadl.adapters.tensorflow` is the door.

In: `specs` says how components are stored, `source` reads a pipeline, `states` goes on within it, `graph`
looks at what it does. Out: `gather` reads rows, `pack` makes arrays of them, `tensors` tensors of those,
`parts` and `trees` elements, `dataset` a tf.data.Dataset. `cache`: both in one line.
"""
