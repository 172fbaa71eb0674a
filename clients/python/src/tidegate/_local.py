"""The local share: what decides while the server does not answer."""

from __future__ import annotations

import math
import re
import threading
from array import array
from collections import defaultdict
from typing import Any, Dict, List, Literal, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from ._rule import LocalRule
from ._types import Check, Decision, Verdict

RETRY_MS = 1000
"""When to retry after a denial whose end is not known: the server may be back then."""

SLOTS = 4096
MAX_LIMITS = 256

_NOTATION = re.compile(r"(?:([a-z-]+) )?(\d+)/(\d*)([a-z]+)((?: \S+)*)")
_UNITS_MS = {"us": 0.001, "ms": 1.0, "s": 1e3, "m": 6e4, "h": 36e5, "d": 864e5, "w": 6048e5}
_UNITS_MS.update(sec=1e3, min=6e4, minute=6e4, hour=36e5, day=864e5, week=6048e5)
_UNITS_MS["month"] = 31 * 864e5


def parse_limit(notation: str) -> Optional[Tuple[int, float]]:
    """The capacity of a limit and the milliseconds in which it recovers.

    None for a concurrency limit, which has no such time.
    """
    if notation.startswith("concurrency "):
        return None
    found = _NOTATION.fullmatch(notation.strip())
    if found is None:
        raise ValueError(f"{notation!r} is not a limit; write 5/min or sliding-log 5/1m")
    _, count_text, number, unit, options = found.groups()
    span = _UNITS_MS.get(unit) or _UNITS_MS.get(unit[:-1] if len(unit) > 2 else unit)
    if span is None:
        raise ValueError(f"{notation!r}: unknown unit {unit!r}")
    count = int(count_text)
    recovery = span * int(number or 1)
    burst = re.search(r" (?:burst|capacity) (\d+)", options)
    if burst is None or count == 0:
        return count, recovery
    capacity = int(burst.group(1))
    return capacity, recovery * capacity / count


class _Share:
    """A token bucket for each slot of keys; a slot holds the time at which it is full again."""

    def __init__(self, limit: int, recovery_ms: float, share: float) -> None:
        self.capacity = 0 if limit == 0 else max(1, math.floor(limit * share + 1e-9))
        self.interval = recovery_ms / self.capacity if self.capacity else 0.0
        self.full_at: Optional[array[float]] = None

    def verdict(self, name: str, policy: str, slot: int, cost: int, now: float) -> Verdict:
        full_at = now if self.full_at is None else max(now, self.full_at[slot])
        left = self.capacity - (full_at - now) / self.interval if self.capacity else 0.0
        allowed = cost == 0 or left + 1e-9 >= cost
        wait: Optional[int] = 0
        if not allowed and self.capacity == 0:
            wait = None
        elif not allowed and cost > self.capacity:
            wait = RETRY_MS
        elif not allowed:
            wait = math.ceil((cost - left) * self.interval)
        after = cost if allowed else 0
        remaining = max(0, math.floor(left - after + 1e-9))
        reset = math.ceil(full_at - now + after * self.interval)
        return Verdict(name, policy, allowed, self.capacity, remaining, wait, reset)

    def charge(self, slot: int, cost: int, now: float) -> None:
        if self.full_at is None:
            self.full_at = array("d", bytes(8 * SLOTS))
        self.full_at[slot] = max(now, self.full_at[slot]) + cost * self.interval


class _Charge(NamedTuple):
    """What a check costs under one limit."""

    share: _Share
    slot: int
    name: str
    policy: str
    cost: int


MissingCost = Literal["one", "estimate", "by_usage"]
"""What a check without a cost costs; by usage, only the server knows."""


