"""Django: middleware that checks one rule for every request.

Settings::

    MIDDLEWARE = [.., "tidegate.django.RateLimitMiddleware"]
    TIDEGATE = {"client": Client("http://127.0.0.1:8080"), "rule": "api", "key": key_of}

``key`` is a function of the request (default: the address of the peer), or a dotted path to one.
``cost`` (1) may be added. A synchronous ``Client`` serves WSGI, an ``AsyncClient`` ASGI.
"""

from __future__ import annotations

from inspect import iscoroutinefunction
from typing import Any, Awaitable, Callable, Optional, Union

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponseBase, JsonResponse
from django.utils.decorators import sync_and_async_middleware
from django.utils.module_loading import import_string

from ._async import AsyncClient
from ._sync import Client
from ._types import Decision, Key

KeyOf = Callable[[HttpRequest], Optional[Key]]


def client_address(request: HttpRequest) -> Optional[str]:
    """The address of the peer."""
    address: Optional[str] = request.META.get("REMOTE_ADDR")
    return address


def _denied(decision: Decision) -> HttpResponseBase:
    return JsonResponse(
        decision.problem(),
        status=429,
        content_type="application/problem+json",
        headers=decision.response_headers(),
    )


def _allowed(decision: Decision, response: HttpResponseBase) -> HttpResponseBase:
    for name, value in decision.response_headers().items():
        response[name] = value
    return response


def _make(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    options = settings.TIDEGATE
    client: Union[Client, AsyncClient] = options["client"]
    rule: str = options["rule"]
    key: KeyOf = options.get("key", client_address)
    if isinstance(key, str):
        key = import_string(key)
    cost: int = options.get("cost", 1)
    is_async = iscoroutinefunction(get_response)
    if is_async != isinstance(client, AsyncClient):
        needed = "an AsyncClient (ASGI)" if is_async else "a Client (WSGI)"
        raise ImproperlyConfigured(f"TIDEGATE['client'] must be {needed}")

    if isinstance(client, AsyncClient):
        async_client = client

        async def limit_async(request: HttpRequest) -> HttpResponseBase:
            decision = await async_client.check(rule, key(request), cost)
            if not decision.allowed:
                return _denied(decision)
            return _allowed(decision, await get_response(request))

        return limit_async

    sync_client = client

    def limit(request: HttpRequest) -> HttpResponseBase:
        decision = sync_client.check(rule, key(request), cost)
        if not decision.allowed:
            return _denied(decision)
        return _allowed(decision, get_response(request))

    return limit


RateLimitMiddleware: Callable[
    [Callable[[HttpRequest], Any]], Union[Callable[[HttpRequest], Any], Awaitable[Any]]
] = sync_and_async_middleware(_make)
