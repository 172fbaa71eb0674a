"""HTTP/1.1 without sockets: the bytes of a request, and a response from bytes.

Both clients use it, so that the deadline of a call covers every read of it.
"""

from __future__ import annotations

from typing import Dict, NamedTuple, Optional
from urllib.parse import urlsplit

MAX_HEAD = 64 * 1024
MAX_BODY = 8 * 1024 * 1024


class Address(NamedTuple):
    host: str
    port: int
    tls: bool
    host_header: str
    path: str


class Response(NamedTuple):
    status: int
    headers: Dict[str, str]
    body: bytes
    reusable: bool


class MalformedResponse(Exception):
    """The bytes are no HTTP response that this client understands."""


def parse_url(url: str) -> Address:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r}: a URL of a server is http://host:port or https://host:port")
    tls = parts.scheme == "https"
    port = parts.port or (443 if tls else 80)
    host_header = parts.netloc.rpartition("@")[2]
    return Address(parts.hostname, port, tls, host_header, parts.path.rstrip("/"))


def request_bytes(
    address: Address, method: str, path: str, token: Optional[str], body: Optional[bytes]
) -> bytes:
    lines = [f"{method} {address.path}{path} HTTP/1.1", f"host: {address.host_header}"]
    if token is not None:
        lines.append(f"authorization: Bearer {token}")
    if body is not None:
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (body or b"")


class ResponseParser:
    """Takes bytes until a response is complete."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self._head: Optional[Response] = None
        self._body = bytearray()

    @property
    def began(self) -> bool:
        return self._head is not None or bool(self.buffer)

    def feed(self, data: bytes) -> Optional[Response]:
        """The response, once it is complete. No data is the end of the connection."""
        self.buffer += data
        if self._head is None and not self._parse_head():
            if not data:
                raise MalformedResponse("the server closed the connection")
            return None
        body = self._parse_body(at_end=not data)
        if body is None:
            if not data:
                raise MalformedResponse("the server closed the connection within a response")
            return None
        assert self._head is not None
        # Bytes after a response would be read as the next one.
        return self._head._replace(
            body=body, reusable=self._head.reusable and bool(data) and not self.buffer
        )

    def _parse_head(self) -> bool:
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self.buffer) > MAX_HEAD:
                raise MalformedResponse("the head of the response is too long")
            return False
        lines = bytes(self.buffer[:end]).decode("latin-1").split("\r\n")
        del self.buffer[: end + 4]
        version, _, rest = lines[0].partition(" ")
        code = rest[:3]
        if version not in ("HTTP/1.1", "HTTP/1.0") or not code.isdigit():
            raise MalformedResponse(f"no HTTP response: {lines[0][:80]!r}")
        if code.startswith("1"):
            return self._parse_head()
        headers: Dict[str, str] = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        keep = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
        self._head = Response(int(code), headers, b"", keep)
        return True

    def _parse_body(self, at_end: bool) -> Optional[bytes]:
        assert self._head is not None
        headers = self._head.headers
        if len(self.buffer) + len(self._body) > MAX_BODY:
            raise MalformedResponse("the body of the response is too long")
        if "chunked" in headers.get("transfer-encoding", "").lower():
            return self._parse_chunks()
        length = headers.get("content-length")
        if length is None:
            return bytes(self.buffer) if at_end else None
        if not length.isdigit() or int(length) > MAX_BODY:
            raise MalformedResponse(f"invalid content-length: {length[:20]!r}")
        if len(self.buffer) < int(length):
            return None
        body = bytes(self.buffer[: int(length)])
        del self.buffer[: int(length)]
        return body

    def _parse_chunks(self) -> Optional[bytes]:
        while True:
            end = self.buffer.find(b"\r\n")
            if end < 0:
                return None
            try:
                size = int(bytes(self.buffer[:end]).split(b";")[0], 16)
            except ValueError as error:
                raise MalformedResponse("invalid chunk") from error
            if len(self.buffer) < end + 2 + size + 2:
                return None
            self._body += self.buffer[end + 2 : end + 2 + size]
            del self.buffer[: end + 2 + size + 2]
            if size == 0:
                return bytes(self._body)
