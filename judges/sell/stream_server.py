"""A server with what proxies get wrong: an event stream, and an echo of the headers it was sent.

    python3 stream_server.py PORT

`GET /events` sends its first event at once and the rest only after `POST /release`: whoever gets
the first event before that was streamed to, and no clock is needed to see it. `GET /headers` gives
the headers that arrived. `GET /breaks` promises more bytes than it sends. `GET /refuses` answers 500.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

EVENTS = 5
released = threading.Event()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if self.path == "/release":
            released.set()
        self.answer(200, b"{}")

    def do_GET(self):
        if self.path == "/events":
            self.events()
        elif self.path == "/headers":
            self.answer(200, json.dumps([list(pair) for pair in self.headers.items()]).encode())
        elif self.path == "/breaks":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"not a thousand bytes")
            self.wfile.flush()
            self.close_connection = True
        elif self.path == "/refuses":
            self.answer(500, b"no")
        else:
            self.answer(404, b"nothing here")

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def events(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(EVENTS):
            # Bounded: a reader that never comes back does not keep this thread for ever.
            if number == 1 and not released.wait(timeout=60):
                break
            self.chunk(f"id: {number}\ndata: event {number}\n\n".encode())
        self.chunk(b"")

    def chunk(self, data):
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
