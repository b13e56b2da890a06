"""Reads `/openapi.json` from a running Earnest and has it judged by the schema of OpenAPI 3.1."""

import copy
import os
import sys

from openapi_spec_validator import OpenAPIV31SpecValidator

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

import earnest  # noqa: E402


def complaints(document):
    """What the judge has against a document; a reference that leads nowhere makes it give up."""
    try:
        return [error.message for error in OpenAPIV31SpecValidator(document).iter_errors()]
    except Exception as error:  # noqa: BLE001
        return [repr(error)[:200]]


def altered(document, change):
    document = copy.deepcopy(document)
    change(document)
    return document


def main():
    tally = earnest.Tally("judge openapi")
    with earnest.Programs() as programs:
        url = earnest.Earnest(programs).url
        answer = earnest.http("GET", f"{url}/openapi.json")
    tally.equal(answer.status, 200, "GET /openapi.json")
    document = answer.json
    tally.equal(document["openapi"][:4], "3.1.", "the version")
    tally.equal(complaints(document), [], "the document")

    # What must not pass.
    purchases = lambda it: it["paths"]["/v1/purchases"]["get"]  # noqa: E731
    controls = {
        "an answer without a description": lambda it: purchases(it)["responses"]["200"].pop("description"),
        "a reference that leads nowhere": lambda it: it["components"]["schemas"].pop("Problem"),
        "one name for two operations": lambda it: purchases(it).update(
            operationId=it["paths"]["/v1/tabs"]["get"]["operationId"]
        ),
        "a parameter in no place": lambda it: purchases(it)["parameters"][0].update({"in": "body"}),
        "a path parameter that is not described": lambda it: it["paths"]["/v1/tabs/{id}"]["get"].pop("parameters"),
        "a member that does not exist": lambda it: it["info"].update(licence="MIT"),
    }
    for what, change in controls.items():
        tally.check(complaints(altered(document, change)), f"{what} is refused")
    tally.end()


main()
