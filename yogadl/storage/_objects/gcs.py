"""Reach Google Cloud Storage through its SDK, which only this file imports; obstore sends the same gets."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from yogadl._core.key import library_version
from yogadl._core.process import PerProcess
from yogadl.errors import StorageError
from yogadl.storage._objects.bucket import Body, Object
from yogadl.storage._objects.retry import DEFAULT_RETRY, RetryPolicy, UnreachableError
from yogadl.storage._objects.store import (
    CONNECT_TIMEOUT_S,
    CONNECTIONS,
    BadResponseError,
    CountedFile,
    NotCarriedOverError,
    Page,
    Refusal,
    Sdk,
    Transport,
    Verb,
    checked_endpoint,
    is_transient,
    range_header,
    refuse_range,
    refused,
    refused_options,
    shown_cause,
    size_of_whole,
    transient,
)
from yogadl.storage._objects.store_bucket import StoreBucket

# How google-cloud-storage sends a GET, so that obstore can send it in the same way.

# Arguments of the client, and keys of its argument `client_options`, that are passed on to obstore, or that
# do not affect a GET. Any other one may have no equal in obstore.
_CLIENT_ARGUMENTS: Final = {"project", "credentials", "client_info", "client_options", "extra_headers"}
_CLIENT_OPTIONS: Final = {"api_endpoint", "credentials_file", "quota_project_id", "scopes", "universe_domain"}
# Headers that the package `requests` sends with every request.
_HEADERS_OF_REQUESTS: Final = {"user-agent", "accept", "accept-encoding", "connection"}
_PAYER: Final = "x-goog-user-project"
_BEARER: Final = "Bearer "


def check_options(options: Mapping[str, Any]) -> None:
    """Check that a client's options have equals in obstore.

    Raises:
        NotCarriedOverError: if an option has none.
    """
    inner = options.get("client_options") or {}
    client_options = inner if isinstance(inner, Mapping) else vars(inner)
    unknown = options.keys() - _CLIENT_ARGUMENTS
    unknown |= {name for name, value in client_options.items() if value} - _CLIENT_OPTIONS
    if unknown:
        raise NotCarriedOverError(f"the client's options {', '.join(sorted(unknown))}")


def transport_of(client: Any, bucket: str, user_project: str | None, timeouts_s: Any) -> Transport:
    """Return how a client sends GETs, for obstore, which uses the XML API of the same endpoint.

    Raises:
        NotCarriedOverError: if the client has a setting that has no equal in obstore.
        Exception: an error of the SDK, if there are no credentials.
    """
    try:
        return _transport_of(client, bucket, user_project, timeouts_s)
    except (AttributeError, KeyError, TypeError) as error:
        raise NotCarriedOverError("this version of google-cloud-storage") from error


def _transport_of(client: Any, bucket: str, user_project: str | None, timeouts_s: Any) -> Transport:
    from requests.utils import select_proxy

    session, url = client._http, client.api_endpoint
    environment = session.merge_environment_settings(url, {}, True, None, None)
    proxy = select_proxy(url, environment["proxies"])
    signature = _signature(client)
    refusals = {
        "a client certificate": session.is_mtls or environment["cert"],
        "a proxy that is not at http://": proxy and not proxy.startswith("http://"),
        "credentials other than a bearer token": signature
        and not signature["authorization"].startswith(_BEARER),
    }
    for what, is_given in refusals.items():
        if is_given:
            raise NotCarriedOverError(what)
    headers = {name.lower(): value for name, value in session.headers.items()}
    headers = {name: value for name, value in headers.items() if name not in _HEADERS_OF_REQUESTS}
    payer = user_project or signature.get(_PAYER)
    return Transport(
        kind="GCSStore",
        config={"bucket": bucket, "base_url": url, "skip_signature": not signature},
        url=url,
        credentials=partial(_token, client) if signature else None,
        headers=headers | ({_PAYER: payer} if payer else {}),
        user_agent=f"yogadl/{library_version()}",
        verify=environment["verify"],
        proxy_url=proxy,
        timeouts_s=timeouts_s,
    )


def _signature(client: Any) -> Mapping[str, str]:
    """Return the headers that sign a client's requests for some minutes, or none if it is anonymous."""
    headers: dict[str, str] = {}
    session = client._http
    session.credentials.before_request(session._auth_request, "GET", client.api_endpoint, headers)
    return headers


