"""Parts of the client that the shared cases do not reach."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import unittest
from typing import Any, Dict, List

from tidegate import AsyncClient, Check, Client, Denied, InvalidRequest, Settlement
from tidegate._core import usage_body
from tidegate._http import MalformedResponse, ResponseParser
from tidegate._local import MAX_LIMITS, SLOTS, LocalShares, parse_limit

from harness import Server

DEADLINE = 5.0


class Responses(unittest.TestCase):
    def parse(self, data: bytes, step: int) -> Any:
        parser = ResponseParser()
        pieces = [data[i : i + step] for i in range(0, len(data), step)]
        return [found for found in map(parser.feed, pieces) if found is not None]

    def test_a_response_may_arrive_in_pieces(self) -> None:
        plain = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello"
        chunked = (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 429 No\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n"
        )
        for data, status in ((plain, 200), (chunked, 429)):
            for step in (1, 2, 7, len(data)):
                (found,) = self.parse(data, step)
                self.assertEqual((found.status, found.body, found.reusable), (status, b"hello", True))

    def test_a_connection_with_more_bytes_is_not_used_again(self) -> None:
        (found,) = self.parse(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab", 100)
        self.assertFalse(found.reusable)

    def test_a_cut_or_foreign_response_is_none(self) -> None:
        for data in (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", b"HTTP/1.1 2", b""):
            parser = ResponseParser()
            with self.assertRaises(MalformedResponse):
                parser.feed(data)
                parser.feed(b"")
        for data in (b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"):
            with self.assertRaises(MalformedResponse):
                ResponseParser().feed(data)


class Shares(unittest.TestCase):
    def test_the_notation_gives_capacity_and_recovery(self) -> None:
        expected = {
            "5/min": (5, 60e3),
            "10/30s": (10, 30e3),
            "100/s burst 20": (20, 200.0),
            "leaky-bucket 10/s capacity 30 queue": (30, 3e3),
            "fixed-window 1000/d tz Asia/Shanghai": (1000, 864e5),
            "sliding-window 240/1h precision 1m": (240, 36e5),
            "token-bucket 10/s burst 50 every 1s": (50, 5e3),
            "2/5days": (2, 5 * 864e5),
            "0/s": (0, 1e3),
            "0/s burst 5": (0, 1e3),
        }
        self.assertEqual({text: parse_limit(text) for text in expected}, expected)
        self.assertIsNone(parse_limit("concurrency 20 lease 30s"))
        for text in ("5", "5/fortnight", "-1/s", "1.5/s", ""):
            with self.assertRaises(ValueError, msg=text):
                parse_limit(text)

    def test_a_share_recovers_with_time_and_never_exceeds_itself(self) -> None:
        shares = LocalShares(0.5, {"a": ["10/s"]})
        allowed: List[int] = []
        for now in range(0, 10_000, 7):
            if shares.decide([Check("a", "k")], float(now)).allowed:
                allowed.append(now)
        for start in allowed:
            within = sum(start <= at < start + 1000 for at in allowed)
            self.assertLessEqual(within, 10)
        self.assertGreaterEqual(len(allowed), 50)

    def test_the_state_is_bounded(self) -> None:
        shares = LocalShares(1.0, {"a": ["1/h"]})
        admitted = sum(shares.decide([Check("a", str(i))], 0.0).allowed for i in range(3 * SLOTS))
        self.assertLessEqual(admitted, SLOTS)
        self.assertGreater(admitted, SLOTS // 2)
        for i in range(MAX_LIMITS + 10):
            last = shares.decide([Check(key="k", limit=f"5/{i + 1}s")], 0.0)
        self.assertFalse(last.allowed)
        self.assertEqual(len(shares._shares), MAX_LIMITS)

    def test_rules_in_shadow_mode_never_deny_and_changed_limits_start_anew(self) -> None:
        shares = LocalShares(1.0, {})
        shares.learn({"rules": [{"name": "s", "limits": ["0/s"], "shadow": True}]})
        self.assertTrue(shares.decide([Check("s")], 0.0).allowed)
        for limit, expected in (("1/h", True), ("1/h", False), ("2/h", True)):
            shares.learn({"rules": [{"name": "r", "limits": [limit]}]})
            self.assertEqual(shares.decide([Check("r")], 0.0).allowed, expected)

    def test_a_removed_rule_falls_back_to_the_settings(self) -> None:
        shares = LocalShares(1.0, {"a": ["5/h"]})
        shares.learn({"rules": [{"name": name, "limits": ["7/h"]} for name in "ab"]})
        self.assertEqual([shares.decide([Check(name)], 0.0).limit for name in "ab"], [7, 7])
        shares.learn({"rules": []})
        self.assertEqual([shares.decide([Check(name)], 0.0).limit for name in "ab"], [5, 0])


    def test_lists_compare_addresses_and_an_override_ends(self) -> None:
        rule = {
            "name": "r",
            "key": ["client_ip"],
            "limits": ["9/h"],
            "deny": ["203.0.113.0/24", "2001:db8::/32", "::ffff:198.51.100.0/120", "::9"],
            "allow": ["10.0.0.0/8"],
            "overrides": [
                {"key": "192.0.2.1", "limits": ["3/h"], "until": "2020-01-01T00:00:00.5Z"},
                {"key": "2001:aaaa::5", "limits": ["3/h"], "until": "2999-01-01T00:00:00Z"},
            ],
        }
        shares = LocalShares(1.0, {})
        shares.learn({"rules": [rule]})
        expected: Dict[str, Any] = {
            "203.0.113.7": (False, 0, True),
            "::ffff:203.0.113.7": (False, 0, True),
            "2001:DB8:1::1": (False, 0, True),
            "198.51.100.3": (False, 0, True),
            "0::9": (False, 0, True),
            "203.0.114.7": (True, 9, False),
            "no-address": (True, 9, False),
            "10.9.8.7": (True, 0, False),
            "192.0.2.1": (True, 9, False),
            # An IPv6 client is counted by its /64.
            "2001:aaaa::6": (True, 3, False),
            "2001:aaaa:0:1::6": (True, 9, False),
        }
        found = {key: shares.decide([Check("r", key)], 0.0) for key in expected}
        self.assertEqual({k: (d.allowed, d.limit, d.never) for k, d in found.items()}, expected)
        self.assertEqual(shares.decide([Check("r", "2001:aaaa::7")], 0.0).remaining, 1)


class Connections(unittest.TestCase):
    def test_one_connection_serves_calls_in_turn_and_a_closed_one_is_replaced(self) -> None:
        with Server() as server, Client(server.url, deadline=DEADLINE) as client:
            ports = set()
            for _ in range(5):
                client.check("load", "k")
                ports.add(client._idle[0].getsockname()[1])
            self.assertEqual(len(ports), 1)
            server.kill()
            server.start()
            self.assertEqual(client.check("load", "k").source, "memory")

    def test_a_closed_connection_is_replaced_in_asyncio(self) -> None:
        async def run() -> None:
            with Server() as server:
                async with AsyncClient(server.url, deadline=DEADLINE) as client:
                    await client.check("load", "k")
                    server.kill()
                    server.start()
                    self.assertEqual((await client.check("load", "k")).source, "memory")

        asyncio.run(run())

    def test_a_forked_process_opens_its_own_connections(self) -> None:
        with Server() as server, Client(server.url, deadline=DEADLINE) as client:
            client.check("load", "k")
            port = client._idle[0].getsockname()[1]
            child = os.fork()
            if child == 0:
                source = client.check("load", "k").source
                is_new = client._idle[0].getsockname()[1] != port
                os._exit(0 if source == "memory" and is_new else 1)
            self.assertEqual(os.waitpid(child, 0)[1], 0)

    @unittest.skipUnless(shutil.which("openssl"), "no openssl")
    def test_both_clients_speak_tls_and_check_the_certificate(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            files = ["-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem"]
            names = ["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"]
            command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
            subprocess.run([*command, *files, *names], check=True, capture_output=True)
            tls = ["--tls-cert", f"{folder}/cert.pem", "--tls-key", f"{folder}/key.pem"]
            context = ssl.create_default_context(cafile=f"{folder}/cert.pem")
            with Server(options=tls) as server:
                url = server.url.replace("http://", "https://")
                options: Dict[str, Any] = {"deadline": DEADLINE, "on_no_answer": "deny"}

                async def run() -> str:
                    async with AsyncClient(url, ssl_context=context, **options) as client:
                        await client.check("load", "k")
                        return (await client.check("load", "k")).source

                self.assertEqual(asyncio.run(run()), "memory")
                with Client(url, ssl_context=context, **options) as trusting:
                    found = [trusting.check("load", "k").source for _ in range(2)]
                with Client(url, **options) as distrusting:
                    found.append(distrusting.check("load", "k").source)
                self.assertEqual(found, ["memory", "memory", "none"])

    def test_a_silent_server_is_called_by_few(self) -> None:
        """Five calls in a row open the circuit; then at most one call a second is sent."""
        with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            client = Client(url, deadline=0.05, on_no_answer="deny")
            with self.assertLogs("tidegate", "WARNING") as logged:
                results = [client.check("login", "k") for _ in range(200)]
            self.assertIn("deadline exceeded; deny decides (1)", logged.output[0])
            self.assertTrue(all(r.source == "none" and not r.allowed for r in results))
            listener.setblocking(False)
            accepted = 0
            while True:
                try:
                    listener.accept()[0].close()
                    accepted += 1
                except BlockingIOError:
                    break
            self.assertLess(accepted, 50)
            self.assertGreaterEqual(accepted, 5)


class Arguments(unittest.TestCase):
    def test_a_token_loses_its_line_end_and_cannot_add_a_header(self) -> None:
        url = "http://127.0.0.1:1"
        sent = Client(url, token="secret\r\n")._core.request("GET", "/v1/rules", None)
        self.assertIn(b"\r\nauthorization: Bearer secret\r\n\r\n", sent)
        sent = Client(url, token="\n")._core.request("GET", "/v1/rules", None)
        self.assertNotIn(b"authorization", sent)
        for token in ("a\r\nx-forwarded-for: 10.0.0.1", "a b", "gehe\u00edm", "a\x00"):
            for kind in (Client, AsyncClient):
                with self.assertRaises(ValueError, msg=token):
                    kind(url, token=token)

    def test_a_cost_is_a_whole_number_from_0(self) -> None:
        for cost in (-1, 1.5, float("nan"), "2"):
            with self.assertRaises(InvalidRequest, msg=str(cost)) as raised:
                Check("r", "k", cost)  # type: ignore[arg-type]
            self.assertEqual(raised.exception.field, "cost")


class Budgets(unittest.TestCase):
    def test_a_budget_is_reserved_and_committed_by_usage(self) -> None:
        class Usage:
            def model_dump(self) -> Dict[str, Any]:
                return {"prompt_tokens": 690, "completion_tokens": 205, "total_tokens": None}

        async def run() -> Settlement:
            with Server() as server:
                async with AsyncClient(server.url, deadline=DEADLINE) as client:
                    budget = client.budget("requests", "tokens", "spend")
                    estimate = {"input": 700, "output": 800}
                    async with budget.reserve("ann", model="model-a", usage=estimate) as held:
                        return await held.commit(Usage(), model="model-a")

        settled = asyncio.run(run())
        charged = {row.rule: row.charged for row in settled.rules}
        self.assertEqual(charged, {"requests": 1, "tokens": 895, "spend": 3775})

    def test_leaving_without_a_commit_cancels(self) -> None:
        with Server() as server, Client(server.url, deadline=DEADLINE) as client:
            with self.assertRaises(KeyError), client.reserve("work", "a", cost=900):
                self.assertEqual(client.check("work", "a", 0).remaining, 100)
                with self.assertRaises(Denied), client.reserve("work", "a", cost=900):
                    self.fail("it is denied")
                raise KeyError("the work failed")
            self.assertEqual(client.check("work", "a", 0).remaining, 1000)

    def test_a_key_for_each_rule_is_needed(self) -> None:
        budget = Client("http://127.0.0.1:1").budget("a", "b")
        with self.assertRaisesRegex(ValueError, "no key for b"):
            budget.reserve({"a": "x"})

    def test_usage_of_another_type_is_refused(self) -> None:
        with self.assertRaises(TypeError):
            usage_body("m", 17)


if __name__ == "__main__":
    unittest.main()
