"""PayPal's retired Python SDK manages webhooks and verifies what the simulator signs. It is the
only official client that checks signatures itself."""

import contextlib
import http.server
import io
import json
import queue
import re
import threading
import zlib
from importlib.metadata import version

import paypalrestsdk
import requests
from OpenSSL import crypto
from paypalrestsdk.notifications import WebhookEvent

from common import BASE, approve, blind, control, equal, fresh, holds, verdict

api = paypalrestsdk.configure({
    "mode": "sandbox", "client_id": "sim", "client_secret": "sim",
    "endpoint": BASE, "token_endpoint": BASE,
})
# Its way of joining paths writes an id twice after a trailing slash since Python 3.7.
paypalrestsdk.Webhook.path = "/v1/notifications/webhooks"
WebhookEvent.path = "/v1/notifications/webhooks-events"
arrived = queue.Queue()


class Receiver(http.server.BaseHTTPRequestHandler):
    """Keeps every delivery as it came."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        arrived.put((self.headers, body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


def store():
    """The SDK pins two certificates that have long changed; it is told to trust the simulator's
    root, and given the intermediates that came with the leaf."""
    trusted = crypto.X509Store()
    for pem in certificates(requests.get(f"{BASE}/_sim/ca.pem", timeout=20).text):
        trusted.add_cert(pem)
    for pem in certificates(store.chain)[1:]:
        trusted.add_cert(pem)
    return trusted


def certificates(text):
    found = re.findall("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", text, re.S)
    return [crypto.load_certificate(crypto.FILETYPE_PEM, pem) for pem in found]


def verified(headers, body, webhook_id, **changed):
    """Whether the SDK accepts a delivery."""
    name = {key.lower(): value for key, value in headers.items()}
    url = name["paypal-cert-url"]
    store.chain = requests.get(url, timeout=20).text
    arguments = {
        "transmission_id": name["paypal-transmission-id"],
        "timestamp": name["paypal-transmission-time"],
        "webhook_id": webhook_id,
        "event_body": body,
        "cert_url": url,
        "actual_sig": name["paypal-transmission-sig"],
        "auth_algo": name["paypal-auth-algo"],
    }
    # It prints why it refuses, which here is half of what it is asked to do.
    with contextlib.redirect_stdout(io.StringIO()):
        return WebhookEvent.verify(**{**arguments, **changed})


def forged(body):
    """Another body with the same CRC-32: 40 letters are chosen so that the checksum comes out.
    CRC is linear, so this is a set of 32 equations over bits, not a search."""
    wanted = zlib.crc32(body.encode())
    head = body.replace('"1.00"', '"9999.00"')[:-1] + ',"x":"'
    letters = ["a"] * 40

    def checksum():
        return zlib.crc32((head + "".join(letters) + '"}').encode())

    start = checksum()
    rows = []
    for at in range(len(letters)):
        letters[at] = "c"
        rows.append((checksum() ^ start, 1 << at))
        letters[at] = "a"
    solution, missing = 0, wanted ^ start
    for bit in range(32):
        pivot = next((row for row in rows if row[0] >> bit & 1), None)
        holds(pivot, "forty letters reach every checksum")
        rows = [(row[0] ^ pivot[0], row[1] ^ pivot[1]) if row[0] >> bit & 1 else row
                for row in rows if row is not pivot]
        if missing >> bit & 1:
            missing, solution = missing ^ pivot[0], solution ^ pivot[1]
    for at in range(len(letters)):
        letters[at] = "c" if solution >> at & 1 else "a"
    equal(checksum(), wanted)
    return head + "".join(letters) + '"}'


def charge():
    """Something to be told about: a saved wallet, charged. Returns its id and the capture's."""
    token = api.get_access_token()

    def post(path, body):
        headers = {"authorization": f"Bearer {token}", "paypal-request-id": fresh("key"),
                   "prefer": "return=representation"}
        response = requests.post(f"{BASE}{path}", json=body, headers=headers, timeout=20)
        equal(response.status_code, 201, response.text)
        return response.json()

    urls = {"return_url": "https://tab.example/r", "cancel_url": "https://tab.example/c"}
    wallet = {"description": "A tab", "usage_type": "MERCHANT", "experience_context": urls}
    setup = post("/v3/vault/setup-tokens", {"payment_source": {"paypal": wallet}})["id"]
    approve(setup)
    source = {"payment_source": {"token": {"id": setup, "type": "SETUP_TOKEN"}}}
    vault_id = post("/v3/vault/payment-tokens", source)["id"]
    unit = {"amount": {"currency_code": "USD", "value": "1.00"}, "invoice_id": fresh("inv")}
    order = post("/v2/checkout/orders", {
        "intent": "CAPTURE", "purchase_units": [unit],
        "payment_source": {"paypal": {"vault_id": vault_id}},
    })
    return vault_id, order["purchase_units"][0]["payments"]["captures"][0]["id"]