def _token(client: Any) -> Mapping[str, Any]:
    return {"token": _signature(client)["authorization"].removeprefix(_BEARER)}


# Files are uploaded in pieces of this size, each retried by itself; one piece is held in memory.
_PIECE_BYTES: Final = 2**25
_GIVE_CREDENTIALS: Final = (
    "run 'gcloud auth application-default login', set GOOGLE_APPLICATION_CREDENTIALS, or read a public "
    "bucket with anonymous=True"
)
# The id of a resumable upload is a secret: anybody who has it may continue the upload.
_UPLOAD_ID: Final = re.compile(r"upload_id=[^&\s'\")]+")
_UPLOAD_OPTIONS: Final = {"content_type": "application/octet-stream", "checksum": "crc32c"}
_PERMISSIONS: Final = {
    Verb.READ: "storage.objects.get",
    Verb.WRITE: "storage.objects.create, and storage.objects.delete to replace",
    Verb.LIST: "storage.objects.list",
    Verb.DELETE: "storage.objects.delete",
}


class GCSBucket(StoreBucket):
    """A bucket in Google Cloud Storage. Implements `Bucket`.

    Args:
        bucket: The bucket's name.
        prefix: The root; empty for the whole bucket.
        endpoint_url: The URL of the store, if it is not Google.
        anonymous: Read a public bucket without credentials.
        user_project: The project that pays for the requests.
        kms_key_name: The key that encrypts objects that are written.
        client_options: Further arguments for `google.cloud.storage.Client`: ``project``, ``credentials``,
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
        # The endpoint is not read from a client, since making one may take a request for credentials.
        inner_options = (client_options or {}).get("client_options")
        endpoint = f"{endpoint_url or os.environ.get('STORAGE_EMULATOR_HOST')} {inner_options}"
        super().__init__(
            _GCS(
                bucket,
                endpoint,
                connect,
                user_project,
                kms_key_name,
                patience.silence_s,
                client_options or {},
            ),
            bucket,
            prefix,
            patience=patience,
            endpoint_url=endpoint_url,
            anonymous=anonymous,
            user_project=user_project,
            kms_key_name=kms_key_name,
            client_options=client_options,
        )


def _client(endpoint_url: str | None, anonymous: bool, options: Mapping[str, Any]) -> Any:
    from google.api_core.client_info import ClientInfo
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import DefaultCredentialsError
    from google.cloud import storage
    from requests.adapters import HTTPAdapter

    arguments = {
        "project": None,
        "client_info": ClientInfo(user_agent=f"yogadl/{library_version()}"),
        **options,
    }
    if anonymous:
        arguments["credentials"] = AnonymousCredentials()
    try:
        if endpoint_url is not None:
            arguments["client_options"] = {
                **arguments.get("client_options", {}),
                "api_endpoint": endpoint_url,
            }
        client = storage.Client(**arguments)
    except DefaultCredentialsError:
        raise  # only this attempt fails: credentials may appear later
    except (ValueError, TypeError) as error:
        raise refused_options("google-cloud-storage", error) from shown_cause(error)
    session = client._http
    session.headers.update(options.get("extra_headers", {}))
    if not session.is_mtls:  # a session with mTLS has its own adapter
        for scheme in ("https://", "http://"):
            session.mount(scheme, HTTPAdapter(pool_connections=4, pool_maxsize=CONNECTIONS))
    return client


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
        options: Mapping[str, Any],
    ) -> None:
        self._bucket_name = bucket
        self._options = options
        self._endpoint = endpoint
        self._client = PerProcess(connect)
        self._user_project = user_project
        self._kms_key_name = kms_key_name
        # Retries are made in `StoreBucket`.
        self._request_options = {
            "retry": None,
            "timeout": (min(CONNECT_TIMEOUT_S, silence_s), silence_s),
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
        with _SDK.translated(Verb.READ, self._url_of(name)):
            answer = self._get(name, start, stop, tag)
        with contextlib.closing(answer):
            if answer.status_code == 404:
                yield None
                return
            with _SDK.translated(Verb.READ, self._url_of(name)):
                found = _object_sent(name, answer.headers, start, stop)
            read = partial(answer.raw.read, chunk_bytes, decode_content=False)
            yield Body(found, _SDK.chunks(self._url_of(name), read))

    def put(self, name: str, content: bytes | Path, sent: Callable[[int], None]) -> Object:
        with _SDK.translated(Verb.WRITE, self._url_of(name)):
            if isinstance(content, Path):
                blob = self._blob(name)
                with CountedFile(content, sent) as file:
                    blob.upload_from_file(
                        file, size=content.stat().st_size, **_UPLOAD_OPTIONS, **self._request_options
                    )
            else:
                blob = self._write(name, content)
        return _object(blob)

    def create(self, name: str, content: bytes) -> bool:
        with _SDK.translated(Verb.WRITE, self._url_of(name), (412,)) as answer:
            self._write(name, content, if_generation_match=0)
        return answer.status != 412

    def head(self, name: str) -> Object | None:
        with _SDK.translated(Verb.READ, self._url_of(name)):
            blob = self._bucket().get_blob(name, **self._request_options)
        return None if blob is None else _object(blob)

    def page(self, prefix: str, mark: str | None) -> Page:
        with _SDK.translated(Verb.LIST, self._url_of(prefix)):
            listed = self._bucket().list_blobs(prefix=prefix, page_token=mark, **self._request_options)
            page = next(listed.pages, ())
            return Page([_object(blob) for blob in page], listed.next_page_token)

    def delete(self, name: str) -> None:
        with _SDK.translated(Verb.DELETE, self._url_of(name), (404,)):
            self._blob(name).delete(**self._request_options)

    def transport(self) -> Transport:
        check_options(self._options)
        with _SDK.translated(Verb.READ, self._url_of("")):
            client = self._client()
            return transport_of(
                client, self._bucket_name, self._user_project, self._request_options["timeout"]
            )

    def _bucket(self) -> Any:
        return self._client().bucket(self._bucket_name, user_project=self._user_project)

    def _blob(self, name: str) -> Any:
        return self._bucket().blob(name, chunk_size=_PIECE_BYTES, kms_key_name=self._kms_key_name)

    def _write(self, name: str, content: bytes, **condition: int) -> Any:
        blob = self._blob(name)
        blob.upload_from_string(content, **_UPLOAD_OPTIONS, **self._request_options, **condition)
        return blob

    def _get(self, name: str, start: int, stop: int | None, tag: str | None) -> Any:
        """Send the request by the client's HTTP session, since the SDK can only write an object to a file."""
        from google.api_core.exceptions import from_http_response

        client = self._client()
        parameters = {"alt": "media", "ifGenerationMatch": tag, "userProject": self._user_project}
        # Accepting gzip makes the store send the bytes as they are stored.
        headers = {"Accept-Encoding": "gzip", "User-Agent": f"yogadl/{library_version()}"}
        headers |= range_header(start, stop)
        answer = client._http.get(
            f"{client.api_endpoint}/download/storage/v1/b/{self._bucket_name}/o/{quote(name, safe='')}",
            params={key: value for key, value in parameters.items() if value is not None},
            headers=headers,
            stream=True,
            timeout=self._request_options["timeout"],
        )
        if answer.status_code in (200, 206, 404):
            return answer
        with contextlib.closing(answer):
            refuse_range(answer.status_code, self.url, name, start)
            raise from_http_response(answer)

    def _url_of(self, name: str) -> str:
        return f"{self.url}/{name}"


