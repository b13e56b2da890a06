"""`openapi-core` holds the simulator's journal against PayPal's OpenAPI documents: every accepted
request and every answer must fit. Run it after the other judges, so that there is something in
the journal."""

import copy
import json
import os
import pathlib
import sys
from importlib.metadata import version
from urllib.parse import parse_qs

from openapi_core import Config, OpenAPI
from openapi_core.datatypes import RequestParameters
from werkzeug.datastructures import Headers, ImmutableMultiDict

from common import BASE, blind, control, equal, holds, verdict

DOCUMENTS = ["checkout_orders_v2", "payments_payment_v2", "vault_payment_tokens_v3",
             "reporting_transactions_v1", "notifications_webhooks_v1"]

# Issues newer than the documents, or printed by PayPal where they do not list them.
NEWER = {"REAUTHORIZATION_TOO_SOON", "TOKEN_ID_NOT_FOUND", "DECIMALS_NOT_SUPPORTED"}


def folder():
    """Where PayPal's documents lie, if they are here."""
    named = os.environ.get("EARNEST_SHARED")
    places = [pathlib.Path(named)] if named else [
        parent / "shared" for parent in pathlib.Path(__file__).resolve().parents]
    found = [place / "paypal-openapi" for place in places if (place / "paypal-openapi").is_dir()]
    return found[0] if found else None


def corrected(name, document):
    """The corrections that the documents' README asks for, in memory."""
    document["servers"] = [{"url": BASE}]
    if name.startswith("vault"):
        kinds = document["components"]["schemas"]["token_id_request"]["properties"]["type"]["enum"]
        kinds.append("SETUP_TOKEN")
    # Credentials are not in the journal, so there is nothing to check about them.
    document.pop("security", None)
    for methods in document["paths"].values():
        for operation in methods.values():
            if isinstance(operation, dict):
                operation.pop("security", None)
    return document


# Shipment tracking is older in the documents than in the live API: they want a transaction id and
# a status that official clients no longer send, and ids without the hyphen they now have. Event
# ids have always had hyphens; the documents' own pattern for them has none.
OLDER = {"orders.track.create", "orders.trackers.patch", "webhooks-events.get", "webhooks-events.resend"}


class Asked:
    """A journal entry as a request."""

    def __init__(self, entry):
        self.host_url = BASE
        self.path = entry["path"]
        self.method = entry["method"].lower()
        self.content_type = entry["headers"].get("content-type", "application/json")
        self.body = json.dumps(entry["body"]).encode() if entry["body"] is not None else None
        query = parse_qs(entry["query"])
        # Official clients repeat parameters with the same value.
        pairs = [(key, value) for key, values in query.items() for value in sorted(set(values))]
        self.parameters = RequestParameters(
            query=ImmutableMultiDict(pairs), header=Headers(entry["headers"]), cookie=ImmutableMultiDict())


class Answered:
    """A journal entry as an answer."""

    def __init__(self, entry):
        self.status_code = entry["status"]
        self.content_type = entry["answer_type"] or "application/json"
        self.headers = Headers()
        self.data = json.dumps(entry["answer"]).encode() if entry["answer"] is not None else None


class Document:
    """One OpenAPI document that judges."""

    def __init__(self, name, path):
        self.spec = corrected(name, json.loads(path.read_text()))
        # The documents are 3.0.3 with known flaws; their own shape is not on trial.
        self.judge = OpenAPI.from_dict(self.spec, config=Config(spec_validator_cls=None))

    def template(self, path):
        """The document's own path for a real one; a literal path wins."""
        parts = path.split("/")
        found = [name for name in self.spec["paths"]
                 if len(name.split("/")) == len(parts)
                 and all(want.startswith("{") or want == part
                         for want, part in zip(name.split("/"), parts))]
        return min(found, key=lambda name: name.count("{"), default=None)

    def operation(self, entry):
        template = self.template(entry["path"])
        return template and self.spec["paths"][template].get(entry["method"].lower())

    def request_errors(self, entry):
        return [describe(error) for error in self.judge.iter_request_errors(Asked(entry))]

    def answer_errors(self, entry):
        errors = self.judge.iter_response_errors(Asked(entry), Answered(entry))
        return [describe(error) for error in errors]


def describe(error):
    cause = error.__cause__
    inner = getattr(cause, "schema_errors", None)
    return f"{error!r} {cause!r} {[str(one)[:300] for one in inner or []]}"


def issues(entry):
    details = entry["answer"].get("details") if isinstance(entry["answer"], dict) else None
    return {detail["issue"] for detail in details or []}


def judged(document, entries):
    """Everything that does not fit, and how much was looked at."""
    wrong, looked_at = [], 0
    for entry in entries:
        operation = document.operation(entry)
        if operation is None or entry["dropped"]:
            continue
        about = f"{entry['method']} {entry['path']} {entry['status']}"
        if entry["status"] < 300 and entry["operation"] not in OLDER:
            looked_at += 1
            wrong += [f"{about} request: {error}" for error in document.request_errors(entry)]
        content = operation["responses"].get(str(entry["status"]), {}).get("content")
        if entry["answer"] is None or not content or issues(entry) & NEWER:
            continue
        looked_at += 1
        wrong += [f"{about} answer: {error}" for error in document.answer_errors(entry)]
    return wrong, looked_at


def spoilt(document, entries):
    """Requests and answers with one thing made wrong. None may pass."""
    created = next(entry for entry in entries
                   if entry["operation"] == "orders.create" and entry["status"] == 201
                   and (entry["answer"].get("purchase_units")))
    equal(document.request_errors(created), [])

    def request(change):
        entry = copy.deepcopy(created)
        change(entry["body"])
        return document.request_errors(entry)

    def unit(body):
        return body["purchase_units"][0]

    item = {"name": "x", "quantity": "0", "unit_amount": {"currency_code": "USD", "value": "1.00"}}
    for what, change in {
        "wrong intent": lambda body: body.update(intent="SALE"),
        "numeric amount": lambda body: unit(body)["amount"].update(value=1.0),
        "128 characters": lambda body: unit(body).update(custom_id="x" * 128),
        "quantity 0": lambda body: unit(body).update(items=[item]),
    }.items():
        holds(request(change), f"{what} must not pass")

    def answer(change):
        entry = copy.deepcopy(created)
        change(entry["answer"])
        return document.answer_errors(entry)

    for what, change in {
        "unknown status": lambda body: body.update(status="DONE"),
        "numeric value": lambda body: unit(body)["amount"].update(value=1),
        "link without rel": lambda body: body["links"][0].pop("rel"),
        "odd time": lambda body: body.update(create_time="yesterday"),
    }.items():
        holds(answer(change), f"{what} must not pass")
    blind(lambda: holds(request(lambda body: None), "an unspoilt request"), "spoiling")


def main():
    place = folder()
    if place is None:
        print("skipped: PayPal's OpenAPI documents are not here")
        sys.exit(0)
    entries = control("GET", "journal")["entries"]
    total = 0
    for name in DOCUMENTS:
        document = Document(name, place / f"{name}.json")
        wrong, looked_at = judged(document, entries)
        equal(wrong, [], name)
        total += looked_at
        if name.startswith("checkout"):
            spoilt(document, entries)
    holds(total > 100, f"only {total} requests and answers were there to be judged")
    verdict(f"PyPI openapi-core {version('openapi-core')}, {total} requests and answers")


main()
