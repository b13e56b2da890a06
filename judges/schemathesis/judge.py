"""Schemathesis against a running Earnest in simulated mode: thousands of requests made from
`/openapi.json`, good ones and bad ones, as each role and as nobody.

What must hold: no 5xx; every answer's status, type, headers and body as described; a method that is
not described is not served; without a key nothing that needs one.

Control: the same description with one answer described wrongly must be complained about.
"""

import json
import os
import re
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
    """A purchase, its tab, its settlement, a question, a grant, a webhook and what it was told: ids by
    what descriptions of parameters name them with."""
    port = earnest.free_port()
    server = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    programs.start("http-server", [*server, "--directory", programs.folder], port)
    with open(os.path.join(programs.folder, "sold.txt"), "w", encoding="utf-8") as file:
        file.write("sold\n")
    # Before anything is bought, so that there is something to tell it.
    hook = shop.ask("owner", "POST", "/v1/webhooks", {"url": "http://127.0.0.1:9/hear"}).json["id"]
    public = shop.sell("sell", port, "--price", "GET /sold.txt=$0.10", "--price", "GET /*=$0.25")
    bought = shop.run("pay", f"{public}/sold.txt", "--max-price", "$0.25", "--request-id", "one")
    if bought.returncode:
        raise RuntimeError(f"nothing was bought: {bought}")
    purchase = shop.billed("one")
    question, grant = asked(shop, public, "two"), granted(shop, asked(shop, public, "three"))
    shop.receipts()
    tab = shop.ask("owner", "GET", "/v1/tabs").json["data"][0]["id"]
    settlement = shop.ask("owner", "GET", f"/v1/tabs/{tab}/settlements").json["data"][0]
    method = shop.ask("owner", "GET", "/v1/payment-methods").json["data"][0]["id"]
    told = earnest.wait_for("a delivery", lambda: shop.ask("owner", "GET", f"/v1/webhooks/{hook}/deliveries").json["data"])
    # A key that nobody here uses: it will be revoked.
    agent = shop.keys["agent"]["id"]
    spare = shop.ask("owner", "POST", f"/v1/agents/{agent}/keys", {"label": "spare"}).json["id"]
    return {
        "own_": shop.keys["owner"]["id"],
        "agt_": agent,
        "key_": spare,
        "sel_": shop.keys["seller"]["id"],
        "pur_": purchase["id"],
        "apr_": question,
        "gra_": grant,
        "tab_": tab,
        "set_": settlement["id"],
        "vlt_": method,
        "whe_": hook,
        "whd_": told[0]["id"],
        "public token": settlement["receipt_url"].rsplit("/", 1)[1],
    }


def asked(shop, public, request_id):
    """A purchase that waits for its owner: the question's id."""
    pay = shop.run("pay", f"{public}/{request_id}.txt", "--max-price", "$5", "--request-id", request_id)
    if pay.returncode != 6:
        raise RuntimeError(f"nobody was asked: {pay}")
    waiting = shop.ask("owner", "GET", "/v1/approvals").json["data"]
    return next(row["id"] for row in waiting if f"/{request_id}.txt" in row["url"])


def granted(shop, question):
    """Answers a question with a grant: the grant's id."""
    shown = shop.ask("owner", "GET", f"/v1/approvals/{question}")
    body = {"decision": "grant", "cap": "$5.00", "for_seconds": 3600}
    path, headers = f"/v1/approvals/{question}/decision", {"If-Match": shown.headers["ETag"]}
    answer = shop.ask("owner", "POST", path, body, headers)
    if answer.status != 200:
        raise RuntimeError(f"no grant: {answer}")
    return shop.ask("owner", "GET", "/v1/grants").json["data"][0]["id"]


def name_what_exists(document, ids):
    """Gives parameters of paths what exists as their example: made-up ids only lead to 404. The ids
    that some parameter took."""
    named = set()
    for item in document["paths"].values():
        for operation in item.values():
            for parameter in operation.get("parameters", []):
                said = parameter.get("description", "")
                kind = next((kind for kind in ids if kind in said), None)
                if parameter["in"] == "path" and kind:
                    parameter["example"] = ids[kind]
                    named.add(kind)
    return named


def described(document):
    """What the parameters of paths are said to be."""
    operations = (each for item in document["paths"].values() for each in item.values())
    parameters = (each for operation in operations for each in operation.get("parameters", []))
    return [each.get("description", "") for each in parameters if each["in"] == "path"]


def main():
    tally = earnest.Tally("judge schemathesis")
    with earnest.Programs() as programs:
        shop = earnest.Earnest(programs)
        document = earnest.http("GET", f"{shop.url}/openapi.json").json
        ids = live(programs, shop)
        tally.equal(sorted(name_what_exists(document, ids)), sorted(ids), "every id is some parameter's")
        kinds = re.findall(r"\b[a-z]{3}_(?=…)", json.dumps(described(document), ensure_ascii=False))
        # Nothing is unknown in a life without faults, so there is no such call to name.
        tally.equal(sorted(set(kinds) - set(ids)), ["int_"], "kinds of ids that are not made here")
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
