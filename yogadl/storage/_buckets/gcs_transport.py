"""Find out how google-cloud-storage sends a get, so that obstore can send it in the same way."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from yogadl._core.key import library_version
from yogadl.storage._buckets.store import NotCarriedOverError, Transport

# Options that are carried over, or do not affect a get. Any other option may have no equal in obstore.
_OPTIONS: Final = {"project", "credentials", "client_info", "client_options", "extra_headers"}
_INNER_OPTIONS: Final = {"api_endpoint", "credentials_file", "quota_project_id", "scopes", "universe_domain"}
# Headers that every client of requests sends.
_OF_REQUESTS: Final = {"user-agent", "accept", "accept-encoding", "connection"}
_PAYER: Final = "x-goog-user-project"
_BEARER: Final = "Bearer "


def check_options(options: Mapping[str, Any]) -> None:
    """Check that a client's options have equals in obstore.

    Raises:
        NotCarriedOverError: if an option has none.
    """
    inner = options.get("client_options") or {}
    given = inner if isinstance(inner, Mapping) else vars(inner)
    unknown = options.keys() - _OPTIONS | {name for name, value in given.items() if value} - _INNER_OPTIONS
    if unknown:
        raise NotCarriedOverError(f"the client's options {', '.join(sorted(unknown))}")


def transport_of(client: Any, bucket: str, user_project: str | None, timeouts_s: Any) -> Transport:
    """Return how a client sends gets, for the other API of the same endpoint, which obstore uses.

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
        "credentials that are no bearer's": signature and not signature["authorization"].startswith(_BEARER),
    }
    for what, is_given in refusals.items():
        if is_given:
            raise NotCarriedOverError(what)
    headers = {name.lower(): value for name, value in session.headers.items()}
    headers = {name: value for name, value in headers.items() if name not in _OF_REQUESTS}
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
    """Return the headers that sign a client's requests, valid for some minutes; none if it is anonymous."""
    headers: dict[str, str] = {}
    session = client._http
    session.credentials.before_request(session._auth_request, "GET", client.api_endpoint, headers)
    return headers


def _token(client: Any) -> Mapping[str, Any]:
    return {"token": _signature(client)["authorization"].removeprefix(_BEARER)}
