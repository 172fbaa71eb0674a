"""A rule as ``GET /v1/rules`` describes it: what the local share needs of it."""

from __future__ import annotations

import ipaddress
import time
from datetime import datetime, timezone
from typing import Any, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union

from ._types import Key

_Address = Union[ipaddress.IPv4Address, ipaddress.IPv6Address]
_Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]


class CountedKey(NamedTuple):
    """A key as the server counts it: a client address in IPv6 by its /64."""

    parts: Tuple[str, ...]
    client: Optional[_Address]


class LocalRule:
    """Limits, lists and overrides of one rule. A rule in shadow mode has none of them."""

    def __init__(self, rule: Mapping[str, Any]) -> None:
        enforced = {} if rule.get("shadow") else rule
        self.estimate: int = rule.get("estimate") or 1
        self._key: Sequence[str] = rule.get("key") or ()
        self._limits: Tuple[str, ...] = tuple(enforced.get("limits", ()))
        self._deny = _Entries(enforced.get("deny") or (), is_deny=True)
        self._allow = _Entries(enforced.get("allow") or (), is_deny=False)
        self._overrides = {
            self.key_of(one["key"]).parts: (tuple(one["limits"]), _seconds(one.get("until")))
            for one in enforced.get("overrides") or ()
        }

    def notations(self) -> Set[str]:
        """All limits that some key may have."""
        return set(self._limits).union(*(limits for limits, _ in self._overrides.values()))

    def key_of(self, key: Optional[Key]) -> CountedKey:
        given = () if key is None else (key,) if isinstance(key, str) else tuple(key)
        parts, client = list(given), None
        if not self._key and len(given) == 1:
            client = _address(given[0])
        for i, (kind, part) in enumerate(zip(self._key, given)):
            address = _address(part) if kind == "client_ip" else None
            if address is not None:
                client = client or address
                is_long = isinstance(address, ipaddress.IPv6Address)
                parts[i] = str(_around(address, 64)) if is_long else str(address)
        return CountedKey(tuple(parts), client)

    def limits_of(self, key: CountedKey) -> Tuple[str, ...]:
        limits, until = self._overrides.get(key.parts, (self._limits, None))
        return self._limits if until is not None and time.time() >= until else limits

    def denies(self, key: CountedKey) -> bool:
        return self._deny.has(key)

    def exempts(self, key: CountedKey) -> bool:
        return self._allow.has(key)


class _Entries:
    """An allow or deny list: networks match the client address, other entries a key of one part.

    A single address on a deny list matches both.
    """

    def __init__(self, entries: Sequence[str], is_deny: bool) -> None:
        found = [(text, _network(text)) for text in entries]
        self._networks: List[_Network] = [network for _, network in found if network is not None]
        self._keys: FrozenSet[str] = frozenset(
            text for text, network in found if network is None or (is_deny and "/" not in text)
        )

    def has(self, key: CountedKey) -> bool:
        if len(key.parts) == 1 and key.parts[0] in self._keys:
            return True
        client = key.client
        return client is not None and any(client in network for network in self._networks)


def _address(text: str) -> Optional[_Address]:
    """The address in a text; an IPv4 address in IPv6 as IPv4."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv4Address):
        return found
    return None if "%" in text else found.ipv4_mapped or found


def _network(text: str) -> Optional[_Network]:
    host, slash, length = text.partition("/")
    address = _address(host)
    if address is None:
        return None
    width: int = address.max_prefixlen
    if slash:
        # The length of an IPv4 network that is written in IPv6 counts 96 bits more.
        width = int(length) - (96 if width == 32 and ":" in host else 0)
    return _around(address, width)


def _around(address: _Address, width: int) -> _Network:
    kind = ipaddress.IPv4Network if address.version == 4 else ipaddress.IPv6Network
    return kind((int(address), width), strict=False)


def _seconds(until: Optional[str]) -> Optional[float]:
    """Seconds since 1970 of a time such as ``2027-01-01T00:00:00.25Z``, without the fraction."""
    if until is None:
        return None
    ends = datetime.strptime(until[:19], "%Y-%m-%dT%H:%M:%S")
    return ends.replace(tzinfo=timezone.utc).timestamp()
