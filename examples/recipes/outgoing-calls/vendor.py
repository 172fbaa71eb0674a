"""Stands for the third party, on port 9000: at most 15 calls in every second."""

import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LIMIT = 15
served = deque()
lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        with lock:
            now = time.monotonic()
            while served and served[0] <= now - 1:
                served.popleft()
            is_allowed = len(served) < LIMIT
            if is_allowed:
                served.append(now)
        self.send_response(200 if is_allowed else 429)
        if not is_allowed:
            self.send_header("Retry-After", "1")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", 9000), Handler).serve_forever()