class LocalShares:
    """The limits that are known, and what this process has used of its share of them."""

    def __init__(self, share: float, limits: Mapping[str, Sequence[str]]) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"local_share is {share}; it is above 0 and at most 1")
        self._share = share
        self._lock = threading.Lock()
        self._configured: Dict[str, LocalRule] = {}
        self._shares: Dict[Tuple[str, int, str], _Share] = {}
        for rule, notations in limits.items():
            for notation in notations:
                parse_limit(notation)
            self._configured[rule] = LocalRule({"limits": notations})
        self._rules = self._configured

    def learn(self, body: Mapping[str, Any]) -> None:
        """Takes over the rules of ``GET /v1/rules``; unchanged limits keep their counts."""
        learned = {rule["name"]: LocalRule(rule) for rule in body["rules"]}
        with self._lock:
            self._rules = {**self._configured, **learned}
            known = {name: rule.notations() for name, rule in self._rules.items()}
            stale = [at for at in self._shares if at[0] and at[2] not in known.get(at[0], ())]
            for at in stale:
                del self._shares[at]

    def decide(
        self, checks: Sequence[Check], now: float, missing: MissingCost = "one"
    ) -> Decision:
        """Charges every limit of every check, or none. ``now`` is in milliseconds."""
        with self._lock:
            rows = [row for check in checks for row in self._plan(check, missing)]
            # Checks of one slot are judged by their sum, as all of them are charged.
            totals: Dict[Tuple[_Share, int], int] = defaultdict(int)
            for row in rows:
                if isinstance(row, _Charge):
                    totals[row.share, row.slot] += row.cost
            verdicts = [
                row
                if isinstance(row, Verdict)
                else row.share.verdict(
                    row.name, row.policy, row.slot, totals[row.share, row.slot], now
                )
                for row in rows
            ]
            if all(verdict.allowed for verdict in verdicts):
                for (share, slot), cost in totals.items():
                    share.charge(slot, cost, now)
        return _decision(checks[0].name(), verdicts)

    def _plan(self, check: Check, missing: MissingCost) -> List[Union[Verdict, _Charge]]:
        """What a check costs under each limit, or its verdict if that is known without counting."""
        name = check.name()
        rule = self._rules.get(check.rule or "")
        if not check.rule:
            rule = LocalRule({"limits": (check.limit or "",)})
        if rule is None:
            return [Verdict(name, name, check.cost == 0, 0, 0, RETRY_MS, 0)]
        key = rule.key_of(check.key)
        if rule.denies(key):
            return [Verdict(name, name, False, 0, 0, None, 0)]
        if rule.exempts(key):
            return []
        cost = check.cost
        if cost is None and missing != "by_usage":
            cost = rule.estimate if missing == "estimate" else 1
        shares = self._shares_of(check.rule or "", rule.limits_of(key))
        if shares is None or cost is None:
            return [Verdict(name, name, cost == 0, 0, 0, RETRY_MS, 0)]
        slot = hash(key.parts) % SLOTS
        policies = [name if len(shares) == 1 else f"{name}.{i + 1}" for i in range(len(shares))]
        return [_Charge(s, slot, name, policy, cost) for s, policy in zip(shares, policies)]

    def _shares_of(self, rule: str, notations: Sequence[str]) -> Optional[List[_Share]]:
        """The shares of limits, made at their first use; None if one cannot be counted."""
        shares = []
        for i, notation in enumerate(notations):
            at = (rule, i, notation)
            if at not in self._shares:
                try:
                    parsed = parse_limit(notation)
                except ValueError:
                    parsed = None
                if parsed is None or len(self._shares) >= MAX_LIMITS:
                    return None
                self._shares[at] = _Share(parsed[0], parsed[1], self._share)
            shares.append(self._shares[at])
        return shares


def _decision(rule: str, verdicts: List[Verdict]) -> Decision:
    """The most restrictive limit is reported: the longest wait, or the least remaining."""
    if not verdicts:
        return Decision(True, 0, 0, 0, 0, rule, "local")
    denied = [verdict for verdict in verdicts if not verdict.allowed]
    if denied:
        chosen = max(denied, key=lambda v: math.inf if v.retry_after_ms is None else v.retry_after_ms)
    else:
        chosen = min(verdicts, key=lambda v: (v.remaining, -v.reset_after_ms))
    return Decision(
        allowed=not denied,
        limit=chosen.limit,
        remaining=chosen.remaining,
        retry_after_ms=chosen.retry_after_ms if denied else 0,
        reset_after_ms=chosen.reset_after_ms,
        rule=chosen.rule,
        source="local",
        never=bool(denied) and chosen.retry_after_ms is None,
        rules=tuple(verdicts),
    )
