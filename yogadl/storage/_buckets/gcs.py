"""Speak Google Cloud Storage's verbs through google-cloud-storage: the only file that knows it."""

import contextlib
import errno
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from yogadl._version import library_version
from yogadl.errors import ConfigurationError, MissingDependencyError, StorageError
from yogadl.storage._buckets.bucket import Body, Object, replaced
from yogadl.storage._buckets.per_process import PerProcess
from yogadl.storage._buckets.retry import DEFAULT_RETRY, RetryPolicy
from yogadl.storage._buckets.store import BadResponseError, Page, PastEndError, size_of_whole
from yogadl.storage._buckets.store_bucket import StoreBucket, checked_endpoint, given, remade
from yogadl.storage._buckets.store_errors import Refusal, Verb, passing, refusal, strange, unreached

_CONNECT_TIMEOUT_S: Final = 10.0
_CONNECTIONS: Final = 64
# A file goes in pieces of this size, each tried again for itself; one is held in memory.
_PIECE_BYTES: Final = 2**25
_GIVE_CREDENTIALS: Final = (
    "run 'gcloud auth application-default login', set GOOGLE_APPLICATION_CREDENTIALS, or read a public "
    "bucket with anonymous=True"
)
# Whoever has it may go on with an upload.
_SESSION: Final = re.compile(r"upload_id=[^&\s'\")]+")
_AS_IT_IS: Final = {"content_type": "application/octet-stream", "checksum": "crc32c"}
_PERMISSIONS: Final = {
    Verb.READ: "storage.objects.get",
    Verb.WRITE: "storage.objects.create, and storage.objects.delete to replace",
    Verb.LIST: "storage.objects.list",
    Verb.DELETE: "storage.objects.delete",
}


