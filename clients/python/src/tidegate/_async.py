"""The client for asyncio."""

from __future__ import annotations

import asyncio
import ssl
import time
from types import TracebackType
from typing import Any, Coroutine, Generator, List, Mapping, Optional, Sequence, Set, Tuple, Type
from typing import Union

from ._core import ATTEMPTS_TO_SETTLE, DEADLINE, Core, Outcome, check_body, checks_of
from ._core import commit_body, is_unanswered, logger
from ._http import MalformedResponse, Response, ResponseParser
from ._sync import MAX_IDLE
from ._types import Check, Decision, Denied, JsonObject, Key, NoAnswer, Settlement, TidegateError

_Streams = Tuple[asyncio.StreamReader, asyncio.StreamWriter]


class AsyncClient:
    """Sends checks to a server from one event loop; the same calls as ``Client``."""

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        *,
        token: Optional[str] = None,
        deadline: float = DEADLINE,
        on_no_answer: str = "local",
        local_share: float = 0.5,
        limits: Optional[Mapping[str, Sequence[str]]] = None,
        ssl_context: Optional[ssl.SSLContext] = None,
    ) -> None:
        self._core = Core(url, token, deadline, on_no_answer, local_share, limits)
        self._ssl = ssl_context
        if self._core.address.tls and ssl_context is None:
            self._ssl = ssl.create_default_context()
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._idle: List[_Streams] = []
        self._background: Set[asyncio.Task[None]] = set()

    async def check(
        self,
        rule: str,
        key: Optional[Key] = None,
        cost: int = 1,
        *,
        id: Optional[str] = None,
        wait: float = 0.0,
    ) -> Decision:
        """Charges ``cost`` of a rule; 0 peeks. ``wait`` is how many seconds it may wait for it."""
        return await self.check_all([Check(rule, key, cost)], id=id, wait=wait)

    async def check_all(
        self, checks: Sequence[Check], *, id: Optional[str] = None, wait: float = 0.0
    ) -> Decision:
        """Charges all of the checks or none."""
        body = check_body(checks, id, wait)
        return (await self._decide("/v1/check", checks, body, wait))[0]

    def reserve(
        self,
        rule: str,
        key: Optional[Key] = None,
        cost: Optional[int] = None,
        *,
        ttl: Optional[float] = None,
    ) -> Reserving:
        """Holds ``cost`` of a rule until it is settled, or for ``ttl`` seconds (60)."""
        return self.reserve_all([Check(rule, key, cost)], ttl=ttl)

    def reserve_all(
        self,
        checks: Sequence[Check],
        *,
        ttl: Optional[float] = None,
        model: Optional[str] = None,
        usage: Optional[object] = None,
        id: Optional[str] = None,
    ) -> Reserving:
        """Holds all of the checks or none; ``usage`` of ``model`` computes missing costs."""
        body = check_body(checks, id, ttl=ttl, model=model, usage=usage)
        return Reserving(self._reserve(checks, body))

    def reservation(self, id: str) -> AsyncReservation:
        """A reservation that was made elsewhere, to settle it."""
        return AsyncReservation(self, id, None, None)

    def budget(self, *rules: str) -> AsyncBudget:
        """The rules that a call to a language model is charged to."""
        return AsyncBudget(self, rules)

    async def load_limits(self, timeout: float = 5.0) -> None:
        """Reads the limits of all rules, for the local share; call it when a service starts."""
        self._core.learn(await self._exchange("GET", "/v1/rules", None, timeout))

    async def close(self) -> None:
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        while self._idle:
            self._idle.pop()[1].transport.abort()
        # The transports close their sockets in the next turn of the loop.
        await asyncio.sleep(0)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _reserve(self, checks: Sequence[Check], body: JsonObject) -> AsyncReservation:
        decision, answer = await self._decide("/v1/reserve", checks, body, 0.0)
        expires = answer.get("expires_in_ms")
        return AsyncReservation(self, answer.get("reservation"), decision, expires)

    async def _decide(
        self, path: str, checks: Sequence[Check], body: JsonObject, wait: float
    ) -> Tuple[Decision, JsonObject]:
        core = self._core
        if not core.circuit.lets_pass():
            return core.without_answer(path, checks, body, None), {}
        outcome = await self._exchange("POST", path, body, core.deadline + wait)
        core.circuit.record(outcome)
        try:
            decision, answer = core.decide(path, outcome)
        except NoAnswer as error:
            return core.without_answer(path, checks, body, error), {}
        if core.limits_are_due():
            task = asyncio.get_running_loop().create_task(self._refresh_limits())
            self._background.add(task)
            task.add_done_callback(self._background.discard)
        return decision, answer

    async def _refresh_limits(self) -> None:
        try:
            await self.load_limits()
        except TidegateError as error:
            logger.debug("limits not read: %s", error)

    async def _settle(self, path: str, body: JsonObject) -> Settlement:
        for _ in range(ATTEMPTS_TO_SETTLE):
            outcome = await self._exchange("POST", path, body, self._core.deadline)
            self._core.circuit.record(outcome)
            if not is_unanswered(outcome):
                break
        return self._core.settled(path, outcome)

    async def _exchange(
        self, method: str, path: str, body: Optional[JsonObject], timeout: float
    ) -> Outcome:
        request = self._core.request(method, path, body)
        try:
            return await asyncio.wait_for(self._roundtrip(request), timeout)
        except asyncio.TimeoutError:
            return NoAnswer("deadline exceeded")
        except (OSError, MalformedResponse) as error:
            return NoAnswer(str(error))

    async def _roundtrip(self, request: bytes) -> Response:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            # Connections belong to the loop that opened them.
            self._loop, self._idle = loop, []
        while True:
            is_reused = bool(self._idle)
            reader, writer = self._idle.pop() if is_reused else await self._connect()
            parser, response = ResponseParser(), None
            try:
                writer.write(request)
                while response is None:
                    response = parser.feed(await reader.read(65536))
            except (OSError, MalformedResponse):
                # The server may have closed an idle connection.
                if not is_reused or parser.began:
                    raise
                continue
            finally:
                # A cancelled call leaves a response unread.
                if response is None or not response.reusable or len(self._idle) >= MAX_IDLE:
                    writer.transport.abort()
                else:
                    self._idle.append((reader, writer))
            return response

    async def _connect(self) -> _Streams:
        address = self._core.address
        return await asyncio.open_connection(address.host, address.port, ssl=self._ssl)


