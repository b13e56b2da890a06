"""A server that knows nothing of payment: it answers, and remembers what it saw. Like many frameworks it
believes headers that name another path or method than the request's own, with dashes or underscores.
"""

import http.server
import json
import sys

SEEN = []
PATHS = ["x-original-url", "x-rewrite-url", "x-original-uri", "x-forwarded-uri"]
METHODS = ["x-http-method-override", "x-http-method", "x-method-override", "x-forwarded-method"]
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
        headers = {name.lower().replace("_", "-"): value for name, value in self.headers.items()}
        told = [headers[name] for name in PATHS if name in headers]
        asked = told[0] if told else self.path
        path = asked.split("?")[0]
        if path == "/seen":
            return self.write(200, json.dumps(SEEN).encode())
        methods = [headers[name] for name in METHODS if name in headers]
        body = self.rfile.read(int(headers.get("content-length", "0")))
        if "chunked" in headers.get("transfer-encoding", ""):
            body = b"chunked"
            self.close_connection = True
        SEEN.append({
            "method": methods[0] if methods else self.command,
            "path": asked,
            "body": body.decode("latin-1"),
            "headers": headers,
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
