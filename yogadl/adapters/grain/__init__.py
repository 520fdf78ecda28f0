"""Hand streams to Grain, record by record or in whole batches, and read Grain's data into caches.

The names of this module need Grain. docs/howto/grain.md follows Grain's own guide page by page, over a cache.
"""

from yogadl.adapters import _checks

_checks.require("grain", "Grain's loaders and datasets need Grain: pip install 'yogadl[grain]'")

from yogadl.adapters.grain._items import DataSource
from yogadl.adapters.grain._loader import IndexSampler, cursor, make_dataloader, map_dataset
from yogadl.adapters.grain._source import source

__all__ = ["DataSource", "IndexSampler", "cursor", "make_dataloader", "map_dataset", "source"]