class AsyncReservation:
    """Permits that are held until they are committed or cancelled.

    ``id`` is None if it was denied, or if the server did not make it.
    """

    def __init__(
        self,
        client: AsyncClient,
        id: Optional[str],
        decision: Optional[Decision],
        expires_in_ms: Optional[int],
    ) -> None:
        self._client = client
        self._is_settled = False
        self.id = id
        self.decision = decision
        self.expires_in_ms = expires_in_ms

    async def commit(
        self,
        usage: Optional[object] = None,
        *,
        model: Optional[str] = None,
        cost: Optional[int] = None,
        costs: Optional[Mapping[str, int]] = None,
    ) -> Settlement:
        """Charges what the work came to: the provider's usage, a cost, or a cost for each rule.

        Without any, what was reserved.
        """
        body = commit_body(self.id or "", usage, model, cost, costs)
        self._is_settled = True
        if self.id is None:
            return Settlement(False)
        return await self._client._settle("/v1/commit", body)

    async def cancel(self) -> Settlement:
        """Releases what was reserved."""
        self._is_settled = True
        if self.id is None:
            return Settlement(False)
        return await self._client._settle("/v1/cancel", {"reservation": self.id})


class Reserving:
    """A reservation in the making: await it, or use it with ``async with``.

    ``async with`` raises Denied if it is denied, and cancels what is not settled at the end.
    """

    def __init__(self, made: Coroutine[Any, Any, AsyncReservation]) -> None:
        self._made = made
        self._reservation: Optional[AsyncReservation] = None

    def __await__(self) -> Generator[Any, None, AsyncReservation]:
        return self._made.__await__()

    async def __aenter__(self) -> AsyncReservation:
        reservation = await self
        if reservation.decision is not None and not reservation.decision.allowed:
            raise Denied(reservation.decision)
        self._reservation = reservation
        return reservation

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        reservation = self._reservation
        if reservation is None or reservation._is_settled:
            return
        try:
            await reservation.cancel()
        except TidegateError as failure:
            logger.warning("reservation not cancelled, it expires: %s", failure)


class AsyncBudget:
    """Rules that one call to a language model is charged to, all or none."""

    def __init__(self, client: AsyncClient, rules: Sequence[str]) -> None:
        self._client = client
        self._rules: List[str] = list(rules)

    def reserve(
        self,
        key: Union[str, Mapping[str, Key]],
        *,
        model: Optional[str] = None,
        usage: Optional[object] = None,
        ttl: Optional[float] = None,
    ) -> Reserving:
        """Reserves the estimate of a call: one key for all rules, or a key for each."""
        checks = checks_of(self._rules, key)
        return self._client.reserve_all(checks, model=model, usage=usage, ttl=ttl)
