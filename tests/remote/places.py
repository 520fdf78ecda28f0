"""Make fresh buckets in the stores of the tests."""

import json
import secrets
import urllib.request
from dataclasses import dataclass, field, replace
from typing import Any

from inside import Bucket, open_bucket
from stores import KEY, SECRET

import yogadl
from yogadl.storage import CacheStorage


@dataclass(frozen=True)
class Place:
    """A bucket's URL, and what is needed to open it. Can be pickled and sent to a child process."""

    url: str
    options: dict[str, Any] = field(default_factory=dict)

    def open(self, **more: Any) -> Bucket:
        """Open it, with other options instead or besides."""
        return open_bucket(self.url, **{**self.options, **more})

    def storage(self, **options: Any) -> CacheStorage:
        """Open the storage in it, as a machine with that mirror would, or with none."""
        return yogadl.open_storage(self.url, **{"mirror": None, **self.options, **options})

    def through(self, endpoint_url: str) -> "Place":
        """Return the same bucket as reached at another endpoint, a proxy's."""
        return replace(self, options={**self.options, "endpoint_url": endpoint_url})


def s3_place_at(endpoint_url: str) -> Place:
    """Make a bucket in a store that speaks S3."""
    import boto3

    name = f"test-{secrets.token_hex(6)}"
    options = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=endpoint_url, **options)
    client.create_bucket(Bucket=name)
    client.close()
    return Place(f"s3://{name}/some/root", {"endpoint_url": endpoint_url, "client_options": options})


def gcs_place_at(endpoint_url: str) -> Place:
    """Make a bucket in a store that speaks as Google's does."""
    name = f"test-{secrets.token_hex(6)}"
    request = urllib.request.Request(
        f"{endpoint_url}/storage/v1/b?project=test",
        json.dumps({"name": name}).encode(),
        {"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=60).close()
    return Place(f"gs://{name}/some/root", {"endpoint_url": endpoint_url, "anonymous": True})


def parts_of(place: Place) -> list[Any]:
    """Return the objects that the parts of the dataset "set" are."""
    return [found for found in place.open().list("set/parts/") if found.name.endswith(".mdb")]


def swap(place: Place) -> None:
    """Put other bytes of the same size in the place of each part."""
    bucket = place.open()
    for found in parts_of(place):
        bucket.put(found.name, bytes(found.size_bytes))
