"""The local share: what decides while the server does not answer."""

from __future__ import annotations

import math
import re
import threading
from array import array
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

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

    def slot(self, check: Check) -> int:
        key = check.key if check.key is None or isinstance(check.key, str) else tuple(check.key)
        return hash(key) % SLOTS

    def verdict(self, check: Check, policy: str, cost: int, now: float) -> Verdict:
        full_at = now if self.full_at is None else max(now, self.full_at[self.slot(check)])
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
        return Verdict(check.name(), policy, allowed, self.capacity, remaining, wait, reset)

    def charge(self, check: Check, cost: int, now: float) -> None:
        if self.full_at is None:
            self.full_at = array("d", bytes(8 * SLOTS))
        slot = self.slot(check)
        self.full_at[slot] = max(now, self.full_at[slot]) + cost * self.interval


class LocalShares:
    """The limits that are known, and what this process has used of its share of them."""

    def __init__(self, share: float, limits: Mapping[str, Sequence[str]]) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"local_share is {share}; it is above 0 and at most 1")
        self._share = share
        self._lock = threading.Lock()
        self._configured: Dict[str, Tuple[str, ...]] = {}
        self._shares: Dict[Tuple[str, int, str], _Share] = {}
        for rule, notations in limits.items():
            for notation in notations:
                parse_limit(notation)
            self._configured[rule] = tuple(notations)
        self._limits = self._configured

    def learn(self, body: Mapping[str, Any]) -> None:
        """Takes over the rules of ``GET /v1/rules``; unchanged limits keep their counts."""
        learned: Dict[str, Tuple[str, ...]] = {}
        for rule in body["rules"]:
            enforced = () if rule.get("shadow") else rule["limits"]
            learned[rule["name"]] = tuple(enforced)
        with self._lock:
            self._limits = {**self._configured, **learned}
            stale = [at for at in self._shares if at[0] and at[2] not in self._limits.get(at[0], ())]
            for at in stale:
                del self._shares[at]

    def decide(self, checks: Sequence[Check], now: float) -> Decision:
        """Charges every limit of every check, or none. ``now`` is in milliseconds."""
        with self._lock:
            found: List[Tuple[_Share, Check, int]] = []
            verdicts: List[Verdict] = []
            for check in checks:
                cost = 1 if check.cost is None else check.cost
                shares = self._shares_of(check)
                if shares is None:
                    name = check.name()
                    verdicts.append(Verdict(name, name, cost == 0, 0, 0, RETRY_MS, 0))
                    continue
                for i, share in enumerate(shares):
                    name = check.name() if len(shares) == 1 else f"{check.name()}.{i + 1}"
                    verdicts.append(share.verdict(check, name, cost, now))
                    found.append((share, check, cost))
            if all(verdict.allowed for verdict in verdicts):
                for share, check, cost in found:
                    share.charge(check, cost, now)
        return _decision(checks[0].name(), verdicts)

    def _shares_of(self, check: Check) -> Optional[List[_Share]]:
        """The shares of a check, made at their first use; None if a limit is not known."""
        rule = check.rule or ""
        notations = self._limits.get(rule) if check.rule else (check.limit or "",)
        if notations is None:
            return None
        shares = []
        for i, notation in enumerate(notations):
            at = (rule, i, notation)
            if at not in self._shares:
                parsed = parse_limit(notation)
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
