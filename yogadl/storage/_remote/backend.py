"""Put together what a storage in a bucket needs: its catalogue, and the leases of its builds."""

from functools import partial
from typing import Final

from yogadl.errors import ConfigurationError
from yogadl.storage._catalogue.backend import Backend, BuildCoordinator, Lease
from yogadl.storage._catalogue.catalogue import Catalogue
from yogadl.storage._files.bucket_root import BucketRoot
from yogadl.storage._objects.bucket import Bucket, check_conditions
from yogadl.storage._remote.mirror import LocalMirror, MirroredRoot
from yogadl.storage._remote.opener import Fill, MirrorOpener, Verify
from yogadl.storage._remote.requests import Spending

# The largest size of a part in a bucket unless a build gives one.
PART_BYTES: Final = 256 * 2**20


def remote_backend(
    bucket: Bucket,
    mirror: LocalMirror,
    lease: Lease,
    *,
    mapped: bool = True,
    fill: Fill = "auto",
    spending: Spending | None = None,
    verify: Verify = None,
    buckets: tuple[tuple[str, Bucket], ...] = (),
) -> Backend:
    """Return the backend of a storage in a bucket, shared by any number of machines without a server.

    Args:
        bucket: The bucket; no request is made before it is used.
        mirror: This machine's copies.
        lease: How builders exclude each other. If it is exclusive, a test before a build shows that the store
            honours conditional writes.
        mapped: Whether the mirror's files may be mapped.
        fill: Whether to fill the mirror with versions that are read.
        spending: Counts requests for ranges.
        verify: Whether ranges are compared with their checksums.
        buckets: See `Permitted`.

    Raises:
        ConfigurationError: if `verify` has another value.
    """
    if verify not in (None, "block"):
        raise ConfigurationError(f"verify must be None or 'block', not {verify!r}")
    root = MirroredRoot(bucket, mirror)
    opener = MirrorOpener(bucket, mirror, mapped, fill, spending, verify, buckets)
    make_coordinator = partial(_leases, root, bucket, mirror, lease)
    return Backend(Catalogue(root, opener), make_coordinator, PART_BYTES)


def _leases(root: MirroredRoot, bucket: Bucket, mirror: LocalMirror, lease: Lease) -> BuildCoordinator:
    from yogadl.storage._leases.lease import LeaseCoordinator, Leases  # only what builds or prunes needs it

    changed = partial(mirror.renew, digest=None)
    leases = Leases(BucketRoot(bucket), lease)  # without the mirror, which no process of heartbeats needs
    return LeaseCoordinator(
        root, leases, probe=partial(check_conditions, bucket) if lease.exclusive else None, changed=changed
    )