class GCSBucket(StoreBucket):
    """A bucket in Google Cloud Storage. Implements `Bucket`.

    Args:
        bucket: Its name.
        prefix: The root; empty for all of the bucket.
        endpoint_url: Where the store answers, if it is not Google.
        anonymous: Read a public bucket without credentials.
        user_project: The project that pays for the requests.
        kms_key_name: The key that encrypts what is written.
        client_options: What else `google.cloud.storage.Client` is given: ``project``, ``credentials``,
            ``client_options``, ``extra_headers`` ...
        patience: How long to wait for the store.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint_url: str | None = None,
        anonymous: bool = False,
        user_project: str | None = None,
        kms_key_name: str | None = None,
        client_options: Mapping[str, Any] | None = None,
        patience: RetryPolicy = DEFAULT_RETRY,
    ) -> None:
        connect = partial(_client, checked_endpoint(endpoint_url), anonymous, dict(client_options or {}))
        # A client could say it, but to make one may take asking for credentials.
        of_client = (client_options or {}).get("client_options")
        endpoint = f"{endpoint_url or os.environ.get('STORAGE_EMULATOR_HOST')} {of_client}"
        super().__init__(
            _GCS(bucket, endpoint, connect, user_project, kms_key_name, patience.silence_s), prefix, patience
        )
        self._options = given(
            endpoint_url=endpoint_url,
            anonymous=anonymous,
            user_project=user_project,
            kms_key_name=kms_key_name,
            client_options=client_options,
            patience=None if patience == DEFAULT_RETRY else patience,
        )
        self._place = bucket, prefix

    def __reduce__(self) -> Any:
        return remade, (GCSBucket, self._place, self._options, self._contact.answered.is_set())


def _client(endpoint_url: str | None, anonymous: bool, options: Mapping[str, Any]) -> Any:
    from google.api_core.client_info import ClientInfo
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import DefaultCredentialsError
    from google.cloud import storage
    from requests.adapters import HTTPAdapter

    given = {"project": None, "client_info": ClientInfo(user_agent=f"yogadl/{library_version()}"), **options}
    if anonymous:
        given["credentials"] = AnonymousCredentials()
    try:
        if endpoint_url is not None:
            given["client_options"] = {**given.get("client_options", {}), "api_endpoint": endpoint_url}
        client = storage.Client(**given)
    except DefaultCredentialsError:
        raise  # an error of the attempt: they may come later
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"google-cloud-storage can't make a client with these options: {error}"
        ) from error
    session = client._http
    session.headers.update(options.get("extra_headers", {}))
    if not session.is_mtls:  # which has an adapter of its own
        # The SDK's holds ten connections, fewer than a download has in flight.
        for scheme in ("https://", "http://"):
            session.mount(scheme, HTTPAdapter(pool_connections=4, pool_maxsize=_CONNECTIONS))
    return client


def _refuse_without_sdk() -> None:
    try:
        import google.cloud.storage  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "buckets in Google Cloud Storage need google-cloud-storage: pip install 'yogadl[gcs]'"
        ) from error


class _GCS:
    """One attempt at each verb. Implements `Store`."""

    def __init__(
        self,
        bucket: str,
        endpoint: str,
        connect: Callable[[], Any],
        user_project: str | None,
        kms_key_name: str | None,
        silence_s: float,
    ) -> None:
        self._bucket_name = bucket
        self._endpoint = endpoint
        self._client = PerProcess(connect)
        self._user_project = user_project
        self._kms_key_name = kms_key_name
        # Each attempt is one of the SDK's: above, they are repeated.
        self._once = {
            "retry": None,
            "timeout": (min(_CONNECT_TIMEOUT_S, silence_s), silence_s),
        }

    @property
    def url(self) -> str:
        return f"gs://{self._bucket_name}"

    @property
    def endpoint(self) -> str:
        return self._endpoint

    @contextlib.contextmanager
    def open(
        self, name: str, start: int, stop: int | None, *, tag: str | None, chunk_bytes: int
    ) -> Iterator[Body | None]:
        with self._translated(Verb.READ, name):
            answer = self._get(name, start, stop, tag)
        with contextlib.closing(answer):
            if answer.status_code == 404:
                yield None
                return
            with self._translated(Verb.READ, name):
                found = _object_sent(name, answer.headers, start, stop)
            yield Body(found, self._chunks(answer.raw, name, chunk_bytes))

    def put(self, name: str, content: bytes | Path) -> Object:
        with self._translated(Verb.WRITE, name):
            if isinstance(content, Path):
                blob = self._blob(name)
                blob.upload_from_filename(str(content), **_AS_IT_IS, **self._once)
            else:
                blob = self._write(name, content)
        return _object(blob)

    def create(self, name: str, content: bytes) -> bool:
        with self._translated(Verb.WRITE, name, (412,)) as answered:
            self._write(name, content, if_generation_match=0)
        return answered.status != 412

    def head(self, name: str) -> Object | None:
        with self._translated(Verb.READ, name):
            blob = self._bucket().get_blob(name, **self._once)
        return None if blob is None else _object(blob)

    def page(self, prefix: str, mark: str | None) -> Page:
        with self._translated(Verb.LIST, prefix):
            listed = self._bucket().list_blobs(prefix=prefix, page_token=mark, **self._once)
            page = next(listed.pages, ())
            return Page([_object(blob) for blob in page], listed.next_page_token)

    def delete(self, name: str) -> None:
        with self._translated(Verb.DELETE, name, (404,)):
            self._blob(name).delete(**self._once)

    def _bucket(self) -> Any:
        return self._client().bucket(self._bucket_name, user_project=self._user_project)

    def _blob(self, name: str) -> Any:
        return self._bucket().blob(name, chunk_size=_PIECE_BYTES, kms_key_name=self._kms_key_name)

    def _write(self, name: str, content: bytes, **condition: int) -> Any:
        blob = self._blob(name)
        blob.upload_from_string(content, **_AS_IT_IS, **self._once, **condition)
        return blob

    def _get(self, name: str, start: int, stop: int | None, tag: str | None) -> Any:
        """Ask for the bytes themselves: what the SDK reads it can only push into a file."""
        from google.api_core.exceptions import from_http_response

        client = self._client()
        asked = {"alt": "media", "ifGenerationMatch": tag, "userProject": self._user_project}
        # Accepting gzip means: send them as they are stored.
        headers = {"Accept-Encoding": "gzip", "User-Agent": f"yogadl/{library_version()}"}
        if start or stop is not None:
            headers["Range"] = f"bytes={start}-" if stop is None else f"bytes={start}-{stop - 1}"
        answer = client._http.get(
            f"{client.api_endpoint}/download/storage/v1/b/{self._bucket_name}/o/{quote(name, safe='')}",
            params={key: value for key, value in asked.items() if value is not None},
            headers=headers,
            stream=True,
            timeout=self._once["timeout"],
        )
        if answer.status_code in (200, 206, 404):
            return answer
        with contextlib.closing(answer):
            if answer.status_code == 412:
                raise replaced(self.url, name)
            if answer.status_code == 416:
                raise PastEndError(errno.EINVAL, f"{self.url}/{name} ends before byte {start}")
            raise from_http_response(answer)

    def _chunks(self, raw: Any, name: str, chunk_bytes: int) -> Iterator[bytes]:
        with self._translated(Verb.READ, name):
            while chunk := raw.read(chunk_bytes, decode_content=False):
                yield chunk

    @contextlib.contextmanager
    def _translated(self, verb: Verb, name: str, expected: tuple[int, ...] = ()) -> Iterator["_Answered"]:
        """Raise any error of the SDK as one of ours, but for the expected HTTP statuses, which are noted."""
        _refuse_without_sdk()
        from google.api_core.exceptions import GoogleAPICallError
        from google.auth.exceptions import GoogleAuthError
        from google.resumable_media import DataCorruption
        from requests.exceptions import RequestException
        from urllib3.exceptions import HTTPError

        answered = _Answered()
        try:
            yield answered
        except GoogleAPICallError as error:
            answered.status = error.code or 0
            if answered.status not in expected:
                raise _refused(error, verb, f"{self.url}/{name}") from error
        except GoogleAuthError as error:
            raise _unknown(error, verb, f"{self.url}/{name}") from error
        except (KeyError, json.JSONDecodeError, BadResponseError) as error:
            raise strange(verb, f"{self.url}/{name}", error) from error
        except (RequestException, HTTPError, DataCorruption) as error:
            raise _broken_off(error, verb, f"{self.url}/{name}") from error


@dataclass
class _Answered:
    """The HTTP status of an answer that was none of success; 0 if there was none."""

    status: int = 0


def _refused(error: Any, verb: Verb, what: str) -> StorageError:
    status = error.code or 0
    detail = f"{status} {_said(error)}"
    if status in (408, 409, 429) or (status >= 500 and status != 501):
        return passing(verb, what, detail)
    if status == 404:
        return refusal(Refusal.NO_BUCKET, verb, what, "", detail)
    if status == 401:
        return refusal(Refusal.WRONG_SECRET, verb, what, "", detail)
    if status == 403:
        return refusal(Refusal.FORBIDDEN, verb, what, _PERMISSIONS[verb], detail)
    return refusal(Refusal.OTHER, verb, what, "", detail)


def _broken_off(error: Exception, verb: Verb, what: str) -> StorageError:
    """Say what it means that no answer came, or none to its end."""
    from requests import exceptions
    from urllib3.exceptions import NewConnectionError

    detail = _SESSION.sub("upload_id=...", str(error))
    if isinstance(error, exceptions.MissingSchema | exceptions.InvalidSchema | exceptions.InvalidURL):
        return refusal(Refusal.NO_URL, verb, what, "", detail)
    if isinstance(error, exceptions.SSLError) and "CERTIFICATE_VERIFY_FAILED" in detail:
        return refusal(Refusal.NOT_TRUSTED, verb, what, "", detail)
    reason = getattr(error.args[0], "reason", None) if error.args else None
    if isinstance(error, exceptions.SSLError | exceptions.ProxyError) or isinstance(
        reason, NewConnectionError
    ):
        return unreached(verb, what, detail)
    return passing(verb, what, detail)


def _said(error: Any) -> str:
    """Return the store's own words; around them the SDK puts URLs that grant the right to write."""
    try:
        said: str = error.response.json()["error"]["message"]
    except (AttributeError, ValueError, LookupError, TypeError):
        said = _SESSION.sub("upload_id=...", error.message or "")
    return said


