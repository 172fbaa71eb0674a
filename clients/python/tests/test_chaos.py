"""The server is killed and restarted, then frozen for 5 s, while both clients send checks.

Times are goals: they are printed, and bounds only with TIDEGATE_TIMING=1.
"""

from __future__ import annotations

import asyncio
import collections
import os
import threading
import time
import unittest
from typing import Counter, List, NamedTuple

from tidegate import AsyncClient, Client, Decision

from harness import Server, wait_until

DEADLINE = 0.150
CALLERS = 8
PAUSE = 0.005


class Call(NamedTuple):
    start: float
    end: float
    decision: Decision


def quantile(values: List[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Load:
    """Callers with threads and with asyncio, and bare timers beside both."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.running = True
        self.calls: List[Call] = []
        self.local: Counter[str] = collections.Counter()
        self.timers: List[float] = []
        self.client = Client(url, on_no_answer="deny")
        self.shares = Client(url, on_no_answer="local")
        self.shares.load_limits()
        tasks = [self.call] * CALLERS + [self.call_locally, self.sleep, self.run_async]
        self.threads = [threading.Thread(target=task) for task in tasks]

    def call(self) -> None:
        while self.running:
            start = time.monotonic()
            decision = self.client.check("load", "k")
            self.calls.append(Call(start, time.monotonic(), decision))
            time.sleep(PAUSE)

    def call_locally(self) -> None:
        while self.running:
            for key in ("a", "b", "c"):
                decision = self.shares.check("api", key)
                if decision.source == "local" and decision.allowed:
                    self.local[key] += 1
            time.sleep(PAUSE)

    def sleep(self) -> None:
        while self.running:
            start = time.monotonic()
            time.sleep(DEADLINE)
            self.timers.append(time.monotonic() - start)

    def run_async(self) -> None:
        asyncio.run(self.call_async())

    async def call_async(self) -> None:
        async with AsyncClient(self.url, on_no_answer="deny") as client:

            async def call() -> None:
                while self.running:
                    start = time.monotonic()
                    decision = await client.check("load", "k")
                    self.calls.append(Call(start, time.monotonic(), decision))
                    await asyncio.sleep(PAUSE)

            async def sleep() -> None:
                while self.running:
                    start = time.monotonic()
                    await asyncio.sleep(DEADLINE)
                    self.timers.append(time.monotonic() - start)

            await asyncio.gather(*(call() for _ in range(CALLERS)), sleep())

    def stop(self) -> None:
        self.running = False
        for thread in self.threads:
            thread.join()
        self.client.close()
        self.shares.close()


class Chaos(unittest.TestCase):
    def test_callers_wait_no_longer_than_the_deadline_and_follow_the_setting(self) -> None:
        with Server() as server:
            load = Load(server.url)
            for thread in load.threads:
                thread.start()
            try:
                self.wait_for_the_server(load)
                server.kill()
                time.sleep(1.5)
                server.start()
                self.wait_for_the_server(load)
                server.freeze()
                frozen = time.monotonic()
                time.sleep(5)
                thawed = time.monotonic()
                server.thaw()
                self.wait_for_the_server(load)
            finally:
                load.stop()
        self.judge(load, frozen, thawed)

    def wait_for_the_server(self, load: Load) -> None:
        """The server decides again, not only now and then."""
        began = len(load.calls)

        def decides() -> bool:
            return sum(call.decision.source == "memory" for call in load.calls[began:]) > 100

        wait_until(decides, "the server decides again")

    def judge(self, load: Load, frozen: float, thawed: float) -> None:
        by_server = [call for call in load.calls if call.decision.source == "memory"]
        without = [call for call in load.calls if call.decision.source == "none"]
        self.assertEqual(len(by_server) + len(without), len(load.calls))
        self.assertTrue(all(call.decision.allowed for call in by_server))
        self.assertFalse(any(call.decision.allowed for call in without))
        during = [call for call in without if frozen < call.start < thawed - 1]
        self.assertGreater(len(during), 100)
        self.assertTrue(all(call.end < thawed for call in during), "a call waited for the thaw")
        # Half of `10/h`, and a share does not recover a permit within this test.
        self.assertEqual(dict(load.local), {"a": 5, "b": 5, "c": 5})

        waits = [call.end - call.start for call in load.calls]
        found, timer = quantile(waits, 0.999), quantile(load.timers, 0.999)
        goal = max(1.2 * DEADLINE, timer)
        print(
            f"\nchaos: {len(by_server)} calls decided by the server, {len(without)} without it; "
            f"wait p50 {quantile(waits, 0.5) * 1000:.1f} ms, p99.9 {found * 1000:.1f} ms, "
            f"longest {max(waits) * 1000:.1f} ms (goal p99.9 <= {1.2 * DEADLINE * 1000:.0f} ms); "
            f"bare timers of {DEADLINE * 1000:.0f} ms: p99.9 {timer * 1000:.1f} ms"
        )
        if found > goal:
            print(f"late: python clients: p99.9 {found * 1000:.1f} ms")
            self.assertNotEqual(os.environ.get("TIDEGATE_TIMING"), "1")


if __name__ == "__main__":
    unittest.main()