def _errors() -> tuple[type[Exception], ...]:
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import GoogleAuthError
    from google.resumable_media import DataCorruption
    from requests.exceptions import RequestException
    from urllib3.exceptions import HTTPError

    return GoogleAPICallError, GoogleAuthError, RequestException, HTTPError, DataCorruption


def _status_of(error: Any) -> int:
    from google.api_core.exceptions import GoogleAPICallError

    return (error.code or 0) if isinstance(error, GoogleAPICallError) else 0


def _translation(error: Any, verb: Verb, url: str) -> StorageError:
    """Translate one of the SDK's errors."""
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import GoogleAuthError

    match error:
        case GoogleAPICallError():
            return _refused(error, verb, url)
        case GoogleAuthError():
            return _no_credentials(error, verb, url)
    return _broken_off(error, verb, url)


_SDK: Final = Sdk(
    "google.cloud.storage",
    "buckets in Google Cloud Storage need google-cloud-storage: pip install 'yogadl[gcs]'",
    _errors,
    _status_of,
    _translation,
)


def _refused(error: Any, verb: Verb, url: str) -> StorageError:
    status = error.code or 0
    detail = f"{status} {_message(error)}"
    if is_transient(status):
        headers = getattr(error.response, "headers", None) or {}
        return transient(verb, url, detail, retry_after=headers.get("Retry-After"))
    if status == 403:
        return refused(Refusal.FORBIDDEN, verb, url, _PERMISSIONS[verb], detail)
    refusals = {404: Refusal.NO_BUCKET, 401: Refusal.WRONG_SECRET}
    return refused(refusals.get(status, Refusal.OTHER), verb, url, "", detail)


