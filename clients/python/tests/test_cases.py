"""The cases that all clients share, with both clients of this package."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
import unittest
from typing import Any, Awaitable, Dict, Optional, Union

from tidegate import AsyncClient, AsyncReservation, Check, Client, Reservation, TidegateError

from harness import CLIENTS, Server

AnyReservation = Union[Reservation, AsyncReservation]
CASES = json.loads((CLIENTS / "cases.json").read_text())["cases"]


def matches(expected: Any, found: Any) -> bool:
    if isinstance(expected, dict) and "from" in expected:
        return found is not None and bool(expected["from"] <= found <= expected["to"])
    if isinstance(expected, dict):
        return all(name in found and matches(value, found[name]) for name, value in expected.items())
    if isinstance(expected, list):
        return len(expected) == len(found) and all(map(matches, expected, found))
    return bool(expected == found)


class Run:
    """One case with one client; calls of the synchronous one are not awaitable."""

    def __init__(self, client: Union[Client, AsyncClient], server: Server) -> None:
        self.client = client
        self.server = server
        self.saved: Dict[str, AnyReservation] = {}

    async def step(self, step: Dict[str, Any]) -> None:
        if "do" in step:
            self.server.do(step)
            return
        end = time.monotonic() + 30
        while True:
            error: Optional[TidegateError] = None
            result: Dict[str, Any] = {}
            try:
                result = await self.call(step)
            except TidegateError as raised:
                error = raised
            if "until" not in step or matches(step["until"], result) or time.monotonic() > end:
                break
            await asyncio.sleep(0.05)
        if "error" in step:
            assert error is not None, f"{step}: no error but {result}"
            fields = {"kind": error.kind, "status": error.status, "field": error.field}
            assert matches(step["error"], fields), f"{step}: {fields}"
        else:
            assert error is None, f"{step}: {error!r}"
            expected = step.get("expect", step.get("until", {}))
            assert matches(expected, result), f"{step}: {result}"

    async def call(self, step: Dict[str, Any]) -> Dict[str, Any]:
        call = step["call"]
        if call == "load_limits":
            await self.finish(self.client.load_limits(30))
            return {}
        if call in ("check", "reserve"):
            rows = step.get("checks") or [step]
            checks = [
                Check(row.get("rule"), row.get("key"), row.get("cost"), row.get("limit"))
                for row in rows
            ]
            if call == "check":
                made = await self.finish(self.client.check_all(checks, id=step.get("id")))
                return dataclasses.asdict(made)
            options = {name: step[name] for name in ("model", "usage") if name in step}
            if "ttl_ms" in step:
                options["ttl"] = step["ttl_ms"] / 1000
            reservation = await self.finish(self.client.reserve_all(checks, **options))
            self.saved[step["save"]] = reservation
            fields = dataclasses.asdict(reservation.decision)
            return {
                **fields,
                "reservation": reservation.id,
                "expires_in_ms": reservation.expires_in_ms,
            }
        name = step["reservation"]
        held = self.client.reservation(name["id"]) if isinstance(name, dict) else self.saved[name]
        if call == "cancel":
            return dataclasses.asdict(await self.finish(held.cancel()))
        options = {name: step[name] for name in ("model", "cost", "costs", "usage") if name in step}
        return dataclasses.asdict(await self.finish(held.commit(**options)))

    async def finish(self, result: Any) -> Any:
        return await result if isinstance(result, Awaitable) else result


class Cases(unittest.TestCase):
    def run_all(self, kind: Any) -> None:
        for case in CASES:
            with self.subTest(case["name"]), Server(**case["server"]) as server:
                settings = dict(case["client"])
                deadline = settings.pop("deadline_ms", 5000) / 1000
                client = kind(server.url, deadline=deadline, **settings)
                asyncio.run(self.run_case(client, server, case))

    async def run_case(self, client: Any, server: Server, case: Dict[str, Any]) -> None:
        run = Run(client, server)
        try:
            for step in case["steps"]:
                await run.step(step)
        finally:
            await run.finish(client.close())

    def test_the_shared_cases_hold_for_threads(self) -> None:
        self.run_all(Client)

    def test_the_shared_cases_hold_for_asyncio(self) -> None:
        self.run_all(AsyncClient)


if __name__ == "__main__":
    unittest.main()
