"""A stand-in for a model server with OpenAI's interface: it streams as many words as it is asked for.

"count to 40" is answered by 40 tokens. The last chunk has the usage, if the request asks for it.
"""

import json
import re
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Model(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = " ".join(message["content"] for message in request["messages"])
        wanted = re.search(r"count to (\d+)", text)
        tokens = min(int(wanted[1]) if wanted else 10, request.get("max_tokens", 1_000))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for n in range(1, tokens + 1):
            self.event({"choices": [{"index": 0, "delta": {"content": f"{n} "}}]})
            time.sleep(0.0005)
        prompt = len(text.split())
        if request.get("stream_options", {}).get("include_usage"):
            usage = {
                "prompt_tokens": prompt,
                "completion_tokens": tokens,
                "total_tokens": prompt + tokens,
            }
            self.event({"model": request["model"] + "-2026-05", "choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, fields):
        self.wfile.write(b"data: " + json.dumps(fields).encode() + b"\n\n")

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Model)
print(server.server_port, flush=True)
server.serve_forever()
