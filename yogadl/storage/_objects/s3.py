"""Reach S3 through boto3, which only this file imports; obstore sends the same gets."""

import base64
import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from yogadl._core.key import library_version
from yogadl._core.printable import without_secrets
from yogadl._core.process import PerProcess
from yogadl.errors import ConfigurationError, StorageError
from yogadl.storage._objects.bucket import Body, Object
from yogadl.storage._objects.retry import DEFAULT_RETRY, RetryPolicy, UnreachableError
from yogadl.storage._objects.store import (
    CONNECT_TIMEOUT_S,
    CONNECTIONS,
    CountedBytes,
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
    retry_after_s,
    shown_cause,
    size_of_whole,
    transient,
)
from yogadl.storage._objects.store_bucket import StoreBucket

# How boto3 sends a get, so that obstore can send it in the same way.

_ANY_KEY: Final = "key"
# Headers and options of boto3 that obstore gets, too. Any other one may have no equal in obstore.
_HEADERS: Final = {"user-agent", "x-amz-checksum-mode", "x-amz-request-payer"}
_OPTIONS: Final = {
    "addressing_style",
    "payload_signing_enabled",
    "us_east_1_regional_endpoint",
    "use_dualstack_endpoint",
    "use_arn_region",
}
_SIGNED, _UNSIGNED = "v4", "none"


def prepared_get(client: Any, **arguments: Any) -> Mapping[str, Any]:
    """Return the get that the client would send, with its URL and headers; nothing is sent.

    No other thread may use the client meanwhile.
    """
    prepared: dict[str, Any] = {}

    def stop(params: Mapping[str, Any], **_: Any) -> Any:
        prepared.update(params)
        return SimpleNamespace(status_code=200), {}  # in place of an answer

    client.meta.events.register_first("before-call.s3.GetObject", stop)
    try:
        client.get_object(Key=_ANY_KEY, **arguments)
    finally:
        client.meta.events.unregister("before-call.s3.GetObject", stop)
    return prepared


def transport_of(client: Any, get: Mapping[str, Any]) -> Transport:
    """Return how a client sends such gets.

    Raises:
        NotCarriedOverError: if the client has a setting that has no equal in obstore.
    """
    try:
        return _transport_of(client, get)
    except (AttributeError, KeyError, TypeError) as error:
        raise NotCarriedOverError("this version of botocore, whose requests look different") from error


def _transport_of(client: Any, get: Mapping[str, Any]) -> Transport:
    config, session = client.meta.config, client._endpoint.http_session
    url, context = get["url"], get["context"]
    headers = {name.lower(): value for name, value in get["headers"].items()}
    signing, kind = context["signing"], context["auth_type"]
    proxy = session._proxy_config.proxy_url_for(url)
    timeouts = config.connect_timeout, config.read_timeout
    refusals = {
        f"the headers {', '.join(headers.keys() - _HEADERS)}": headers.keys() - _HEADERS,
        f"the options {', '.join(_names_of_set(config.s3) - _OPTIONS)}": _names_of_set(config.s3) - _OPTIONS,
        "arguments in a get's address": not url.endswith(f"/{_ANY_KEY}"),
        f"signatures {kind} for {signing.get('signing_name')}": kind not in (_SIGNED, _UNSIGNED)
        or signing.get("signing_name", "s3") != "s3",
        "a client certificate": session._cert_file,
        "options for a proxy": session._proxy_config.settings,
        "a proxy that is not at http://": proxy and not proxy.startswith("http://"),
        "no limit in time": not all(isinstance(each, int | float) for each in timeouts),
    }
    for what, is_given in refusals.items():
        if is_given:
            raise NotCarriedOverError(what)
    credentials = client._request_signer._credentials
    if kind == _SIGNED and credentials is None:
        raise NotCarriedOverError("no credentials")
    endpoint = url.removesuffix(f"/{_ANY_KEY}")  # contains the bucket, in the SDK's style of addresses
    # All settings that obstore would otherwise take from the environment.
    settings = {
        "bucket": "bucket",
        "endpoint": endpoint,
        "aws_endpoint_url_s3": endpoint,
        "virtual_hosted_style_request": True,
        "region": signing.get("region", "us-east-1"),
        "skip_signature": kind == _UNSIGNED,
        "request_payer": "x-amz-request-payer" in headers,
        "s3_express": False,
        "unsigned_payload": False,
    }
    return Transport(
        kind="S3Store",
        config=settings,
        url=url,
        credentials=partial(_current_credentials, credentials) if kind == _SIGNED else None,
        headers={},
        user_agent=headers["user-agent"],
        verify=session._verify,
        proxy_url=proxy,
        timeouts_s=timeouts,
    )


