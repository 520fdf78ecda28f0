"""Import the SDKs, for all who make clients, and let boto3 read its models once, and not for each session.

Reading them is four fifths of the time to make a client.
"""

import functools

import boto3
import google.cloud.storage  # noqa: F401
import obstore  # noqa: F401
from botocore.loaders import JSONFileLoader

_read = functools.cache(functools.partial(JSONFileLoader.load_file, JSONFileLoader()))
JSONFileLoader.load_file = lambda _, path: _read(path)
boto3.session.Session().client("s3", region_name="us-east-1").close()
