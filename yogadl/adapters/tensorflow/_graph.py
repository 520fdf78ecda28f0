"""Inspect a pipeline's graph: find stages that should not be cached, and hash it alike in every process."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

# A GraphDef, a FunctionDef, a NodeDef: messages of protobuf, which has no annotations here.
Message = Any

_BATCHES: Final = ("BatchDataset", "PaddedBatchDataset", "ParallelBatchDataset", "DenseToSparseBatchDataset")
# Flaws of a pipeline to cache, for a warning: the action of the pipeline, and the remedy.
_BATCHING: Final = (
    "it batches",
    "the stream would shuffle batches, not records: cache before batch(), or give batch_size=None, "
    "shuffle=False to the function that makes the dataset, such as image_dataset_from_directory",
)
_SHUFFLING: Final = (
    "it shuffles",
    "cache before shuffle(), or give shuffle=False to the function that makes the dataset, such as "
    "list_files or image_dataset_from_directory, and let the stream shuffle",
)
_REPEATING: Final = ("it repeats", "every record is stored several times: cache before repeat()")
_REPEATS: Final = ("RepeatDataset", "ShuffleAndRepeatDataset")
_RANDOM: Final = (
    "it draws random numbers",
    "augmentation would be the same in every epoch: cache before it, and map after the cache, by stateless "
    "operations; or use random layers with seed= in the model, fed by yogadl.adapters.keras.PyDataset. Both "
    "go on exactly after a stop",
)
_SAMPLING: Final = (
    "it draws which dataset a record comes from (sample_from_datasets)",
    "every epoch would have the same records in the same order: cache each dataset, and sample after that",
)
_RECORD_HOLDING: Final = ("ShuffleDataset", "ShuffleAndRepeatDataset", "CacheDataset")
_UNORDERED: Final = (
    "it does not keep an order (deterministic=False)",
    "two builds would differ: leave that option out; the pipeline runs only once, so it need not be fast",
)
# Operations that draw other numbers at each call. Stateless... operations with a fixed seed don't.
_RANDOM_OPS: Final = (
    "RandomUniform", "RandomStandardNormal", "TruncatedNormal", "ParameterizedTruncatedNormal", "RandomGamma",
    "RandomPoisson", "Multinomial", "RandomShuffle", "RandomUniformInt", "SampleDistortedBoundingBox",
    "SampleDistortedBoundingBoxV2", "StatefulUniform", "StatefulStandardNormal", "StatefulTruncatedNormal",
    "StatefulUniformInt", "StatefulUniformFullInt", "StatefulRandomBinomial", "RngReadAndSkip", "RngSkip",
    "RandomPoissonV2", "StatefulStandardNormalV2", "RandomDataset", "RandomCrop",
)  # fmt: skip
# Stateless operations draw other numbers, too, if the pipeline assigns to the variable that is their seed, as
# Keras's layers do.
_ASSIGNING_OPS: Final = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
_STATELESS: Final = "Stateless"
_STATELESS_CONTROL_OPS: Final = ("StatelessIf", "StatelessWhile", "StatelessCase")
# The first input of this stage selects which of the other inputs is next.
_CHOOSING_STAGE: Final = "DirectedInterleaveDataset"
_PYTHON_OPS: Final = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
# Names and numbers that differ from process to process and have no effect on the records.
_SKIPPED_ATTRIBUTES: Final = frozenset(
    {"metadata", "token", "_output_shapes", "output_shapes_hint", "shared_name"}
)
# Resources of tf.data's own stages, which don't change the records. The graph contains the content of
# variables and tables, but only the handle of any other resource.
_OWN_RESOURCES: Final = ("SeedGenerator", "MemoryCacheManager")


@dataclass(frozen=True)
class Graph:
    """A pipeline's graph, with its properties that matter for a cache."""

    definition: Message

    def uncacheable_operations(self) -> list[tuple[str, str]]:
        """Return the pipeline's operations that should not be cached, each with what to do instead."""
        functions, main = self._nodes_of_records()
        nodes = [*functions, *main]
        ops = [_unversioned(node.op) for node in nodes]
        flaws = []
        last_batch = max((i for i, op in enumerate(ops) if op in _BATCHES), default=-1)
        last_unbatch = max((i for i, op in enumerate(ops) if op == "UnbatchDataset"), default=-1)
        if last_batch > last_unbatch:
            flaws.append(_BATCHING)
        if any(op in ("ShuffleDataset", "ShuffleAndRepeatDataset") for op in ops):
            flaws.append(_SHUFFLING)
        if any(_unversioned(node.op) in _REPEATS and not _is_counter(node, nodes) for node in nodes):
            flaws.append(_REPEATING)
        if any(node.op in _RANDOM_OPS or _unversioned(node.op) in _RANDOM_OPS for node in nodes) or (
            any(map(_is_stateless_random, nodes)) and any(node.op in _ASSIGNING_OPS for node in functions)
        ):
            flaws.append(_RANDOM)
        elif any(_unversioned(node.op) == "RandomDataset" for node in self._nodes()):
            flaws.append(_SAMPLING)
        if any(node.attr["deterministic"].s == b"false" for node in nodes if "deterministic" in node.attr):
            flaws.append(_UNORDERED)
        return flaws

    def holds_records(self) -> bool:
        """Return whether a stage keeps many records in memory: a checkpoint would contain them."""
        return any(_unversioned(node.op) in _RECORD_HOLDING for node in self._nodes())

    def python_tokens(self) -> list[bytes]:
        """Return the name of each Python function that the pipeline calls: the graph lacks their code."""
        return [node.attr["token"].s for node in self._nodes() if node.op in _PYTHON_OPS]

    def has_unknown_content(self) -> bool:
        """Return whether the pipeline reads from queues, iterators or the like, of unknown content."""
        handles = [
            handle.maybe_type_name
            for node in self._nodes()
            for value in node.attr.values()
            if value.WhichOneof("value") == "tensor"
            for handle in value.tensor.resource_handle_val
        ]
        return not all(any(own in handle for own in _OWN_RESOURCES) for handle in handles)

    def _nodes(self) -> Iterator[Message]:
        for function in self.definition.library.function:
            yield from function.node_def
        yield from self.definition.node

    def _nodes_of_records(self) -> tuple[list[Message], list[Message]]:
        """Return the nodes of functions and the other nodes, without nodes that only select a dataset."""
        functions = {function.signature.name: function for function in self.definition.library.function}
        main = _without_dataset_selectors(self.definition.node)
        called: dict[str, list[Message]] = {}
        todo = list(main)
        while todo:
            for name in _functions_of(todo.pop()):
                if name in functions and name not in called:
                    called[name] = _without_dataset_selectors(functions[name].node_def)
                    todo += called[name]
        return [node for name in functions if name in called for node in called[name]], main

    def sha256(self) -> str:
        """Return a hash of what the pipeline does, the same in every process."""
        functions = {function.signature.name: function for function in self.definition.library.function}
        return _Hasher(functions).nodes_hash(self.definition.node)


