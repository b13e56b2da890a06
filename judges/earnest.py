"""A running Earnest for a judge: simulated, on loopback, in a folder of its own, gone afterwards.

Standard library only. Everything waits with a bound, and every program started here is ended by
its process id, whatever happened in between.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid

BIN = os.environ.get("EARNEST_BIN", "earnest")

# No proxy and no redirect: what a judge asks is answered by who was asked.
class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())


class Answer:
    """An HTTP answer, whatever its status."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return f"{self.status} {self.body[:300]!r}"


def http(method, url, *, key=None, body=None, headers=None, timeout=20):
    """One request. `key` is sent as a bearer; `body` as JSON."""
    request = urllib.request.Request(url, method=method, headers=dict(headers or {}))
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
    try:
        with _OPENER.open(request, timeout=timeout) as answer:
            return Answer(answer.status, answer.headers, answer.read())
    except urllib.error.HTTPError as answer:
        with answer:
            return Answer(answer.code, answer.headers, answer.read())


def wait_for(what, probe, seconds=30, pause=0.05):
    """Asks `probe` until it gives something; fails with what it last said after `seconds`."""
    deadline = time.monotonic() + seconds
    last = None
    while time.monotonic() < deadline:
        try:
            found = probe()
        except (OSError, ValueError, KeyError) as error:
            found, last = None, error
        if found:
            return found
        time.sleep(pause)
    raise TimeoutError(f"{what}: not within {seconds} s ({last})")


def free_port():
    """A port nobody has now, for programs that cannot be told to choose one and say which."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def listens(port):
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Tally:
    """Counts what held and what did not, and says only the latter."""

    def __init__(self, name):
        self.name, self.passed, self.failed = name, 0, 0

    def check(self, good, what):
        if good:
            self.passed += 1
        else:
            self.failed += 1
            print(f"not so: {what}", flush=True)
        return bool(good)

    def equal(self, found, wanted, what):
        return self.check(found == wanted, f"{what}: {found!r} instead of {wanted!r}")

    def end(self):
        print(f"{self.name}: {self.passed} passed, {self.failed} failed", flush=True)
        sys.exit(0 if self.failed == 0 and self.passed > 0 else 1)


def stat(pid):
    """The parent of a process and when it began, by which it is known from a later one of its id."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[1]), fields[19]


def descendants(root):
    """Processes below one, by id, with when each began."""
    every = {int(pid): stat(pid) for pid in os.listdir("/proc") if pid.isdigit()}
    found, parents = {}, [root]
    while parents:
        parent = parents.pop()
        children = {pid: one[1] for pid, one in every.items() if one and one[0] == parent}
        found.update(children)
        parents.extend(children)
    return found


