"""What the Python judges share: the simulator's address, its control calls, and checks that stop
at the first disagreement."""

import datetime
import itertools
import os
import sys
import time

import requests

BASE = os.environ.get("PAYPAL_SIM_URL", "").rstrip("/")
if not BASE:
    sys.exit("PAYPAL_SIM_URL is not set")

_passed = itertools.count(1)
_serial = itertools.count(1)
_last = 0


class Disagreement(Exception):
    """The judge and the simulator disagree."""


def equal(actual, wanted, what=""):
    """Checks that two values are equal."""
    global _last
    if actual != wanted:
        raise Disagreement(f"{what}: got {actual!r}, wanted {wanted!r}")
    _last = next(_passed)


def holds(condition, what):
    """Checks that something holds."""
    equal(bool(condition), True, what)


def blind(check, what):
    """A negative control: the check inside must fail, or the judge is blind."""
    try:
        check()
    except Disagreement:
        return
    raise Disagreement(f"this check cannot fail: {what}")


def control(method, path, body=None):
    """Calls the simulator's own API."""
    response = requests.request(method, f"{BASE}/_sim/{path}", json=body, timeout=20)
    if not response.ok:
        raise Disagreement(f"{method} /_sim/{path}: {response.text}")
    return response.json()


def approve(token):
    """The payer approves an order or setup token."""
    return control("POST", "approve", {"token": token})


def instant(seconds=0):
    """The simulator's time, so many seconds later, as PayPal writes it."""
    now = datetime.datetime.fromisoformat(control("GET", "clock")["now"])
    later = now + datetime.timedelta(seconds=seconds)
    return later.strftime("%Y-%m-%dT%H:%M:%SZ")


def dollars():
    """Balance, fees and the rest in US dollars."""
    balances = control("GET", "books")["balances"]
    return next(entry for entry in balances if entry["currency"] == "USD")


def fresh(prefix):
    """Something no earlier run has used."""
    return f"{prefix}-{os.getpid()}-{int(time.time())}-{next(_serial)}"


def verdict(name):
    """The last line of a judge."""
    print(f"{name}: {_last} checks passed")