def about(resource_id):
    """The next delivery about this resource; others are passed over."""
    while True:
        headers, body = arrived.get(timeout=20)
        if json.loads(body)["resource"]["id"] == resource_id:
            return headers, body


def managed(url):
    """Every call the SDK has for webhooks."""
    webhook = paypalrestsdk.Webhook({"url": url, "event_types": [{"name": "PAYMENT.CAPTURE.PENDING"}]})
    equal(webhook.create(), True, webhook.error)
    change = [{"op": "replace", "path": "/event_types", "value": [{"name": "*"}]}]
    equal(webhook.replace(change), True, webhook.error)
    holds(webhook.id in [entry.id for entry in paypalrestsdk.Webhook.all().webhooks], "it is listed")
    equal(paypalrestsdk.Webhook.find(webhook.id).url, url)
    equal(webhook.get_event_types().event_types[0].name, "*")
    holds(len(paypalrestsdk.WebhookEventType.all().event_types) > 10, "there are event types")
    twice = paypalrestsdk.Webhook({"url": url, "event_types": [{"name": "*"}]})
    equal((twice.create(), twice.error["name"]), (False, "WEBHOOK_URL_ALREADY_EXISTS"))
    return webhook


def main():
    WebhookEvent._get_certificate_store = classmethod(lambda _: store())
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    webhook = managed(f"http://127.0.0.1:{server.server_port}/hook")

    _, capture = charge()
    headers, body = about(capture)
    equal(verified(headers, body, webhook.id), True)
    equal(verified(headers, body.replace("1.00", "9.00"), webhook.id), False)
    equal(verified(headers, json.dumps(json.loads(body)), webhook.id), False)
    equal(verified(headers, body, "0TH3R"), False)
    equal(verified(headers, body, webhook.id, timestamp="2026-01-01T00:00:00Z"), False)
    blind(lambda: equal(verified(headers, body, "0TH3R"), True), "verification")
    # The signature covers 32 bits of the body. PayPal's does too; hence money never moves on it.
    false_body = forged(body)
    equal(json.loads(false_body)["resource"]["amount"]["value"], "9999.00")
    equal(verified(headers, false_body, webhook.id), True)

    control("PUT", "faults", {"faults": [{"kind": "webhook_wrong_signature"},
                                         {"kind": "webhook_rotated_certificate", "skip": 1}]})
    event = WebhookEvent.find(json.loads(body)["id"])
    wallet, other = charge()
    wrong, wrong_body = about(wallet)
    equal(verified(wrong, wrong_body, webhook.id), False)
    rotated, rotated_body = about(other)
    holds(rotated["paypal-cert-url"] != headers["paypal-cert-url"], "a new certificate")
    equal(verified(rotated, rotated_body, webhook.id), True)
    control("PUT", "faults", {"faults": []})

    equal(event.event_type, "PAYMENT.CAPTURE.COMPLETED")
    event.resend()
    again, again_body = about(capture)
    equal(again_body, body)
    equal(verified(again, again_body, webhook.id), True)
    holds(WebhookEvent.all({"page_size": 5}).count == 5, "events are listed")
    equal(webhook.delete(), True, webhook.error)
    verdict(f"PyPI paypalrestsdk {version('paypalrestsdk')}")


main()
