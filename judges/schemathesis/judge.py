"""Schemathesis against a running Earnest in simulated mode: thousands of requests made from
`/openapi.json`, good ones and bad ones, as each role and as nobody.

What must hold: no 5xx; every answer's status, type, headers and body as described; a method that is
not described is not served; without a key nothing that needs one.

Control: the same description with one answer described wrongly must be complained about.
"""

import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

import earnest  # noqa: E402

PROGRAM = os.path.join(HERE, ".venv", "bin", "schemathesis")
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "ignored_auth",
)
# How many requests are made up for each operation, beside those that its description asks for.
EXAMPLES = int(os.environ.get("EARNEST_JUDGE_EXAMPLES", "8"))
SECONDS = 150


def ask(programs, url, document, key=None, include=(), examples=EXAMPLES):
    """Runs it once; the finished process."""
    path = os.path.join(programs.folder, "openapi.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(document, file)
    command = [PROGRAM, "run", path, "--url", url, "--checks", ",".join(CHECKS)]
    command += ["--phases", "examples,coverage,fuzzing", "--max-examples", str(examples)]
    command += ["--seed", "4020", "--generation-deterministic", "--request-timeout", "20", "--no-color"]
    command += ["--continue-on-failure", "--warnings", "off"]
    command += ["--suppress-health-check", "all", "--output-truncate", "false"]
    # A stream of events ends when its listener goes, which is another judge's business.
    command += ["--exclude-path", "/v1/events"]
    for path in include:
        command += ["--include-path", path]
    if key:
        command += ["--header", f"Authorization: Bearer {key}"]
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=programs.folder,
        timeout=SECONDS * 2,
        check=False,
    )


def live(programs, shop):
    """A purchase, its tab, its settlement, a question, a webhook: ids by their prefix."""
    port = earnest.free_port()
    server = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    programs.start("http-server", [*server, "--directory", programs.folder], port)
    with open(os.path.join(programs.folder, "sold.txt"), "w", encoding="utf-8") as file:
        file.write("sold\n")
    public = shop.sell("sell", port, "--price", "GET /*=$0.10")
    bought = shop.run("pay", f"{public}/sold.txt", "--max-price", "$0.25", "--request-id", "one")
    if bought.returncode:
        raise RuntimeError(f"nothing was bought: {bought}")
    purchase = shop.billed("one")
    shop.receipts()
    tab = shop.ask("owner", "GET", "/v1/tabs").json["data"][0]["id"]
    settlement = shop.ask("owner", "GET", f"/v1/tabs/{tab}/settlements").json["data"][0]
    method = shop.ask("owner", "GET", "/v1/payment-methods").json["data"][0]["id"]
    hook = shop.ask("owner", "POST", "/v1/webhooks", {"url": "http://127.0.0.1:9/hear"}).json
    return {
        "own": shop.keys["owner"]["id"],
        "agt": shop.keys["agent"]["id"],
        "sel": shop.keys["seller"]["id"],
        "pur": purchase["id"],
        "tab": tab,
        "set": settlement["id"],
        "vlt": method,
        "whk": hook.get("id", "x"),
        "public token": settlement["receipt_url"].rsplit("/", 1)[1],
    }


def name_what_exists(document, ids):
    """Gives parameters of paths what exists as their example: made-up ids only lead to 404."""
    named = 0
    for item in document["paths"].values():
        for operation in item.values():
            for parameter in operation.get("parameters", []):
                said = parameter.get("description", "")
                known = next((known for prefix, known in ids.items() if prefix in said), None)
                if parameter["in"] == "path" and known:
                    parameter["example"] = known
                    named += 1
    return named


def main():
    tally = earnest.Tally("judge schemathesis")
    with earnest.Programs() as programs:
        shop = earnest.Earnest(programs)
        document = earnest.http("GET", f"{shop.url}/openapi.json").json
        named = name_what_exists(document, live(programs, shop))
        tally.check(named > 30, f"{named} parameters name something that exists")
        roles = {role: shop.keys[role]["key"] for role in ("agent", "seller", "owner", "operator")}
        roles["nobody"] = None
        for role, key in roles.items():
            found = ask(programs, shop.url, document, key)
            text = found.stdout.decode(errors="replace")
            print(f"--- {role}\n" + (text[-6000:] if found.returncode else text[-700:]), flush=True)
            tally.equal(found.returncode, 0, f"as {role}")
            ready = earnest.http("GET", f"{shop.url}/readyz")
            tally.equal(ready.status, 200, f"ready after {role}")

        wrong = json.loads(json.dumps(document))
        health = wrong["paths"]["/healthz"]["get"]["responses"]["200"]["content"]["application/json"]
        health["schema"] = {"type": "object", "required": ["no_such_member"]}
        refused = ask(programs, shop.url, wrong, include=["/healthz"], examples=2)
        tally.equal(refused.returncode, 1, "the control, described wrongly")
        audit = shop.run("audit", "--data", shop.data)
        tally.equal(audit.returncode, 0, f"the audit afterwards {audit.stdout[-300:]!r}")
    tally.end()


main()
