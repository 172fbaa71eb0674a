"""What both clients share: settings, bodies, the circuit, and what a response means."""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from ._http import Response, parse_url, request_bytes
from ._local import RETRY_MS, LocalShares, MissingCost
from ._types import Check, Decision, JsonObject, NoAnswer, Settlement, TidegateError
from ._types import decision_of, error_of, settlement_of

logger = logging.getLogger("tidegate")

DEADLINE = 0.150
"""Seconds for a whole call; the server gives its store 0.1 s."""

ATTEMPTS_TO_SETTLE = 3
_FAILURES_TO_OPEN = 5
_OPEN_SECONDS = 1.0
_LIMITS_SECONDS = 60.0
_REPORT_SECONDS = 10.0

Outcome = Union[Response, NoAnswer]
"""A response, or why there is none."""


class Circuit:
    """Stops calling a server that has not answered for some calls in a row."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures = 0
        self._open_until = 0.0

    def lets_pass(self) -> bool:
        if self._failures < _FAILURES_TO_OPEN:
            return True
        with self._lock:
            now = time.monotonic()
            if now < self._open_until:
                return False
            # This call tries the server; the others go on without it.
            self._open_until = now + _OPEN_SECONDS
            return True

    def record(self, outcome: Outcome) -> None:
        if isinstance(outcome, Response):
            self._failures = 0
            return
        with self._lock:
            self._failures += 1
            if self._failures >= _FAILURES_TO_OPEN:
                self._open_until = time.monotonic() + _OPEN_SECONDS


class Core:
    def __init__(
        self,
        url: str,
        token: Optional[str],
        deadline: float,
        on_no_answer: str,
        local_share: float,
        limits: Optional[Mapping[str, Sequence[str]]],
    ) -> None:
        if on_no_answer not in ("allow", "deny", "local"):
            raise ValueError(f"on_no_answer is {on_no_answer!r}; use 'allow', 'deny' or 'local'")
        if deadline <= 0:
            raise ValueError(f"deadline is {deadline}; it is a number of seconds above 0")
        self.address = parse_url(url)
        self.deadline = deadline
        self.circuit = Circuit()
        self.shares = LocalShares(local_share, limits or {})
        self._token = _checked_token(token)
        self._on_no_answer = on_no_answer
        self._limits_due_at = 0.0
        self._report_at = 0.0
        self._unreported = 0

    def request(self, method: str, path: str, body: Optional[JsonObject]) -> bytes:
        encoded = None if body is None else json.dumps(body).encode()
        return request_bytes(self.address, method, path, self._token, encoded)

    def decide(self, path: str, outcome: Outcome) -> Tuple[Decision, JsonObject]:
        """A decision by the server, and its body; raises NoAnswer if there is none."""
        if isinstance(outcome, NoAnswer):
            raise outcome
        body = _json(outcome)
        if outcome.status not in (200, 429):
            raise error_of(path, outcome.status, body)
        try:
            return decision_of(body, outcome.headers), body
        except (KeyError, TypeError) as error:
            raise NoAnswer(f"the response is not a decision: {error!r}", outcome.status) from error

    def without_answer(
        self, path: str, checks: Sequence[Check], body: JsonObject, error: Optional[NoAnswer]
    ) -> Decision:
        self._report(error)
        if self._on_no_answer == "local":
            missing: MissingCost = "one"
            if path == "/v1/reserve":
                missing = "by_usage" if "usage" in body else "estimate"
            return self.shares.decide(checks, time.monotonic() * 1000, missing)
        allowed = self._on_no_answer == "allow" or all(check.cost == 0 for check in checks)
        wait = 0 if allowed else RETRY_MS
        return Decision(allowed, 0, 0, wait, 0, checks[0].name(), "none")

    def _report(self, error: Optional[NoAnswer]) -> None:
        """Logs decisions without the server, the first at once, then once in a while."""
        self._unreported += 1
        now = time.monotonic()
        if error is None or now < self._report_at:
            return
        count, self._unreported, self._report_at = self._unreported, 0, now + _REPORT_SECONDS
        place, setting = self.address.host_header, self._on_no_answer
        logger.warning("no answer from %s: %s; %s decides (%d)", place, error, setting, count)

    def settled(self, path: str, outcome: Outcome) -> Settlement:
        if isinstance(outcome, NoAnswer):
            raise outcome
        body = _json(outcome)
        if outcome.status != 200:
            raise error_of(path, outcome.status, body)
        try:
            return settlement_of(body)
        except (KeyError, TypeError) as error:
            raise NoAnswer(f"the response is no settlement: {error!r}", outcome.status) from error

    def limits_are_due(self) -> bool:
        """True for one caller a minute, if the limits are needed at all."""
        now = time.monotonic()
        if self._on_no_answer != "local" or now < self._limits_due_at:
            return False
        self._limits_due_at = now + _LIMITS_SECONDS
        return True

    def learn(self, outcome: Outcome) -> None:
        try:
            if isinstance(outcome, NoAnswer):
                raise outcome
            body = _json(outcome)
            if outcome.status != 200:
                raise error_of("/v1/rules", outcome.status, body)
            try:
                self.shares.learn(body)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise NoAnswer(f"the response has no rules: {error!r}", outcome.status) from error
            self._limits_due_at = time.monotonic() + _LIMITS_SECONDS
        except TidegateError:
            self._limits_due_at = time.monotonic() + _OPEN_SECONDS
            raise


def _checked_token(token: Optional[str]) -> Optional[str]:
    """The token without the end of the line of a file; None if it is empty."""
    stripped = (token or "").strip()
    if not all("!" <= letter <= "~" for letter in stripped):
        raise ValueError("the token has spaces, control characters or characters beyond ASCII")
    return stripped or None


def is_unanswered(outcome: Outcome) -> bool:
    return isinstance(outcome, NoAnswer) or outcome.status >= 500


def check_body(
    checks: Sequence[Check],
    id: Optional[str] = None,
    wait: float = 0.0,
    ttl: Optional[float] = None,
    model: Optional[str] = None,
    usage: Optional[object] = None,
) -> JsonObject:
    if not checks:
        raise ValueError("a call has at least one check")
    bodies = [check.body() for check in checks]
    body: JsonObject = bodies[0] if len(bodies) == 1 else {"checks": bodies}
    if id is not None:
        body["id"] = id
    if wait > 0:
        body["wait_ms"] = round(wait * 1000)
    if ttl is not None:
        body["ttl_ms"] = round(ttl * 1000)
    return {**body, **usage_body(model, usage)}


def commit_body(
    reservation: str,
    usage: Optional[object],
    model: Optional[str],
    cost: Optional[int],
    costs: Optional[Mapping[str, int]],
) -> JsonObject:
    body: JsonObject = {"reservation": reservation, **usage_body(model, usage)}
    if cost is not None:
        body["cost"] = cost
    if costs is not None:
        body["costs"] = dict(costs)
    return body


def usage_body(model: Optional[str], usage: Optional[object]) -> JsonObject:
    """Usage as a provider returns it: a mapping, or an object of its SDK."""
    body: JsonObject = {} if model is None else {"model": model}
    if usage is None:
        return body
    for method in ("model_dump", "to_dict", "dict"):
        convert = getattr(usage, method, None)
        if not isinstance(usage, Mapping) and callable(convert):
            usage = convert()
            break
    if not isinstance(usage, Mapping):
        raise TypeError(f"usage is {type(usage).__name__}; pass a mapping or the SDK's object")
    return {**body, "usage": {name: value for name, value in usage.items() if value is not None}}


def checks_of(rules: Sequence[str], key: Union[str, Mapping[str, Any]]) -> List[Check]:
    """The checks of a budget: one key for all rules, or a key for each."""
    keys: Dict[str, Any] = {rule: key for rule in rules} if isinstance(key, str) else dict(key)
    missing = [rule for rule in rules if rule not in keys]
    if missing:
        raise ValueError(f"no key for {', '.join(missing)}")
    return [Check(rule, keys[rule]) for rule in rules]


def _json(response: Response) -> JsonObject:
    try:
        body = json.loads(response.body)
    except ValueError:
        body = None
    if isinstance(body, dict):
        return body
    if response.status < 400 or response.status == 429:
        raise NoAnswer("the response is not a JSON object", response.status)
    return {}
