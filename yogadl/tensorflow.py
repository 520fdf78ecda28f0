"""Keep the import path of yogadl 0.1.4: `yogadl.tensorflow.make_tf_dataset`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from yogadl.adapters.tensorflow import make_tf_dataset

__all__ = ["make_tf_dataset"]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:  # any attribute of the module
        if name != "make_tf_dataset":
            from yogadl._removed import missing

            raise missing("yogadl.tensorflow", name)
        from yogadl.adapters.tensorflow import make_tf_dataset

        return make_tf_dataset