def _current_credentials(credentials: Any) -> Mapping[str, Any]:
    current = credentials.get_frozen_credentials()  # renews them if they are about to expire
    return {
        "access_key_id": current.access_key,
        "secret_access_key": current.secret_key,
        "token": current.token,
    }


def _names_of_set(options: Mapping[str, Any] | None) -> set[str]:
    return {name for name, value in (options or {}).items() if value}


# The SDK retries each part of a file by itself; everything else is retried in `StoreBucket`.
_ATTEMPTS_PER_PART: Final = 6
_GIVE_CREDENTIALS: Final = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile=, or read a public bucket with "
    "anonymous=True"
)
_METHODS: Final = ("get_object", "put_object", "head_object", "list_objects_v2", "delete_object")
_REFUSALS: Final = {
    "NoSuchBucket": Refusal.NO_BUCKET,
    "InvalidAccessKeyId": Refusal.WRONG_SECRET,
    "SignatureDoesNotMatch": Refusal.WRONG_SECRET,
    "InvalidToken": Refusal.WRONG_SECRET,
    "AuthFailure": Refusal.WRONG_SECRET,
    "ExpiredToken": Refusal.EXPIRED,
    "ExpiredTokenException": Refusal.EXPIRED,
    "TokenRefreshRequired": Refusal.EXPIRED,
    "RequestExpired": Refusal.EXPIRED,
    "RequestTimeTooSkewed": Refusal.SKEWED,
    "AuthorizationHeaderMalformed": Refusal.ELSEWHERE,
    "IllegalLocationConstraintException": Refusal.ELSEWHERE,
    "PermanentRedirect": Refusal.ELSEWHERE,
    "301": Refusal.ELSEWHERE,
}
_TRANSIENT: Final = frozenset(
    {
        "BadDigest", "ConditionalRequestConflict", "IncompleteBody", "InternalError", "OperationAborted",
        "RequestLimitExceeded", "RequestTimeout", "ServiceUnavailable", "SlowDown", "Throttling",
        "ThrottlingException", "TooManyRequestsException",
    }
)  # fmt: skip
_PERMISSIONS: Final = {
    Verb.READ: "s3:GetObject",
    Verb.WRITE: "s3:PutObject",
    Verb.LIST: "s3:ListBucket",
    Verb.DELETE: "s3:DeleteObject",
}


