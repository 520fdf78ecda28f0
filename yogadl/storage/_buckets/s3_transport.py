"""Find out how boto3 sends a get, so that obstore can send it in the same way."""

from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from yogadl.storage._buckets.store import NotCarriedOverError, Transport

_KEY: Final = "key"
# Headers and options that are carried over. Any other one may have no equal in obstore.
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
        client.get_object(Key=_KEY, **arguments)
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
        f"the options {', '.join(_set(config.s3) - _OPTIONS)}": _set(config.s3) - _OPTIONS,
        "arguments in a get's address": not url.endswith(f"/{_KEY}"),
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
    endpoint = url.removesuffix(f"/{_KEY}")  # contains the bucket, in the SDK's style of addresses
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
        credentials=partial(_frozen, credentials) if kind == _SIGNED else None,
        headers={},
        user_agent=headers["user-agent"],
        verify=session._verify,
        proxy_url=proxy,
        timeouts_s=timeouts,
    )


def _frozen(credentials: Any) -> Mapping[str, Any]:
    found = credentials.get_frozen_credentials()  # renews them
    return {"access_key_id": found.access_key, "secret_access_key": found.secret_key, "token": found.token}


def _set(options: Mapping[str, Any] | None) -> set[str]:
    return {name for name, value in (options or {}).items() if value}
