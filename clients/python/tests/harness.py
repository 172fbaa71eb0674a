"""A real server and a real Redis for one test."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence

CLIENTS = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("TIDEGATE_BIN", str(CLIENTS.parent / "target/debug/tidegate"))


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.01)


class Redis:
    def __init__(self) -> None:
        # A socket in a folder of its own needs no free port.
        self.folder = tempfile.mkdtemp(prefix="tidegate-")
        self.url = f"unix://{self.folder}/redis.sock"
        self.start()

    def start(self) -> None:
        path = f"{self.folder}/redis.sock"
        options = ["--port", "0", "--unixsocket", path, "--save", "", "--dir", self.folder]
        self.process = subprocess.Popen(
            ["redis-server", *options, "--appendonly", "no"], stdout=subprocess.DEVNULL
        )

        def answers() -> bool:
            with socket.socket(socket.AF_UNIX) as connection:
                return connection.connect_ex(path) == 0

        wait_until(answers, "redis-server accepts connections")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class Server:
    """``tidegate serve`` with the policy of the cases, or with the sample policy."""

    def __init__(
        self,
        store: str = "memory",
        token: Optional[str] = None,
        config: Optional[Path] = CLIENTS / "policy.yaml",
        options: Sequence[str] = (),
    ) -> None:
        self.config = config
        self.options = options
        self.redis = Redis() if store == "redis" else None
        self.environment: Dict[str, str] = {**os.environ, "TIDEGATE_LOG": "info"}
        if token is not None:
            self.environment["TIDEGATE_TOKEN"] = token
        self.address = "127.0.0.1:0"
        self.start()
        self.url = f"http://{self.address}"

    def start(self) -> None:
        command: List[str] = [BINARY, "serve"]
        if self.config is not None:
            command += ["--config", str(self.config)]
        command += ["--http", self.address, "--resp", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
        command += self.options
        if self.redis is not None:
            command += ["--store", self.redis.url]
        self.log = tempfile.NamedTemporaryFile(prefix="tidegate-", suffix=".log")
        self.process = subprocess.Popen(
            command, env=self.environment, stdout=self.log, stderr=self.log
        )
        wait_until(self._listens, "the server listens")

    def _listens(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(Path(self.log.name).read_text())
        for line in Path(self.log.name).read_text().splitlines():
            if '"message":"listening"' in line:
                fields: Dict[str, Any] = json.loads(line)["fields"]
                self.address = fields["http"]
                return True
        return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        # Threads on other processors go on for a moment.
        wait_until(self._is_frozen, "all threads are stopped")

    def _is_frozen(self) -> bool:
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/stat")
        return all(stat.read_text().rpartition(") ")[2].startswith("T") for stat in tasks)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def do(self, step: Dict[str, Any]) -> None:
        """One ``do`` of a case."""
        if step["do"] == "sleep":
            time.sleep(step["ms"] / 1000)
            return
        actions: Dict[str, Callable[[], None]] = {
            "kill_server": self.kill,
            "start_server": self.start,
            "freeze_server": self.freeze,
            "thaw_server": self.thaw,
        }
        if self.redis is not None:
            actions.update(stop_store=self.redis.stop, start_store=self.redis.start)
        actions[step["do"]]()

    def close(self) -> None:
        self.kill()
        self.log.close()
        if self.redis is not None:
            self.redis.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