class S3Bucket(StoreBucket):
    """A bucket in S3, or in a store with the same API. Implements `Bucket`.

    Args:
        bucket: The bucket's name.
        prefix: The root; empty for the whole bucket.
        endpoint_url: The URL of the store, if it is not AWS.
        profile: The profile of the AWS configuration that has credentials, region and endpoint.
        anonymous: Read a public bucket without credentials.
        client_options: Further arguments for `boto3.session.Session.client`: ``region_name``,
            ``aws_access_key_id``, ``aws_secret_access_key``, ``verify``, ``config`` ...
        extra_args: Further arguments, for every request that takes them: ``RequestPayer``,
            ``ServerSideEncryption``, ``SSEKMSKeyId``, ``ExpectedBucketOwner``, ``StorageClass`` ...
        patience: How long to wait for the store.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint_url: str | None = None,
        profile: str | None = None,
        anonymous: bool = False,
        client_options: Mapping[str, Any] | None = None,
        extra_args: Mapping[str, Any] | None = None,
        patience: RetryPolicy = DEFAULT_RETRY,
    ) -> None:
        options = dict(client_options or {}, endpoint_url=checked_endpoint(endpoint_url))
        connect = partial(_client, profile, anonymous, options, patience)
        super().__init__(
            _S3(bucket, connect, dict(extra_args or {})),
            bucket,
            prefix,
            patience=patience,
            endpoint_url=endpoint_url,
            profile=profile,
            anonymous=anonymous,
            client_options=client_options,
            extra_args=extra_args,
        )


def _client(
    profile: str | None, anonymous: bool, options: Mapping[str, Any], patience: RetryPolicy, attempts: int
) -> Any:
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    config = Config(
        user_agent_extra=f"yogadl/{library_version()}",
        connect_timeout=min(CONNECT_TIMEOUT_S, patience.silence_s),
        read_timeout=patience.silence_s,
        max_pool_connections=CONNECTIONS,
        retries={"mode": "standard", "total_max_attempts": attempts},
        # yogadl compares contents by sha256, and many stores refuse checksums that trail a body.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        **({"signature_version": UNSIGNED} if anonymous else {}),
    )
    users_config = options.get("config")
    if users_config is not None:
        config = config.merge(users_config)
    try:
        session = boto3.session.Session(profile_name=profile)
        client = session.client("s3", **{**options, "config": config})
    except (BotoCoreError, ValueError, TypeError) as error:
        raise refused_options("boto3", error) from shown_cause(error)
    checked_endpoint(client.meta.endpoint_url)  # it may come from the environment
    if attempts > 1:
        client.meta.events.register_first("needs-retry.s3", partial(_retry_after, attempts, patience.total_s))
    return client


def _retry_after(most: int, most_s: float, response: Any, attempts: int, **_: Any) -> float | None:
    """Return the store's Retry-After for the SDK's next attempt, or ``None`` if there is none."""
    if response is None or response[0].status_code < 400 or attempts >= most:
        return None
    return min(retry_after_s(response[0].headers.get("retry-after")), most_s) or None


class _PreparedClient(NamedTuple):
    """A client, and the get that it would send."""

    sdk: Any
    get: Mapping[str, Any]


def _checked_client(
    connect: Callable[[], Any], bucket: str, extra_args: Mapping[str, Any]
) -> _PreparedClient:
    """Return a client, after checking that each of `extra_args` is an argument of a method that is called."""
    client = connect()
    known = {name for method in _METHODS for name in _arguments_of(client, method)}
    unknown = sorted(set(extra_args) - known)
    if unknown:
        raise ConfigurationError(f"no request to S3 takes {', '.join(unknown)}: correct extra_args")
    accepted = _accepted(client, "get_object", extra_args)
    with contextlib.suppress(*_errors()):  # the first request raises the error
        return _PreparedClient(client, prepared_get(client, Bucket=bucket, **accepted))
    return _PreparedClient(client, {})


def _accepted(client: Any, method: str, extra_args: Mapping[str, Any]) -> dict[str, Any]:
    accepted = _arguments_of(client, method) if extra_args else {}
    return {name: value for name, value in extra_args.items() if name in accepted}


def _arguments_of(client: Any, method: str) -> Mapping[str, Any]:
    model = client.meta.service_model.operation_model(client.meta.method_to_api_mapping[method])
    arguments: Mapping[str, Any] = model.input_shape.members
    return arguments


class _S3:
    """One attempt at each verb. Implements `Store`."""

    def __init__(self, bucket: str, connect: Callable[[int], Any], extra_args: Mapping[str, Any]) -> None:
        self._bucket = bucket
        self._extra_args = extra_args
        self._client = PerProcess(partial(_checked_client, partial(connect, 1), bucket, extra_args))
        self._uploader = PerProcess(partial(connect, _ATTEMPTS_PER_PART))

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}"

    @property
    def endpoint(self) -> str:
        with _SDK.translated(Verb.READ, self._url_of("")):
            endpoint: str = self._client().sdk.meta.endpoint_url
            return endpoint

    @contextlib.contextmanager
    def open(
        self, name: str, start: int, stop: int | None, *, tag: str | None, chunk_bytes: int
    ) -> Iterator[Body | None]:
        answer = self._get(name, start, stop, tag)
        if answer is None:
            yield None
            return
        with contextlib.closing(answer["Body"]):
            with _SDK.translated(Verb.READ, self._url_of(name)):
                size = size_of_whole(answer.get("ContentRange"), answer["ContentLength"], start, stop)
                found = Object(name, size, _tag(answer), answer["LastModified"].timestamp())
            yield Body(found, _SDK.chunks(self._url_of(name), partial(answer["Body"].read, chunk_bytes)))

    def put(self, name: str, content: bytes | Path, sent: Callable[[int], None]) -> Object:
        if isinstance(content, Path):
            return self._put_file(name, content, sent)
        with _SDK.translated(Verb.WRITE, self._url_of(name)):
            body = CountedBytes(content, sent)
            answer = self._call("put_object", Key=name, Body=body, ContentMD5=_md5(content))
            written = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
            return Object(name, len(content), _tag(answer), written.timestamp())

    def create(self, name: str, content: bytes) -> bool:
        with _SDK.translated(Verb.WRITE, self._url_of(name), (412,)) as answer:
            self._call("put_object", Key=name, Body=content, ContentMD5=_md5(content), IfNoneMatch="*")
        return answer.status != 412

    def head(self, name: str) -> Object | None:
        found: Object | None = None
        with _SDK.translated(Verb.READ, self._url_of(name), (404,)):
            answer = self._call("head_object", Key=name)
            found = Object(name, answer["ContentLength"], _tag(answer), answer["LastModified"].timestamp())
        return found

    def page(self, prefix: str, mark: str | None) -> Page:
        continuation = {} if mark is None else {"ContinuationToken": mark}
        with _SDK.translated(Verb.LIST, self._url_of(prefix)):
            answer = self._call("list_objects_v2", Prefix=prefix, **continuation)
            objects = [
                Object(each["Key"], each["Size"], _tag(each), each["LastModified"].timestamp())
                for each in answer.get("Contents", [])
            ]
            return Page(objects, answer.get("NextContinuationToken"))

    def delete(self, name: str) -> None:
        with _SDK.translated(Verb.DELETE, self._url_of(name), (404,)):
            self._call("delete_object", Key=name)

    def transport(self) -> Transport:
        with _SDK.translated(Verb.READ, self._url_of("")):
            client = self._client()
        return transport_of(client.sdk, client.get)

    def _get(self, name: str, start: int, stop: int | None, tag: str | None) -> Any:
        arguments = range_header(start, stop) | ({} if tag is None else {"IfMatch": tag})
        with _SDK.translated(Verb.READ, self._url_of(name), (404, 412, 416)) as answer:
            answer.content = self._call("get_object", Key=name, **arguments)
        refuse_range(answer.status, self.url, name, start)
        return answer.content

    def _put_file(self, name: str, path: Path, sent: Callable[[int], None]) -> Object:
        from boto3.s3.transfer import S3Transfer

        extra = {
            key: value for key, value in self._extra_args.items() if key in S3Transfer.ALLOWED_UPLOAD_ARGS
        }
        with _SDK.translated(Verb.WRITE, self._url_of(name)):
            self._uploader().upload_file(str(path), self._bucket, name, ExtraArgs=extra, Callback=sent)
        found = self.head(name)
        if found is None:
            raise transient(
                Verb.WRITE, f"{self.url}/{name}", "the store accepted the file, but has no such object"
            )
        return found

    def _call(self, method: str, **arguments: Any) -> dict[str, Any]:
        client = self._client().sdk
        arguments |= _accepted(client, method, self._extra_args)
        answer: dict[str, Any] = getattr(client, method)(Bucket=self._bucket, **arguments)
        return answer

    def _url_of(self, name: str) -> str:
        return f"{self.url}/{name}"


def _errors() -> tuple[type[Exception], ...]:
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    return BotoCoreError, ClientError, Boto3Error


def _cause(error: BaseException) -> BaseException:
    """Return the error of botocore that made a file's upload fail: boto3's own error has only its text."""
    from boto3.exceptions import Boto3Error

    return error.__context__ if isinstance(error, Boto3Error) and error.__context__ else error


def _status_of(error: BaseException) -> int:
    from botocore.exceptions import ClientError

    cause = _cause(error)
    return _status(cause) if isinstance(cause, ClientError) and _code(cause) != "NoSuchBucket" else 0


def _translation(error: BaseException, verb: Verb, url: str) -> StorageError | ConfigurationError:
    """Translate one of boto3's errors."""
    from botocore import exceptions
    from botocore.parsers import ResponseParserError

    error = _cause(error)
    match error:
        case exceptions.ClientError():
            return _refused(error, verb, url)
        case exceptions.NoCredentialsError() | exceptions.PartialCredentialsError():
            return refused(Refusal.NO_CREDENTIALS, verb, url, _GIVE_CREDENTIALS, str(error))
        case exceptions.TokenRetrievalError() | exceptions.SSOError():
            return refused(Refusal.EXPIRED, verb, url, "", str(error))
        case exceptions.SSLError() if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return refused(Refusal.NOT_TRUSTED, verb, url, "", str(error))
        case exceptions.EndpointConnectionError() | exceptions.ProxyConnectionError() | exceptions.SSLError():
            return transient(verb, url, str(error), UnreachableError)
        case (
            exceptions.HTTPClientError()
            | exceptions.ConnectionError()
            | exceptions.IncompleteReadError()
            | exceptions.CredentialRetrievalError()
            | ResponseParserError()
        ):
            return transient(verb, url, str(error))
        case exceptions.ParamValidationError():
            return ConfigurationError(f"can't {verb.value} {url}: {without_secrets(str(error))}")
    return refused(Refusal.OTHER, verb, url, "", str(error))