def _without_dataset_selectors(nodes: Sequence[Message]) -> list[Message]:
    """Return the nodes without those that only select the next dataset, as in `sample_from_datasets`."""
    named = {node.name: node for node in nodes}
    used = {_node_of(name) for node in nodes for name in node.input}
    todo = [node for node in nodes if node.name not in used]
    kept: set[str] = set()
    while todo:
        node = todo.pop()
        if node.name not in kept:
            kept.add(node.name)
            inputs = node.input[1:] if _unversioned(node.op).endswith(_CHOOSING_STAGE) else node.input
            todo += [named[name] for name in map(_node_of, inputs) if name in named]
    return [node for node in nodes if node.name in kept]


def _node_of(name_of_input: str) -> str:
    return name_of_input.removeprefix("^").partition(":")[0]


def _functions_of(node: Message) -> Iterator[str]:
    for value in node.attr.values():
        if value.WhichOneof("value") == "func":
            yield value.func.name
        elif value.WhichOneof("value") == "list":
            yield from (function.name for function in value.list.func)


def _is_stateless_random(node: Message) -> bool:
    return node.op.startswith(_STATELESS) and node.op not in _STATELESS_CONTROL_OPS


def _is_counter(repeat: Message, nodes: list[Message]) -> bool:
    """Return whether a constant tensor is repeated, as in `Dataset.counter`."""
    name = repeat.input[0].partition(":")[0]
    return {node.op for node in nodes if node.name == name} == {"TensorDataset"}


def _unversioned(op: str) -> str:
    """Return the name of an operation without its version: "BatchDataset" for "BatchDatasetV2"."""
    return op[:-2] if op[-2:-1] == "V" and op[-1:].isdigit() else op


class _Hasher:
    """Hashes nodes and functions by what they do: names that may contain a counter become numbers."""

    def __init__(self, functions: dict[str, Message]) -> None:
        self._functions = functions
        self._function_hashes: dict[str, str] = {}

    def nodes_hash(self, nodes: Any, *more: str) -> str:
        numbers = {node.name: str(i) for i, node in enumerate(nodes)}
        digest = hashlib.sha256(repr(more).encode())
        for node in nodes:
            inputs = [_numbered_input(name, numbers) for name in node.input]
            digest.update(repr((node.op, inputs)).encode())
            for name in sorted(node.attr):
                if name not in _SKIPPED_ATTRIBUTES and not name.startswith("_"):
                    digest.update(name.encode() + b"=" + self._attribute_content(node.attr[name]))
        return digest.hexdigest()

    def _function_hash(self, name: str) -> str:
        if name not in self._function_hashes:
            self._function_hashes[name] = "itself"
            function = self._functions.get(name)
            if function is None:
                return name
            arguments = {
                argument.name: f"argument {i}" for i, argument in enumerate(function.signature.input_arg)
            }
            numbers = {node.name: str(i) for i, node in enumerate(function.node_def)}
            results = [
                _numbered_input(function.ret[result.name], numbers)
                for result in function.signature.output_arg
            ]
            nodes = []
            for node in function.node_def:
                copied = type(node)()
                copied.CopyFrom(node)
                for i, name_of_input in enumerate(node.input):
                    if name_of_input in arguments:
                        copied.input[i] = arguments[name_of_input]
                nodes.append(copied)
            self._function_hashes[name] = self.nodes_hash(nodes, *results)
        return self._function_hashes[name]

    def _attribute_content(self, value: Message) -> bytes:
        kind = value.WhichOneof("value")
        if kind == "func":
            return self._function_hash(value.func.name).encode()
        if kind == "list" and value.list.func:
            return repr([self._function_hash(function.name) for function in value.list.func]).encode()
        if kind == "tensor" and value.tensor.resource_handle_val:
            return b"a resource"
        content: bytes = value.SerializeToString(deterministic=True)
        return content


def _numbered_input(name: str, numbers: dict[str, str]) -> str:
    """Return the name of an input with the node's name, which may contain a counter, replaced by a number."""
    control = "^" if name.startswith("^") else ""
    node, separator, output = name[len(control) :].partition(":")
    return control + numbers.get(node, node) + separator + output
