"""The client for threads."""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections import deque
from types import TracebackType
from typing import Deque, List, Mapping, Optional, Sequence, Tuple, Type, Union

from ._core import ATTEMPTS_TO_SETTLE, DEADLINE, Core, Outcome, check_body, checks_of
from ._core import commit_body, is_unanswered, logger
from ._http import MalformedResponse, Response, ResponseParser
from ._types import Check, Decision, Denied, JsonObject, Key, NoAnswer, Settlement, TidegateError

MAX_IDLE = 64
"""Connections kept for the next calls."""


class Client:
    """Sends checks to a server; one client serves all threads of a process.

    ``on_no_answer`` is what a check without an answer within ``deadline`` seconds means:
    ``"allow"``, ``"deny"``, or ``"local"``, a share of the limit counted in this process.
    """

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
        self._idle: Deque[socket.socket] = deque()
        self._process = os.getpid()

    def check(
        self,
        rule: str,
        key: Optional[Key] = None,
        cost: int = 1,
        *,
        id: Optional[str] = None,
        wait: float = 0.0,
    ) -> Decision:
        """Charges ``cost`` of a rule; 0 peeks. ``wait`` is how many seconds it may wait for it."""
        return self.check_all([Check(rule, key, cost)], id=id, wait=wait)

    def check_all(
        self, checks: Sequence[Check], *, id: Optional[str] = None, wait: float = 0.0
    ) -> Decision:
        """Charges all of the checks or none."""
        body = check_body(checks, id, wait)
        return self._decide("/v1/check", checks, body, wait)[0]

    def reserve(
        self,
        rule: str,
        key: Optional[Key] = None,
        cost: Optional[int] = None,
        *,
        ttl: Optional[float] = None,
    ) -> Reservation:
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
    ) -> Reservation:
        """Holds all of the checks or none; ``usage`` of ``model`` computes missing costs."""
        body = check_body(checks, id, ttl=ttl, model=model, usage=usage)
        decision, answer = self._decide("/v1/reserve", checks, body, 0.0)
        return Reservation(self, answer.get("reservation"), decision, answer.get("expires_in_ms"))

    def reservation(self, id: str) -> Reservation:
        """A reservation that was made elsewhere, to settle it."""
        return Reservation(self, id, None, None)

    def budget(self, *rules: str) -> Budget:
        """The rules that a call to a language model is charged to."""
        return Budget(self, rules)

    def load_limits(self, timeout: float = 5.0) -> None:
        """Reads the limits of all rules, for the local share; call it when a service starts."""
        self._core.learn(self._exchange("GET", "/v1/rules", None, time.monotonic() + timeout))

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _decide(
        self, path: str, checks: Sequence[Check], body: JsonObject, wait: float
    ) -> Tuple[Decision, JsonObject]:
        core = self._core
        if not core.circuit.lets_pass():
            return core.without_answer(path, checks, body, None), {}
        until = time.monotonic() + core.deadline + wait
        outcome = self._exchange("POST", path, body, until)
        core.circuit.record(outcome)
        try:
            decision, answer = core.decide(path, outcome)
        except NoAnswer as error:
            return core.without_answer(path, checks, body, error), {}
        if core.limits_are_due():
            try:
                core.learn(self._exchange("GET", "/v1/rules", None, until))
            except TidegateError as error:
                logger.debug("limits not read: %s", error)
        return decision, answer

    def _settle(self, path: str, body: JsonObject) -> Settlement:
        for attempt in range(ATTEMPTS_TO_SETTLE):
            until = time.monotonic() + self._core.deadline
            outcome = self._exchange("POST", path, body, until)
            self._core.circuit.record(outcome)
            if not is_unanswered(outcome):
                break
        return self._core.settled(path, outcome)

    def _exchange(
        self, method: str, path: str, body: Optional[JsonObject], until: float
    ) -> Outcome:
        """One request and its response, before ``until``."""
        request = self._core.request(method, path, body)
        if self._process != os.getpid():
            # The parent process uses these connections; closing them here leaves them open there.
            self._process = os.getpid()
            self.close()
        while True:
            connection, parser = self._take_idle(), ResponseParser()
            is_reused = connection is not None
            try:
                connection = connection or self._connect(until)
                response = _roundtrip(connection, request, parser, until)
            except (OSError, MalformedResponse) as error:
                if connection is not None:
                    connection.close()
                is_late = isinstance(error, socket.timeout) or time.monotonic() >= until
                if is_reused and not parser.began and not is_late:
                    # The server had closed an idle connection.
                    continue
                return NoAnswer("deadline exceeded" if is_late else str(error))
            if response.reusable and len(self._idle) < MAX_IDLE:
                self._idle.append(connection)
            else:
                connection.close()
            return response

    def _take_idle(self) -> Optional[socket.socket]:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _connect(self, until: float) -> socket.socket:
        host, port = self._core.address.host, self._core.address.port
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for left, (family, kind, protocol, _, address) in zip(
            range(len(addresses), 0, -1), addresses
        ):
            connection = socket.socket(family, kind, protocol)
            try:
                connection.settimeout(_remaining(until) / left)
                connection.connect(address)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._ssl is None:
                    return connection
                connection.settimeout(_remaining(until))
                return self._ssl.wrap_socket(connection, server_hostname=host)
            except OSError:
                connection.close()
                if left == 1:
                    raise
        raise OSError(f"{host} has no address")


def _roundtrip(
    connection: socket.socket, request: bytes, parser: ResponseParser, until: float
) -> Response:
    connection.settimeout(_remaining(until))
    connection.sendall(request)
    while True:
        connection.settimeout(_remaining(until))
        response = parser.feed(connection.recv(65536))
        if response is not None:
            return response


def _remaining(until: float) -> float:
    remaining = until - time.monotonic()
    if remaining <= 0:
        raise socket.timeout("deadline exceeded")
    return remaining


class Reservation:
    """Permits that are held until they are committed or cancelled.

    As a context manager it raises Denied if it was denied, and cancels what is not settled.
    ``id`` is None if it was denied, or if the server did not make it.
    """

    def __init__(
        self,
        client: Client,
        id: Optional[str],
        decision: Optional[Decision],
        expires_in_ms: Optional[int],
    ) -> None:
        self._client = client
        self._is_settled = False
        self.id = id
        self.decision = decision
        self.expires_in_ms = expires_in_ms

    def commit(
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
        return self._client._settle("/v1/commit", body)

    def cancel(self) -> Settlement:
        """Releases what was reserved."""
        self._is_settled = True
        if self.id is None:
            return Settlement(False)
        return self._client._settle("/v1/cancel", {"reservation": self.id})

    def __enter__(self) -> Reservation:
        if self.decision is not None and not self.decision.allowed:
            raise Denied(self.decision)
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._is_settled:
            return
        try:
            self.cancel()
        except TidegateError as failure:
            logger.warning("reservation not cancelled, it expires: %s", failure)


class Budget:
    """Rules that one call to a language model is charged to, all or none."""

    def __init__(self, client: Client, rules: Sequence[str]) -> None:
        self._client = client
        self._rules: List[str] = list(rules)

    def reserve(
        self,
        key: Union[str, Mapping[str, Key]],
        *,
        model: Optional[str] = None,
        usage: Optional[object] = None,
        ttl: Optional[float] = None,
    ) -> Reservation:
        """Reserves the estimate of a call: one key for all rules, or a key for each."""
        checks = checks_of(self._rules, key)
        return self._client.reserve_all(checks, model=model, usage=usage, ttl=ttl)