_SDK: Final = Sdk(
    "boto3", "buckets in S3 need boto3: pip install 'yogadl[s3]'", _errors, _status_of, _translation
)


def _refused(error: Any, verb: Verb, url: str) -> StorageError:
    status, code = _status(error), _code(error)
    # The answer to a HEAD has no body: its code is the status.
    named = code if code == str(status) else f"{status} {code}"
    detail = f"{named}: {error.response.get('Error', {}).get('Message', '')}"
    if code in _TRANSIENT or is_transient(status):
        headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        return transient(verb, url, detail, retry_after=headers.get("retry-after"))
    if code in _REFUSALS:
        return refused(_REFUSALS[code], verb, url, "", detail)
    if status == 401:
        return refused(Refusal.WRONG_SECRET, verb, url, "", detail)
    if status == 403:
        return refused(Refusal.FORBIDDEN, verb, url, _PERMISSIONS[verb], detail)
    remedy = "the credentials may be wrong or have expired" if code == "400" else ""
    return refused(Refusal.OTHER, verb, url, remedy, detail)


def _status(error: Any) -> int:
    status: int = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status


def _code(error: Any) -> str:
    code: str = error.response.get("Error", {}).get("Code", "")
    return code


def _tag(answer: Mapping[str, Any]) -> str:
    # Without quotes, because some stores refuse them in If-Match.
    tag: str = answer["ETag"]
    return tag.strip('"')


def _md5(content: bytes) -> str:
    """Return a body's MD5, the one checksum that every store can check on arrival."""
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()
