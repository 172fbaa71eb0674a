"""What calls take and return, and the errors they raise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

Key = Union[str, Sequence[str]]
JsonObject = Dict[str, Any]

_QUOTA = "https://iana.org/assignments/http-problem-types#"


@dataclass(frozen=True)
class Check:
    """One rule, or one ad-hoc limit, of a check or a reservation.

    Without a cost, a check charges 1 and a reservation the estimate of its rule.
    """

    rule: Optional[str] = None
    key: Optional[Key] = None
    cost: Optional[int] = None
    limit: Optional[str] = None

    def __post_init__(self) -> None:
        if self.cost is not None and not (isinstance(self.cost, int) and self.cost >= 0):
            raise InvalidRequest(f"is {self.cost!r}; it is a whole number from 0", field="cost")

    def name(self) -> str:
        return self.rule if self.rule is not None else "adhoc"

    def body(self) -> JsonObject:
        fields: JsonObject = {"rule": self.rule, "limit": self.limit, "cost": self.cost}
        if self.key is not None:
            fields["key"] = self.key if isinstance(self.key, str) else list(self.key)
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True)
class Verdict:
    """The result of one limit; ``policy`` is its name in the ``RateLimit`` header."""

    rule: str
    policy: str
    allowed: bool
    limit: int
    remaining: int
    retry_after_ms: Optional[int]
    reset_after_ms: int


@dataclass(frozen=True)
class Decision:
    """The result of a check.

    ``source`` is that of the server (``memory``, ``redis``, ..), ``none`` if ``on_no_answer``
    decided, or ``local`` if the local share did. ``retry_after_ms`` is None if ``never``.
    """

    allowed: bool
    limit: int
    remaining: int
    retry_after_ms: Optional[int]
    reset_after_ms: int
    rule: str
    source: str
    never: bool = False
    delay_ms: int = 0
    rules: Tuple[Verdict, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    """The rate limit headers of the response, to pass on."""

    def problem(self) -> JsonObject:
        """The body of a 429, for ``application/problem+json``."""
        by_server = self.source not in ("none", "local", "fallback")
        kind = "quota-exceeded" if by_server else "temporary-reduced-capacity"
        title = (
            "Request cannot be satisfied as assigned quota has been exceeded"
            if by_server
            else "Request cannot be satisfied due to temporary server capacity constraints"
        )
        body: JsonObject = {"type": _QUOTA + kind, "title": title, "status": 429}
        violated = [verdict.policy for verdict in self.rules if not verdict.allowed]
        return {**body, "violated-policies": violated} if violated else body

    def response_headers(self) -> Dict[str, str]:
        """The headers of a response to the caller, with ``Retry-After`` if it is denied."""
        headers = dict(self.headers)
        if not self.allowed:
            headers["cache-control"] = "no-store"
            if self.retry_after_ms is not None:
                headers["retry-after"] = str(-(-self.retry_after_ms // 1000))
        return headers


@dataclass(frozen=True)
class SettledRule:
    """What settling a reservation did to one limit."""

    rule: str
    policy: str
    reserved: int
    charged: int
    uncharged: int
    limit: int
    remaining: int


@dataclass(frozen=True)
class Settlement:
    """The result of a commit or a cancel; not ``settled`` if the server made no reservation."""

    settled: bool
    late: bool = False
    overdrawn: bool = False
    rules: Tuple[SettledRule, ...] = ()


class TidegateError(Exception):
    """A call that has no decision. ``kind`` names the class, ``field`` what was invalid."""

    kind = "error"

    def __init__(
        self, detail: str, status: Optional[int] = None, field: Optional[str] = None
    ) -> None:
        super().__init__(f"{field}: {detail}" if field else detail)
        self.detail = detail
        self.status = status
        self.field = field


class InvalidRequest(TidegateError):
    kind = "invalid"


class Unauthorized(TidegateError):
    kind = "unauthorized"


class UnknownRule(TidegateError):
    kind = "unknown_rule"


class UnknownReservation(TidegateError):
    kind = "unknown_reservation"


class Conflict(TidegateError):
    kind = "conflict"


class NoAnswer(TidegateError):
    kind = "no_answer"


class Denied(TidegateError):
    """Raised by decorators and context managers; ``decision`` says when to retry."""

    kind = "denied"

    def __init__(self, decision: Decision) -> None:
        wait = decision.retry_after_ms
        when = "never passes" if wait is None else f"retry in {wait} ms"
        super().__init__(f"denied by {decision.rule}: {when}", 429)
        self.decision = decision


def error_of(path: str, status: int, problem: Mapping[str, Any]) -> TidegateError:
    """The error that a response other than 200 and 429 means."""
    detail = str(problem.get("detail") or f"status {status}")
    named = problem.get("field")
    is_settling = path in ("/v1/commit", "/v1/cancel")
    kinds: Dict[int, type[TidegateError]] = {
        401: Unauthorized,
        403: Unauthorized,
        404: UnknownReservation if is_settling else UnknownRule,
        409: Conflict,
    }
    kind = NoAnswer if status >= 500 else kinds.get(status, InvalidRequest)
    return kind(detail, status, None if named is None else str(named))


def decision_of(body: Mapping[str, Any], headers: Mapping[str, str]) -> Decision:
    passed_on = ("ratelimit", "x-ratelimit", "retry-after")
    verdicts: List[Verdict] = [
        Verdict(
            rule=row["rule"],
            policy=row["policy"],
            allowed=row["allowed"],
            limit=row["limit"],
            remaining=row["remaining"],
            retry_after_ms=row["retry_after_ms"],
            reset_after_ms=row["reset_after_ms"],
        )
        for row in body.get("rules", ())
    ]
    return Decision(
        allowed=body["allowed"],
        limit=body["limit"],
        remaining=body["remaining"],
        retry_after_ms=body["retry_after_ms"],
        reset_after_ms=body["reset_after_ms"],
        rule=body["rule"],
        source=body["source"],
        never=bool(body.get("never", False)),
        delay_ms=body["delay_ms"],
        rules=tuple(verdicts),
        headers={name: value for name, value in headers.items() if name.startswith(passed_on)},
    )


def settlement_of(body: Mapping[str, Any]) -> Settlement:
    names = ("rule", "policy", "reserved", "charged", "uncharged", "limit", "remaining")
    rows = tuple(SettledRule(**{name: row[name] for name in names}) for row in body["rules"])
    return Settlement(body["settled"], body["late"], body["overdrawn"], rows)
