"""Load of packaging/try-deb: each request on a new connection, until the file `done` exists."""

import os
import socket
import sys
import threading

BODY = b'{"limit":"1000000/s","key":"k"}'
HTTP = (
    b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(BODY), BODY)
)
RESP = b"*3\r\n$8\r\nTG.LIMIT\r\n$9\r\n1000000/s\r\n$1\r\nk\r\n"

replies = {"HTTP": 0, "RESP": 0}
dropped = []


def send(name, port, request, expected):
    while not os.path.exists("/root/done"):
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
                client.sendall(request)
                reply = client.recv(4096)
            if not reply.startswith(expected):
                raise ValueError(reply)
            replies[name] += 1
        except (OSError, ValueError) as error:
            dropped.append(f"{name}: {error!r}")


threads = [
    threading.Thread(target=send, args=arguments)
    for arguments in [("HTTP", 8080, HTTP, b"HTTP/1.1 200"), ("RESP", 6380, RESP, b"*8")] * 2
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(f"{replies['HTTP']} replies over HTTP, {replies['RESP']} over RESP, {len(dropped)} dropped")
print(*dropped[:5], sep="\n", end="")
sys.exit(1 if dropped or 0 in replies.values() else 0)
