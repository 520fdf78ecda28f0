"""Speak S3's verbs through boto3: the only file that knows it."""

import base64
import contextlib
import errno
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

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
# A file's parts are tried again by the SDK, each for itself; all else is, above, in one place.
_TRIALS_OF_A_PART: Final = 6
_GIVE_CREDENTIALS: Final = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile=, or read a public bucket with "
    "anonymous=True"
)
_METHODS: Final = ("get_object", "put_object", "head_object", "list_objects_v2", "delete_object")
_TROUBLES: Final = {
    "NoSuchBucket": Refusal.NO_BUCKET,
    "InvalidAccessKeyId": Refusal.WRONG_SECRET,
    "SignatureDoesNotMatch": Refusal.WRONG_SECRET,
    "InvalidToken": Refusal.WRONG_SECRET,
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
    """A bucket in S3, or in a store that speaks as S3 does. Implements `Bucket`.

    Args:
        bucket: Its name.
        prefix: The root; empty for all of the bucket.
        endpoint_url: Where the store answers, if it is not AWS.
        profile: The profile of the AWS configuration that has credentials, region and endpoint.
        anonymous: Read a public bucket without credentials.
        client_options: What else `boto3.session.Session.client` is given: ``region_name``,
            ``aws_access_key_id``, ``aws_secret_access_key``, ``verify``, ``config`` ...
        extra_args: What else is said with every request that can say it: ``RequestPayer``,
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
        connect = partial(_client, profile, anonymous, options, patience.silence_s)
        super().__init__(_S3(bucket, connect, dict(extra_args or {})), prefix, patience)
        self._options = given(
            endpoint_url=endpoint_url,
            profile=profile,
            anonymous=anonymous,
            client_options=client_options,
            extra_args=extra_args,
            patience=None if patience == DEFAULT_RETRY else patience,
        )
        self._place = bucket, prefix

    def __reduce__(self) -> Any:
        return remade, (S3Bucket, self._place, self._options, self._contact.answered.is_set())


def _client(
    profile: str | None, anonymous: bool, options: Mapping[str, Any], silence_s: float, trials: int
) -> Any:
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    config = Config(
        user_agent_extra=f"yogadl/{library_version()}",
        connect_timeout=min(_CONNECT_TIMEOUT_S, silence_s),
        read_timeout=silence_s,
        max_pool_connections=_CONNECTIONS,
        retries={"mode": "standard", "total_max_attempts": trials},
        # What is checked is checked above, by sha256; and many stores refuse checksums that trail a body.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        **({"signature_version": UNSIGNED} if anonymous else {}),
    )
    given = options.get("config")
    if given is not None:
        config = config.merge(given)
    try:
        session = boto3.session.Session(profile_name=profile)
        return session.client("s3", **{**options, "config": config})
    except (BotoCoreError, ValueError, TypeError) as error:
        raise ConfigurationError(f"boto3 can't make a client with these options: {error}") from error


def _checked(connect: Callable[[], Any], extra_args: Iterable[str]) -> Any:
    """Return a client that takes these arguments, each for one of the methods called here at least."""
    client = connect()
    known = {name for method in _METHODS for name in _arguments_of(client, method)}
    unknown = sorted(set(extra_args) - known)
    if unknown:
        raise ConfigurationError(f"no request of ours takes {', '.join(unknown)}: mend extra_args")
    return client


def _arguments_of(client: Any, method: str) -> Mapping[str, Any]:
    model = client.meta.service_model.operation_model(client.meta.method_to_api_mapping[method])
    arguments: Mapping[str, Any] = model.input_shape.members
    return arguments


def _refuse_without_sdk() -> None:
    try:
        import boto3  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError("buckets in S3 need boto3: pip install 'yogadl[s3]'") from error


class _S3:
    """One attempt at each verb. Implements `Store`."""

    def __init__(self, bucket: str, connect: Callable[[int], Any], extra_args: Mapping[str, Any]) -> None:
        self._bucket = bucket
        self._extra_args = extra_args
        self._client = PerProcess(partial(_checked, partial(connect, 1), tuple(extra_args)))
        self._uploader = PerProcess(partial(connect, _TRIALS_OF_A_PART))

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}"

    @property
    def endpoint(self) -> str:
        with self._translated(Verb.READ, ""):
            endpoint: str = self._client().meta.endpoint_url
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
            with self._translated(Verb.READ, name):
                size = size_of_whole(answer.get("ContentRange"), answer["ContentLength"], start, stop)
                found = Object(name, size, _tag(answer), answer["LastModified"].timestamp())
            yield Body(found, self._chunks(answer["Body"], name, chunk_bytes))

    def put(self, name: str, content: bytes | Path) -> Object:
        if isinstance(content, Path):
            return self._put_file(name, content)
        with self._translated(Verb.WRITE, name):
            answer = self._call("put_object", Key=name, Body=content, ContentMD5=_md5(content))
            written = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
            return Object(name, len(content), _tag(answer), written.timestamp())

    def create(self, name: str, content: bytes) -> bool:
        with self._translated(Verb.WRITE, name, (412,)) as answered:
            self._call("put_object", Key=name, Body=content, ContentMD5=_md5(content), IfNoneMatch="*")
        return answered.status != 412

    def head(self, name: str) -> Object | None:
        found: Object | None = None
        with self._translated(Verb.READ, name, (404,)):
            answer = self._call("head_object", Key=name)
            found = Object(name, answer["ContentLength"], _tag(answer), answer["LastModified"].timestamp())
        return found

    def page(self, prefix: str, mark: str | None) -> Page:
        going_on = {} if mark is None else {"ContinuationToken": mark}
        with self._translated(Verb.LIST, prefix):
            answer = self._call("list_objects_v2", Prefix=prefix, **going_on)
            found = [
                Object(each["Key"], each["Size"], _tag(each), each["LastModified"].timestamp())
                for each in answer.get("Contents", [])
            ]
            return Page(found, answer.get("NextContinuationToken"))

    def delete(self, name: str) -> None:
        with self._translated(Verb.DELETE, name, (404,)):
            self._call("delete_object", Key=name)

    def _get(self, name: str, start: int, stop: int | None, tag: str | None) -> Any:
        wanted = {} if tag is None else {"IfMatch": tag}
        if start or stop is not None:
            wanted["Range"] = f"bytes={start}-" if stop is None else f"bytes={start}-{stop - 1}"
        with self._translated(Verb.READ, name, (404, 412, 416)) as answered:
            answered.content = self._call("get_object", Key=name, **wanted)
        if answered.status == 412:
            raise replaced(self.url, name)
        if answered.status == 416:
            raise PastEndError(errno.EINVAL, f"{self.url}/{name} ends before byte {start}")
        return answered.content

    def _put_file(self, name: str, path: Path) -> Object:
        from boto3.s3.transfer import S3Transfer

        extra = {
            key: value for key, value in self._extra_args.items() if key in S3Transfer.ALLOWED_UPLOAD_ARGS
        }
        with self._translated(Verb.WRITE, name):
            self._uploader().upload_file(str(path), self._bucket, name, ExtraArgs=extra)
        found = self.head(name)
        if found is None:
            raise passing(Verb.WRITE, f"{self.url}/{name}", "it is not there although the store took it")
        return found

    def _call(self, method: str, **arguments: Any) -> dict[str, Any]:
        client = self._client()
        if self._extra_args:
            accepted = _arguments_of(client, method)
            arguments |= {key: value for key, value in self._extra_args.items() if key in accepted}
        answer: dict[str, Any] = getattr(client, method)(Bucket=self._bucket, **arguments)
        return answer

    def _chunks(self, body: Any, name: str, chunk_bytes: int) -> Iterator[bytes]:
        with self._translated(Verb.READ, name):
            while chunk := body.read(chunk_bytes):
                yield chunk

    @contextlib.contextmanager
    def _translated(self, verb: Verb, name: str, expected: tuple[int, ...] = ()) -> Iterator["_Answered"]:
        """Raise any error of boto3 as one of ours, but for the expected HTTP statuses, which are noted."""
        _refuse_without_sdk()
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        answered = _Answered()
        try:
            yield answered
        except (BotoCoreError, ClientError, Boto3Error) as error:
            # When a file's upload fails boto3 keeps nothing but the text of the error that it handled.
            cause = error.__context__ if isinstance(error, Boto3Error) and error.__context__ else error
            if isinstance(cause, ClientError):
                answered.status = _status(cause)
                if answered.status in expected and _code(cause) != "NoSuchBucket":
                    return
            raise _translation(cause, verb, f"{self.url}/{name}") from error
        except (KeyError, BadResponseError) as error:
            raise strange(verb, f"{self.url}/{name}", error) from error


@dataclass
class _Answered:
    """What a request came to: its content, or the HTTP status of an error that was expected."""

    content: Any = None
    status: int = 0


def _translation(error: BaseException, verb: Verb, what: str) -> StorageError | ConfigurationError:
    """Say in our words what an error of boto3's means."""
    from botocore import exceptions
    from botocore.parsers import ResponseParserError

    match error:
        case exceptions.ClientError():
            return _refused(error, verb, what)
        case exceptions.NoCredentialsError() | exceptions.PartialCredentialsError():
            return refusal(Refusal.NO_CREDENTIALS, verb, what, _GIVE_CREDENTIALS, str(error))
        case exceptions.TokenRetrievalError() | exceptions.SSOError():
            return refusal(Refusal.EXPIRED, verb, what, "", str(error))
        case exceptions.SSLError() if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return refusal(Refusal.NOT_TRUSTED, verb, what, "", str(error))
        case exceptions.EndpointConnectionError() | exceptions.ProxyConnectionError() | exceptions.SSLError():
            return unreached(verb, what, str(error))
        case (
            exceptions.HTTPClientError()
            | exceptions.ConnectionError()
            | exceptions.IncompleteReadError()
            | exceptions.CredentialRetrievalError()
            | ResponseParserError()
        ):
            return passing(verb, what, str(error))
        case exceptions.ParamValidationError():
            return ConfigurationError(f"can't {verb.value} {what}: {error}")
    return refusal(Refusal.OTHER, verb, what, "", str(error))


def _refused(error: Any, verb: Verb, what: str) -> StorageError:
    status, code = _status(error), _code(error)
    detail = f"{status} {code}: {error.response.get('Error', {}).get('Message', '')}"
    if code in _TRANSIENT or status in (408, 409, 429) or (status >= 500 and status != 501):
        return passing(verb, what, detail)
    if code in _TROUBLES:
        return refusal(_TROUBLES[code], verb, what, "", detail)
    if status in (401, 403):
        return refusal(Refusal.FORBIDDEN, verb, what, _PERMISSIONS[verb], detail)
    # An answer to HEAD has no body that says more.
    mend = "the credentials may be wrong or have expired" if code == "400" else ""
    return refusal(Refusal.OTHER, verb, what, mend, detail)


def _status(error: Any) -> int:
    status: int = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status


def _code(error: Any) -> str:
    code: str = error.response.get("Error", {}).get("Code", "")
    return code


def _tag(answer: Mapping[str, Any]) -> str:
    # Without its quotes, which not all stores want back in If-Match.
    tag: str = answer["ETag"]
    return tag.strip('"')


def _md5(content: bytes) -> str:
    """Digest a body for the store to check on arrival, as the one digest that every store knows."""
    return base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()
