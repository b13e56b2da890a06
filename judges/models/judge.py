"""PyPI `llmock` and `mock-ai-api`, servers that speak OpenAI's chat completions and fail as those do,
asked by `earnest doctor models` and by a running Earnest's advisor.

What must hold: an answer by the schema is read and priced; everything else is named as what it is,
costs nothing where nothing was taken up and what was reserved where nobody knows; a 429 is asked
again after the time it names; and llmock's own verdict on the client finds no fault. An advisor that
says settle brings a settlement forward, and what it cost is in the books.
"""

import http.server
import json
import os
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

import earnest  # noqa: E402

BIN = os.path.join(HERE, ".venv", "bin")
KEY = "sk-of-the-judge-0123456789"
SETTINGS = """
[models.advisor]
base_url = "{base_url}"
model = "{model}"
key_file = "{key_file}"
price = {{ input_micros = 1_000_000, output_micros = 2_000_000 }}
"""


class Doctor:
    """Asks one model once, as a user would."""

    def __init__(self, programs):
        self.folder = programs.folder
        self.key_file = os.path.join(self.folder, "models.key")
        with open(self.key_file, "w", encoding="utf-8") as file:
            file.write(KEY + "\n")

    def settings(self, base_url, model, name):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(SETTINGS.format(base_url=base_url, model=model, key_file=self.key_file))
        return path

    def ask(self, base_url, model):
        path = self.settings(base_url, model, "doctor.toml")
        done = subprocess.run(
            [earnest.BIN, "doctor", "models", "--json", "--config", path],
            stdin=subprocess.DEVNULL, capture_output=True, cwd=self.folder, timeout=60, check=False,
            env={**os.environ, "HOME": self.folder},
        )
        leaks = KEY.encode() in done.stdout + done.stderr
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        if len(rows) != 1:
            raise RuntimeError(f"{done.returncode}: {done.stdout!r} {done.stderr!r}")
        return done.returncode, rows[0], leaks


class Llmock:
    def __init__(self, programs):
        port = earnest.free_port()
        self.root = f"http://127.0.0.1:{port}"
        self.base_url = f"{self.root}/v1"
        command = [os.path.join(BIN, "llmock"), "serve", "--port", str(port), "--response-style", "static"]
        programs.start("llmock", command, port)

    def script(self, *behaviors):
        earnest.http("POST", f"{self.root}/_llmock/reset")
        if behaviors:
            done = earnest.http("POST", f"{self.root}/_llmock/scenario", body={"behaviors": list(behaviors)})
            if done.status != 201:
                raise RuntimeError(f"llmock takes no {behaviors}: {done}")

    def requests(self):
        return earnest.http("GET", f"{self.root}/_llmock/requests").json["requests"]

    def verdict(self):
        return earnest.http("GET", f"{self.root}/_llmock/verdict").json


def doctored(tally, doctor, llmock):
    """What the doctor finds at llmock: (what, script, exit code, outcome, cost, requests)."""
    fail = lambda status, **more: {"type": "fail", "status": status, **more}  # noqa: E731
    reply = lambda text: {"type": "reply", "text": text}  # noqa: E731
    tool = {"type": "reply", "tool_calls": [{"name": "settle", "arguments": {"now": True}}]}
    known = object()
    cases = [
        ("an answer shaped by the schema", [], 0, "answered", known, 1),
        ("a 429, twice", [fail(429, retry_after=1, times=2)], 0, "answered", known, 3),
        ("a 429 for ever", [fail(429, retry_after=1, times=None)], 1, "throttled", 0, 3),
        ("a 429 for an hour", [fail(429, retry_after=3600)], 1, "throttled", 0, 1),
        ("a 400", [fail(400)], 1, "refused", 0, 1),
        ("a 401", [fail(401)], 4, "refused", 0, 1),
        ("a 404", [fail(404)], 1, "refused", 0, 1),
        ("a 500", [fail(500)], 1, "failed", None, 1),
        ("a 503", [fail(503)], 1, "failed", None, 1),
        ("a text that is no JSON", [reply("Settle now.")], 1, "schema", known, 1),
        ("broken JSON", [reply('{"settle": true, "sentence": "a')], 1, "schema", known, 1),
        ("a member too many", [reply('{"settle": true, "sentence": "a", "amount": 1}')], 1, "schema", known, 1),
        ("a tool that nobody offered", [tool], 1, "unreadable", known, 1),
        ("an answer after our patience", [{"type": "delay", "seconds": 28}], 1, "timeout", None, 1),
    ]
    for what, script, code, outcome, cost, requests in cases:
        llmock.script(*script)
        began = time.monotonic()
        found, row, leaks = doctor.ask(llmock.base_url, "gpt-4.1")
        took = time.monotonic() - began
        tally.equal((found, row["outcome"]), (code, outcome), f"llmock, {what} ({row})")
        if cost is known:
            priced = row["input_tokens"] + 2 * row["output_tokens"]
            tally.equal(row["cost_micros"], priced, f"llmock, {what}: tokens by the price table")
            tally.check(priced > 0, f"llmock, {what}: it counts tokens")
        else:
            tally.equal(row["cost_micros"], cost, f"llmock, {what}: cost")
        tally.check(not leaks, f"llmock, {what}: the key is told")
        tally.check(took < 40, f"llmock, {what}: {took:.0f} s")
        if outcome != "timeout":
            tally.equal(len(llmock.requests()), requests, f"llmock, {what}: requests")
            errors = [each for each in llmock.verdict()["findings"] if each["severity"] == "error"]
            tally.equal(errors, [], f"llmock, {what}: its verdict")