def _broken_off(error: Exception, verb: Verb, url: str) -> StorageError:
    """Return the error for an answer that did not arrive, or was cut short."""
    from requests import exceptions
    from urllib3.exceptions import NewConnectionError

    detail = _UPLOAD_ID.sub("upload_id=...", str(error))
    if isinstance(error, exceptions.MissingSchema | exceptions.InvalidSchema | exceptions.InvalidURL):
        return refused(Refusal.NO_URL, verb, url, "", detail)
    if isinstance(error, exceptions.SSLError) and "CERTIFICATE_VERIFY_FAILED" in detail:
        return refused(Refusal.NOT_TRUSTED, verb, url, "", detail)
    reason = getattr(error.args[0], "reason", None) if error.args else None
    if isinstance(error, exceptions.SSLError | exceptions.ProxyError) or isinstance(
        reason, NewConnectionError
    ):
        return transient(verb, url, detail, UnreachableError)
    return transient(verb, url, detail)


def _message(error: Any) -> str:
    """Return the store's message, without the URLs that the SDK adds, which allow anybody to write."""
    try:
        message: str = error.response.json()["error"]["message"]
    except (AttributeError, ValueError, LookupError, TypeError):
        message = _UPLOAD_ID.sub("upload_id=...", error.message or "")
    return message


def _no_credentials(error: Any, verb: Verb, url: str) -> StorageError:
    """Return the error for credentials that never reached the store."""
    from google.auth.exceptions import DefaultCredentialsError, TransportError
    from requests.exceptions import RequestException

    if isinstance(error, TransportError) and isinstance(error.__cause__, RequestException):
        return _broken_off(error.__cause__, verb, url)
    if isinstance(error, TransportError) or error.retryable:
        return transient(verb, url, str(error))
    if str(error).startswith("Anonymous credentials"):  # the store answered 401
        return refused(Refusal.WRONG_SECRET, verb, url, "", str(error))
    if isinstance(error, DefaultCredentialsError):
        return refused(Refusal.NO_CREDENTIALS, verb, url, _GIVE_CREDENTIALS, str(error))
    return refused(Refusal.EXPIRED, verb, url, "or this machine's clock is wrong", str(error))


def _object_sent(name: str, headers: Mapping[str, str], start: int, stop: int | None) -> Object:
    try:
        size = size_of_whole(headers.get("Content-Range"), int(headers["Content-Length"]), start, stop)
        modified = parsedate_to_datetime(headers["Last-Modified"]).timestamp()
    except ValueError as error:
        raise BadResponseError(str(error)) from error
    return Object(name, size, headers["X-Goog-Generation"], modified)


def _object(blob: Any) -> Object:
    if None in (blob.size, blob.generation, blob.updated):
        raise BadResponseError("the object's size, generation or time is missing")
    return Object(blob.name, blob.size, str(blob.generation), blob.updated.timestamp())
