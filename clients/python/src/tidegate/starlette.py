"""Starlette and FastAPI: a dependency for single routes, and middleware for all of them."""

# FastAPI reads the annotations of a dependency at run time: no postponed evaluation here.
from typing import Awaitable, Callable, Dict, Optional, Union

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ._async import AsyncClient
from ._types import Decision, Key

KeyOf = Callable[[HTTPConnection], Union[Optional[Key], Awaitable[Optional[Key]]]]


def client_address(connection: HTTPConnection) -> Optional[str]:
    """The address of the peer. Behind a proxy, let the server set it (uvicorn --proxy-headers)."""
    return connection.client.host if connection.client else None


class RateLimited(HTTPException):
    """A denied request: 429 with the rate limit headers."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(429, str(decision.problem()["title"]), decision.response_headers())
        self.decision = decision


def problem_response(decision: Decision) -> Response:
    """429 with problem+json and the rate limit headers."""
    headers = decision.response_headers()
    return JSONResponse(decision.problem(), 429, headers, "application/problem+json")


async def rate_limited(request: Request, error: Exception) -> Response:
    """An exception handler for ``RateLimited`` that responds with problem+json."""
    assert isinstance(error, RateLimited)
    return problem_response(error.decision)


class _Limit:
    def __init__(
        self, client: AsyncClient, rule: str, key: KeyOf = client_address, cost: int = 1
    ) -> None:
        self._client = client
        self._rule = rule
        self._key = key
        self._cost = cost

    async def check(self, connection: HTTPConnection) -> Decision:
        found = self._key(connection)
        key = await found if isinstance(found, Awaitable) else found
        return await self._client.check(self._rule, key, self._cost)


class RateLimit(_Limit):
    """A dependency: ``dependencies=[Depends(RateLimit(client, "login"))]``.

    Raises ``RateLimited`` for a denied request. A key of None is a check without a key.
    """

    async def __call__(self, request: Request, response: Response) -> Decision:
        decision = await self.check(request)
        if not decision.allowed:
            raise RateLimited(decision)
        response.headers.update(decision.response_headers())
        return decision


class RateLimitMiddleware:
    """Checks one rule for every HTTP request: ``add_middleware(RateLimitMiddleware, ..)``."""

    def __init__(
        self,
        app: ASGIApp,
        client: AsyncClient,
        rule: str,
        key: KeyOf = client_address,
        cost: int = 1,
    ) -> None:
        self._app = app
        self._limit = _Limit(client, rule, key, cost)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        decision = await self._limit.check(HTTPConnection(scope))
        if not decision.allowed:
            await problem_response(decision)(scope, receive, send)
            return
        await self._app(scope, receive, _with_headers(send, decision.response_headers()))


def _with_headers(send: Send, headers: Dict[str, str]) -> Send:
    added = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *added]
        await send(message)

    return send_with_headers