def careless(tally, llmock):
    """A control: a client that does not wait must not pass llmock's verdict."""
    llmock.script({"type": "fail", "status": 429, "retry_after": 5, "times": 1})
    body = {"model": "gpt-4.1", "messages": [{"role": "user", "content": "now"}]}
    for _ in range(2):
        earnest.http("POST", f"{llmock.base_url}/chat/completions", body=body)
    codes = [each["code"] for each in llmock.verdict()["findings"]]
    tally.check("retry_after_ignored" in codes, f"a client that does not wait passes ({codes})")


def other(tally, programs, doctor):
    """What the doctor finds at mock-ai-api, by the scenario in the model's name."""
    port, spare = earnest.free_port(), earnest.free_port()
    command = [os.path.join(BIN, "mock-ai-api"), "--openai-port", str(port), "--anthropic-port", str(spare)]
    programs.start("mock-ai-api", command, port)
    known = object()
    for scenario, code, outcome, cost in [
        ("mock-text", 1, "schema", known),
        ("mock-tool-call", 1, "unreadable", known),
        ("mock-bad-tool-json", 1, "unreadable", known),
        ("mock-delay", 1, "schema", known),
        ("mock-400", 1, "refused", 0),
        ("mock-401", 4, "refused", 0),
        ("mock-429", 1, "throttled", 0),
        ("mock-500", 1, "failed", None),
        ("mock-503", 1, "failed", None),
    ]:
        found, row, leaks = doctor.ask(f"http://127.0.0.1:{port}/v1", f"gpt-4.1:{scenario}")
        tally.equal((found, row["outcome"]), (code, outcome), f"mock-ai-api, {scenario} ({row})")
        if cost is not known:
            tally.equal(row["cost_micros"], cost, f"mock-ai-api, {scenario}: cost")
        tally.check(not leaks, f"mock-ai-api, {scenario}: the key is told")


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"rain\n")

    def log_message(self, *_):
        pass


def advised(tally, programs, doctor, llmock):
    """A running Earnest asks llmock, which says settle."""
    said = json.dumps({"settle": True, "sentence": "The judge says so."})
    llmock.script({"type": "reply", "text": said, "times": None})
    doctor.settings(llmock.base_url, "gpt-4.1", "earnest.toml")
    pages = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    pages.daemon_threads = True
    threading.Thread(target=pages.serve_forever, daemon=True).start()
    shop = earnest.Earnest(programs)
    public = shop.sell("sell", pages.server_address[1], "--price", "GET /*=$0.10")
    bought = shop.run("pay", f"{public}/weather", "--max-price", "$0.10", "--request-id", "advised")
    tally.equal(bought.returncode, 0, f"earnest pay ({bought.stderr[-300:]!r})")

    def settled():
        tabs = shop.ask("owner", "GET", "/v1/tabs").json["data"]
        path = f"/v1/tabs/{tabs[0]['id']}/settlements"
        rows = shop.ask("owner", "GET", path).json["data"]
        return rows and rows[0]["status"] == "captured" and rows

    [row] = earnest.wait_for("the advised settlement", settled, 60)
    tally.equal(row["amount_micros"], 100_000, "what was owed is captured")
    tally.equal(row["advice"], "The judge says so.", "the sentence is kept")
    tally.check("gpt-4.1 advises it" in row["why"], f"why it was settled ({row['why']!r})")
    tokens = llmock.requests()[0]["body"]
    tally.check(public not in json.dumps(tokens), "the question names the shop")
    accounts = shop.ask("operator", "GET", "/v1/accounts?prefix=model_costs").json["data"]
    tally.check(accounts and accounts[0]["debits_posted_micros"] > 0, f"model_costs ({accounts})")
    audit = shop.run("audit", "--data", shop.data)
    tally.equal(audit.returncode, 0, f"earnest audit ({audit.stdout[-500:]!r})")
    pages.shutdown()


def main():
    tally = earnest.Tally("judge models")
    with earnest.Programs() as programs:
        doctor, llmock = Doctor(programs), Llmock(programs)
        doctored(tally, doctor, llmock)
        careless(tally, llmock)
        other(tally, programs, doctor)
        advised(tally, programs, doctor, llmock)
    tally.end()


main()