def _unknown(error: Any, verb: Verb, what: str) -> StorageError:
    """Say what is wrong with the credentials, of which the store was never told."""
    from google.auth.exceptions import DefaultCredentialsError, TransportError
    from requests.exceptions import RequestException

    if isinstance(error, TransportError) and isinstance(error.__cause__, RequestException):
        return _broken_off(error.__cause__, verb, what)
    if isinstance(error, TransportError) or error.retryable:
        return passing(verb, what, str(error))
    if isinstance(error, DefaultCredentialsError):
        return refusal(Refusal.NO_CREDENTIALS, verb, what, _GIVE_CREDENTIALS, str(error))
    return refusal(Refusal.EXPIRED, verb, what, "or this machine's clock is wrong", str(error))


def _object_sent(name: str, headers: Mapping[str, str], start: int, stop: int | None) -> Object:
    try:
        size = size_of_whole(headers.get("Content-Range"), int(headers["Content-Length"]), start, stop)
        modified = parsedate_to_datetime(headers["Last-Modified"]).timestamp()
    except ValueError as error:
        raise BadResponseError(str(error)) from error
    return Object(name, size, headers["X-Goog-Generation"], modified)


def _object(blob: Any) -> Object:
    if None in (blob.size, blob.generation, blob.updated):
        raise BadResponseError("size, generation or time")
    return Object(blob.name, blob.size, str(blob.generation), blob.updated.timestamp())
