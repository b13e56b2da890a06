"""A server that knows nothing of payment: it answers, and remembers what it saw."""

import http.server
import json
import sys

SEEN = []
ANSWERS = {
    "/weather/broken": 500,
    "/weather/missing": 404,
    "/weather/locked": 401,
    "/weather/changed": 412,
    "/weather/withheld": 451,
}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        path = self.path.split("?")[0]
        if path == "/seen":
            return self.write(200, json.dumps(SEEN).encode())
        SEEN.append({
            "method": self.command,
            "path": self.path,
            "headers": {name.lower(): value for name, value in self.headers.items()},
        })
        return self.write(ANSWERS.get(path, 200), b"sunny\n")

    def write(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_OPTIONS = do_get = answer

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
