"""What tests look at within the library: each name, and the module that has it.

Tests import what is not public from here alone, so that what moves in the library is moved in one place; and
`set_constants` is the one way to have a constant small in a test.
"""

from importlib import import_module
from typing import Any

# A module, and what it has; `NAME=GIVEN` where two modules give the same name.
NAMES = """
yogadl.storage._builds _build=build _engines=executors _shares=shares adopted
yogadl.storage._catalogue _catalogue=catalogue _export=export _parts=cached _tags=tags
yogadl.storage._files _folder=folder local=local_bucket
yogadl.storage._objects bucket obstore_ranges
yogadl.storage._remote _held=held_ranges _remote_opening=opener
yogadl.storage._remote eviction location=eviction mirrored_cache partial_file receive=download
yogadl.storage._remote transfer=download
yogadl._views _chain=functions _stages=stages _filter=chosen
yogadl._core.arguments bytes_of names_of
yogadl._foreign crc32c example_module=example lines_module=lines
yogadl._foreign.arrow Arrow
yogadl._foreign.file_reader FileReader Places
yogadl._foreign.lines Lines
yogadl._foreign.mds MDS shards_of
yogadl._foreign.megatron Megatron
yogadl._foreign.npy Npy
yogadl._foreign.tfrecord TFRecord
yogadl._foreign.webdataset WebDataset split_name
yogadl._format.files FileId Files ForeignFile ForeignFiles PartFile
yogadl.storage._files.permitted Permitted
yogadl.storage._builds.adopted source_of
yogadl.storage._builds.adopted_files format_of_name
yogadl.storage._builds.building begin_build
yogadl._core.columns CHUNK_BYTES CHUNK_RECORDS batch_column column_of columns_of columns_split=split widen
yogadl._core.columns declaration_text declare
yogadl._workers processes
yogadl._workers.messages pickled
yogadl._workers.server Workers
yogadl._format checks fingerprint=columns manifest rows writer
yogadl._format.table ArrayFile
yogadl._format.checks CheckedReader Checksums
yogadl._format.codec Decoder
yogadl._format.columns HeapValues stored_column
yogadl._format.fields VaryingField are_readable=_are_readable
yogadl._format.columns RunHash fingerprint_of hash_rows hash_run
yogadl._format.layout HEAP_BLOCK_BYTES PartIndex join_parts
yogadl._format.manifest Manifest digest_of read_manifest
yogadl._format.old_cache OldCache
yogadl._format.reader Reader
yogadl._format.rows Parts
yogadl._format.joined Selection most_selection_bytes read_selection
yogadl._format.table MOST_EMPTY_RECORDS PartTable
yogadl._format.rows AddressRange
yogadl._format.writer CacheWriter
yogadl._core.frozen frozen
yogadl._core.protocols Announced RandomAccess
yogadl._views.joined JoinedRecords
yogadl._views.views MadeRecords Needs SameNumbers SameValues
yogadl._core.frozen MAX_DEPTH MAX_VALUES parse_json
yogadl._core json_value
yogadl._core.infer SAMPLED_RECORDS
yogadl._core.forms Forms
yogadl._core.json_value JsonText MAX_JSON_DEPTH decode decode_foreign encode
yogadl._core.key DatasetKey RESERVED_NAMES is_dataset_id new_key
yogadl._core.spec BadValueError MAX_DIMENSIONS dtype_named leaf_of
yogadl._core.memory BatchMemory
yogadl._order GlobalOrder Mixture Order SourceOrder _permutation=permutation _random=random derive_key
yogadl._order.keys splitmix64_output
yogadl._order.lengths total
yogadl._order order_packs=packs
yogadl._order Drawn draw_of
yogadl._order.keys RECORDS_LIMIT
yogadl._order.buckets MOST_GROUPS BucketPlan GroupPlan
yogadl._order.draw EXACT_EACH make_ranges permute_each
yogadl._order.packs PackPlan
yogadl._views.lengths lengths_of
yogadl._order make_order
yogadl._order.keys apportion
yogadl._order.keys absorb absorb_array
yogadl._order.mix RUN
yogadl._order.permutation EXACT_LIMIT ROUNDS permute unpermute
yogadl._order.random generators
yogadl._order.orders BlocksOrder SequencesOrder _KEPT_LAYOUTS _LEVELLING
yogadl._order BlocksOfGroups SequencesOfEpisodes
yogadl._core.protocols usual_prices
yogadl._core.printable masked printable without_secrets
yogadl._provenance.code CodeReader dumped
yogadl._provenance.builder Describer sha256_of_data
yogadl._provenance.difference Difference difference
yogadl._provenance.code names_read
yogadl._provenance.members modules_of_packages=_modules_of_packages
yogadl._sources.sources ArraysSource ItemsSource IterableSource RecordsSource Source open_source
yogadl._core.spec DictNode MAX_FIELDS SequenceNode Spec
yogadl._views.shares SPLIT_TAG _CHUNK_RECORDS numbers_of_values split_split=split
yogadl._order.draw sampled whole_weights
yogadl._stream Cut NumberedBatches Point RecordStream Run Shard Span iterator run stats=recipe
yogadl._stream walk
yogadl._stream.cut count_of pieces_of
yogadl.adapters.arrays arrays_source=_source
yogadl.adapters.grain _items grain_loader=_loader
yogadl.adapters.grain._items Assignment
yogadl.adapters.keras keras_loader=_loader
yogadl.adapters.ray _RefDatasource
yogadl.adapters.tensorflow _build_state=_source _cache tensorflow_loader=_loader
yogadl.adapters.tensorflow._source graph_of
yogadl.cli _arguments _bench _demo _output _report=_report_page
yogadl.cli._adopt parse_feature
yogadl.cli._arguments parse_size
yogadl.cli._output size_in_words=size
yogadl.cli._build parse_argument
yogadl.cli._report_page Subject charts=markup page_of summary
yogadl.cli fields=_report_page records=_report_page sampling=_report_page
yogadl.cli._report_page.summary BARS bars_of
yogadl.cli._report_page.markup MOST_LABEL classes histogram
yogadl._core.shown Image MOST_FILE_BYTES MOST_SIDE fault_of image_of_array image_of_file is_image kind_of
yogadl._core.shown element lines text
yogadl.cli._report_page.summary MOST_CLASSES MOST_FAULTS MOST_VALUES faults_of summary_of
yogadl.storage _copy
yogadl.storage _names
yogadl._core.arguments MOVED
yogadl.cli storage_doctor=_checking
yogadl.storage._objects.bucket Body Bucket FetchedRange Object ReplacedError read replaced
yogadl.storage._objects.bucket PROBE check_conditions
yogadl.storage._files.local_bucket LocalBucket
yogadl.storage._remote.urls open_bucket
yogadl.storage._objects.retry Attempts PROGRESS_BYTES Retrier RetryPolicy TransientError UnavailableError
yogadl.storage._objects.retry UnreachableError
yogadl.storage._objects.store NotCarriedOverError
yogadl.storage._catalogue.cached REMEDY
yogadl.storage._copy copy
yogadl.cli._checking Outcome examine_bucket examine_process
yogadl.storage._catalogue.backend LeaseLostError
yogadl.storage._catalogue.catalogue Catalogue
yogadl.storage._local user_cache_folder
yogadl.storage._catalogue.export file_names
yogadl.storage._files.locks Claim is_free locked
yogadl.storage._files.folder Folder
yogadl.storage._leases heartbeat lease
yogadl.storage._leases.heartbeat retry_ending
yogadl.storage._leases.lease BuildLease Leases
yogadl.storage._leases.heartbeat Lease
yogadl.storage._leases.heartbeat LeaseState SilenceTimer
yogadl.storage._local FolderOpener
yogadl.storage._remote.eviction evict_for
yogadl.storage._remote.ranged_cache Filler
yogadl.storage._remote.eviction MirrorLocation
yogadl.storage._remote.mirror LocalMirror
yogadl.storage._remote.mirrored_cache MirroredCache
yogadl.storage._remote.partial_file PartialFile
yogadl.storage._remote.download Download download_all upload
yogadl.storage._files.folder file_system_of is_network network_file_system
yogadl.storage._builds.partitions Partitions
yogadl.storage._catalogue.cached PartPaths open_table read_index table_to_read
yogadl.storage._remote.ranges INTERLEAVED_GAP_BYTES GAP_BYTES HELD_GAP_BYTES MOST_RANGE_BYTES PAGE_BYTES
yogadl.storage._remote.ranges AnnouncedRanges merged
yogadl.storage._remote.ranges Ranges
yogadl.storage._files.bucket_root BucketRoot
yogadl.storage._remote.opener MirrorOpener remote_backend
yogadl.storage._builds.shares cut=records_per_share
yogadl.storage._builds.left_out LeftOut
yogadl._format.manifest MAX_METADATA_BYTES
yogadl.storage._remote.requests PartObjects RequestCount Spending
yogadl.storage._remote.requests DaemonThreads end_all_threads=_end_all
yogadl._workers.serial SerialExecutor call_into
yogadl.storage._objects.store_bucket ResumedRead
"""
# The same of constants; tests name them without an underscore in front.
CONSTANTS = """
yogadl._core.spec _MAX_NAME_CHARACTERS
yogadl._views.chosen _TASKS _TASK_RECORDS CHOSEN_READ_RECORDS=_READ_RECORDS
yogadl._format.joined _MOST_BLOCKS
yogadl._format.fields _KEPT_VALUES_BYTES
yogadl.adapters.datasets HF_MOST_BYTES=_MOST_BYTES HF_READ_ROWS=_READ_ROWS
yogadl.adapters.datasets HF_AT_ONCE_BYTES=_AT_ONCE_BYTES HF_AT_ONCE_RECORDS=_AT_ONCE_RECORDS
yogadl._format.writer _FEW_RECORDS
yogadl._format.manifest MAX_MANIFEST_BYTES _SMALL_BYTES
yogadl._foreign.file_reader _UNREAD_BLOCK_BYTES FOREIGN_MOST_RECORDS=_MOST_RECORDS
yogadl._foreign.file_reader FOREIGN_MOST_VALUE_BYTES=MAX_LEAF_BYTES
yogadl._format.rows _READ_GAP_BYTES _JOINED_VALUE_BYTES _STRETCH_BYTES
yogadl._format.files _MOST_OPEN_FILES
yogadl.storage._builds.adopted _GROUPS _LEAST_GROUP_BYTES _MOST_GROUP_BYTES _LEAST_UNREAD_FILES
yogadl.storage._builds.adopted _SMALL_FILE_BYTES
yogadl.storage._files.permitted FOREIGN_WINDOW_BYTES=_LOCAL_WINDOW_BYTES
yogadl._format.rows KEPT_BYTES MAX_MAPPED_PARTS _REMAP_CACHE_BYTES _REMAP_AFTER_PAGES
yogadl._format.table _SUMS_AT_ONCE
yogadl._order.lengths CHUNK_LENGTHS=_CHUNK
yogadl._views.records MOST_HASHED_BYTES=_MOST_HASHED_BYTES
yogadl._views.lengths LENGTHS_AT_ONCE=_AT_ONCE LENGTHS_READ_BYTES=_READ_BYTES
yogadl._views.lengths LENGTHS_READ_RECORDS=_READ_RECORDS
yogadl._order.permutation ROUNDS
yogadl._core.progress PROGRESS_DELAY_S=_DELAY_S
yogadl._stream.block_ahead BLOCK_AHEAD_REQUEST_BYTES=_REQUEST_BYTES _COMING_BYTES _WINDOW_BYTES
yogadl._stream.items ITEMS_MOST_BYTES=MOST_BYTES
yogadl._stream.plan COUNTED PLAN_INDICES=INDICES_PER_CHUNK
yogadl._stream.tickets LONG_WAIT_S TOGETHER_BYTES UNREACHED_PLACES
yogadl._stream.workers MOST_SEGMENTS
yogadl._stream.run RUN_INDICES=INDICES_PER_CHUNK
yogadl._stream.run _MOST_REJECTED
yogadl._stream.workers WORKERS_CHUNK_BYTES=_CHUNK_BYTES
yogadl.adapters.arrow_export HAS_JSON=_HAS_JSON _MAX_BYTES
yogadl.adapters.ray _BLOCK_BYTES
yogadl.adapters.tensorflow._loader _MOST_EPOCHS _TOKENS
yogadl.adapters.tensorflow._source _CHUNK_RECORDS _LARGE_GRAPH_BYTES
yogadl.cli._bench _SAMPLE_BYTES
yogadl.cli._checking _PATIENCE
yogadl.cli._head HEAD_READ_BYTES=_READ_BYTES
yogadl.cli._output OUTPUT_DELAY_S=_DELAY_S
yogadl.cli._report_page MOST_VERSIONS _MOST_LINES
yogadl._core.shown MOST_IMAGE_BYTES
yogadl._stream.stream SHOWN_BYTES=_SHOWN_BYTES
yogadl.cli._report_page RECORDS
yogadl.cli._report_page _MOST_RECORDS_PER_READ SAMPLING_MOST_BYTES=MOST_BYTES
yogadl.cli._output WAITING_DELAY_S=_DELAY_S _TICK_S
yogadl.storage._objects.obstore_ranges OBSTORE_BUSY_FOR_S=_BUSY_FOR_S
yogadl.storage._objects.retry RETRY_LOG_AFTER_S=_LOG_AFTER_S _NEVER_ANSWERED_LIMIT_S
yogadl.storage._catalogue.catalogue _MOST_FILES_LISTED
yogadl.storage._remote.ranges CHECKED_RANGES_AT_ONCE_BYTES=_AT_ONCE_BYTES
yogadl.cli._checking _LITTLE_ROOM_BYTES
yogadl.storage._builds.executors _LEAST_WAITING_IF_UNKNOWN _LEAST_WAITING _MOST_WAITING
yogadl.storage._builds.executors _PART_BYTES _WAITING_BYTES
yogadl.storage._catalogue.export EXPORT_CHUNK_BYTES=_CHUNK_BYTES
yogadl.storage._builds.growth MOST_EARLIER
yogadl.storage._remote.held_ranges HELD_MOST_IN_MEMORY_BYTES=MOST_IN_MEMORY_BYTES
yogadl.storage._catalogue.backend _MIN_TTL_S
yogadl.storage._leases.heartbeat _REPORT_EVERY_S
yogadl.storage._leases.heartbeat WAITING_LOG_AFTER_S=_LOG_AFTER_S _FIRST_PAUSE_S _LONGEST_PAUSE_S
yogadl.storage._leases.locks LOCK_LOG_AFTER_S=_LOG_AFTER_S
yogadl.storage._remote.eviction _ABANDONED_S _SPARE_BYTES
yogadl.storage._remote.ranged_cache PARTS_AT_ONCE _LOOK_INTERVAL_S _FIRST_READS _FIRST_READS_S
yogadl.storage._remote.eviction _OTHER_TEMPORARY
yogadl.storage._remote.partial_file _BOOT
yogadl.storage._remote.ranged_cache RANGED_CACHE_MOST_IN_MEMORY_BYTES=MOST_IN_MEMORY_BYTES
yogadl.storage._remote.download _FEW_RANGE_BYTES _LEAST_RANGE_BYTES _MOST_RANGE_BYTES _WRITE_BYTES
yogadl.storage._remote.download _STALL_S
yogadl.storage._files.folder _MOUNTINFO
yogadl.storage._catalogue.cached LARGE_TABLE_BYTES MAX_DICTIONARY_BYTES
yogadl._format.codec _DICTIONARY_BYTES _TRAINED_BYTES _TRAINED_VALUES
yogadl.storage._builds.dictionaries TRAINING_S=_SAMPLE_S
yogadl._format.writer AUTO_BYTES CODEC_SAMPLE_BYTES=SAMPLE_BYTES SAMPLE_RECORDS
yogadl.storage._remote.ranges PLANNING_AHEAD_BYTES=AHEAD_BYTES
yogadl.storage._remote.ranges PLANNING_MOST_CHECKED_BYTES=MOST_CHECKED_BYTES
yogadl.storage._remote.ranges GAP_BYTES MOST_HELD_BYTES TOGETHER_BYTES
yogadl.storage._remote.ranges _THREADS
yogadl.storage._remote.requests LIVING_THREADS=_living
yogadl.storage._remote.opener REMOTE_OPENING_AT_ONCE_BYTES=AT_ONCE_BYTES
yogadl.storage._builds.shares _SHARES _SHARE_BYTES
yogadl._sources.sources SAMPLED_RECORDS
yogadl.storage._builds.adopted LEAST_GROUP_BYTES=_LEAST_GROUP_BYTES
yogadl._foreign.groups _HELD_BYTES
yogadl._foreign.parquet_columns _TAIL_BYTES
"""


def _read(table: str, stripped: str = "") -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for line in table.split("\n"):
        module, *words = line.split() or [""]
        for word in words:
            name, _, given = word.rpartition("=")
            found[name or given.lstrip(stripped)] = module, given
    return found


_NAMES, _CONSTANTS = _read(NAMES), _read(CONSTANTS, "_")


def __getattr__(name: str) -> Any:
    try:
        module, given = _NAMES[name]
    except KeyError:
        raise AttributeError(f"tests/inside.py does not say where {name} is") from None
    found = import_module(module)
    return getattr(found, given) if hasattr(found, given) else import_module(f"{module}.{given}")


def spec_of(record: Any, number: int = 0, *, allow_pickle: bool = False) -> Any:
    """Return the structure that one record decides."""
    from yogadl._core.forms import Forms
    from yogadl._core.infer import infer

    return infer([record], Forms(allow_pickle=allow_pickle), [number])


def set_constants(monkeypatch: Any, **values: Any) -> None:
    """Give constants of the library other values until the test ends."""
    for name, value in values.items():
        module, given = _CONSTANTS[name]
        monkeypatch.setattr(import_module(module), given, value)