class Programs(contextlib.AbstractContextManager):
    """Programs that run beside the judge. The last one started ends first."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="earnest-judge-")
        self._running = []

    def start(self, name, command, port=None, env=None, cwd=None):
        """Starts a program and waits until it listens. Its output goes to a log in `folder`."""
        log = open(os.path.join(self.folder, f"{name}.log"), "wb")
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            cwd=cwd or self.folder,
            start_new_session=True,
        )
        self._running.append((name, process, log))

        def ready():
            if process.poll() is not None:
                raise RuntimeError(f"{name} ended with {process.returncode}\n{self.log(name)}")
            return port is None or listens(port)

        wait_for(f"{name} listens", ready)
        return process

    def log(self, name):
        with open(os.path.join(self.folder, f"{name}.log"), "rb") as log:
            return log.read().decode(errors="replace")[-4000:]

    def __exit__(self, kind, *_):
        while self._running:
            name, process, log = self._running.pop()
            below = descendants(process.pid)
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(timeout=15)
                except subprocess.TimeoutExpired:
                    pass
            # It started a session of its own, so what it started goes with it, also where it ended
            # without ending that.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            # What it put into a session of its own is none of that: those are named one by one.
            for pid, began in below.items():
                with contextlib.suppress(ProcessLookupError):
                    if stat(pid) and stat(pid)[1] == began:
                        os.kill(pid, signal.SIGKILL)
            process.wait()
            log.close()
            if kind:
                print(f"--- last of {name}:\n{self.log(name)}", file=sys.stderr)
        shutil.rmtree(self.folder, ignore_errors=True)


class Earnest:
    """`earnest up` in simulated mode, with the keys it provisions for development."""

    def __init__(self, programs):
        self.programs = programs
        self.data = os.path.join(programs.folder, "data")
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.env = {"NO_COLOR": "1", "EARNEST_URL": self.url}
        up = [BIN, "up", "--data", self.data, "--listen", f"127.0.0.1:{port}"]
        programs.start("earnest-up", up, port, self.env)
        wait_for("earnest is ready", lambda: http("GET", f"{self.url}/readyz").status == 200)
        keys = os.path.join(self.data, "dev-keys.json")
        wait_for("dev-keys.json", lambda: os.path.exists(keys))
        with open(keys, encoding="utf-8") as file:
            self.keys = json.load(file)
        for role in ("operator", "owner", "agent", "seller"):
            key_file = os.path.join(programs.folder, f"{role}.key")
            with open(os.open(key_file, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
                file.write(self.keys[role]["key"])
            self.env[f"EARNEST_{role.upper()}_KEY_FILE"] = key_file

    def ask(self, role, method, path, body=None, headers=None):
        """A request to the API as one of the principals."""
        headers = dict(headers or {})
        if method in ("POST", "PUT", "PATCH"):
            # One name for one wish; where the body carries it, the header says the same.
            headers.setdefault("Idempotency-Key", (body or {}).get("request_id") or str(uuid.uuid4()))
        url = urllib.parse.urljoin(self.url, path)
        return http(method, url, key=self.keys[role]["key"], body=body, headers=headers)

    def run(self, *words, timeout=60):
        """A command of the CLI; gives the finished process with what it wrote, as bytes."""
        return subprocess.run(
            [BIN, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**os.environ, **self.env},
            cwd=self.programs.folder,
            timeout=timeout,
            check=False,
        )

    def sell(self, name, upstream_port, *words):
        """`earnest sell` in front of a server on loopback; gives the address buyers use."""
        port = free_port()
        public = f"http://127.0.0.1:{port}"
        command = [BIN, "sell", "--upstream", f"http://127.0.0.1:{upstream_port}"]
        command += ["--listen", f"127.0.0.1:{port}", "--public-url", public]
        command += ["--nonces", os.path.join(self.programs.folder, f"{name}-nonces.db"), *words]
        self.programs.start(name, command, port, self.env)
        self.prove(public)
        return public

    def prove(self, origin):
        """The seller's origin must count before a quote under it does; `earnest sell` serves the
        proof, and registers itself when it starts."""
        seller = self.keys["seller"]["id"]

        def proved():
            origins = self.ask("seller", "GET", f"/v1/sellers/{seller}").json["origins"]
            return any(known["origin"] == origin and known["proved_at"] for known in origins)

        wait_for(f"the origin {origin} is proved", proved)

    def purchases(self):
        """Every purchase of the owner, newest first."""
        found, path = [], "/v1/purchases?limit=100"
        while path:
            page = self.ask("owner", "GET", path).json
            found += page["data"]
            cursor = page.get("next_cursor")
            path = cursor and f"/v1/purchases?limit=100&cursor={urllib.parse.quote(cursor)}"
        return found

    def purchase(self, request_id):
        """The purchase an agent made under that id, if there is one."""
        return next((row for row in self.purchases() if row["request_id"] == request_id), None)

    def billed_micros(self):
        """What is on the owner's tabs, settled or not."""
        return sum(row["billed_micros"] or 0 for row in self.purchases())

    def billed(self, request_id, seconds=30):
        """Waits until the seller's report has arrived and the purchase is billed."""

        def probe():
            row = self.purchase(request_id)
            return row if row and row["status"] == "billed" else None

        return wait_for(f"{request_id} is billed", probe, seconds)

    def receipts(self, seconds=60):
        """Closes the open tab and gives the signed receipts of its settlements."""
        tabs = self.ask("owner", "GET", "/v1/tabs").json["data"]
        tab = next(tab for tab in tabs if tab["status"] == "open")
        closed = self.ask("owner", "POST", f"/v1/tabs/{tab['id']}/close")
        if closed.status >= 300:
            raise RuntimeError(f"the tab does not close: {closed}")

        def signed():
            rows = self.ask("owner", "GET", f"/v1/tabs/{tab['id']}/settlements").json["data"]
            return rows and all(row["receipt_url"] for row in rows) and rows

        rows = wait_for("the settlement has a receipt", signed, seconds)
        found = []
        for row in rows:
            shown = http("GET", row["receipt_url"])
            found.append(shown.json["receipt"])
        return found
