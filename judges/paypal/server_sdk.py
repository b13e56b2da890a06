"""PayPal's official Python SDK drives every call it has."""

import base64
import inspect
import json
from importlib.metadata import version

from paypalserversdk.configuration import Configuration, Environment, Server
from paypalserversdk.exceptions.api_exception import ApiException
from paypalserversdk.http.auth.o_auth_2 import ClientCredentialsAuthCredentials
from paypalserversdk.models.capture_request import CaptureRequest
from paypalserversdk.models.confirm_order_request import ConfirmOrderRequest
from paypalserversdk.models.order_request import OrderRequest
from paypalserversdk.models.order_tracker_request import OrderTrackerRequest
from paypalserversdk.models.patch import Patch
from paypalserversdk.models.payment_token_request import PaymentTokenRequest
from paypalserversdk.models.reauthorize_request import ReauthorizeRequest
from paypalserversdk.models.refund_request import RefundRequest
from paypalserversdk.models.setup_token_request import SetupTokenRequest
from paypalserversdk.paypal_serversdk_client import PaypalServersdkClient

from common import (BASE, approve, blind, control, dollars, equal, fresh,
                    holds, instant, verdict)

# The SDK has no setting for a base URL, so its table of hosts is changed before a client exists.
Configuration.environments[Environment.SANDBOX][Server.DEFAULT] = BASE

FULL = "return=representation"
CONTROLLERS = ["orders", "payments", "vault", "transaction_search", "subscriptions", "o_auth_authorization"]
called = set()


class Noted:
    """A controller that notes which of its methods were called."""

    def __init__(self, name, controller):
        self._name, self._controller = name, controller

    def __getattr__(self, method):
        called.add(f"{self._name}.{method}")
        return getattr(self._controller, method)


class PayPal:
    """A client that is connected to the simulator."""

    def __init__(self):
        credentials = ClientCredentialsAuthCredentials(o_auth_client_id="sim", o_auth_client_secret="sim")
        client = PaypalServersdkClient(
            environment=Environment.SANDBOX,
            client_credentials_auth_credentials=credentials,
            timeout=20,
        )
        for name in CONTROLLERS:
            setattr(self, name, Noted(name, getattr(client, name)))


def refused(call, *args):
    """The error of a call that must be refused: its status and body."""
    try:
        call(*args)
    except ApiException as error:
        return error.response_code, json.loads(error.response.text)
    raise AssertionError("the call was accepted")


def issue(answer):
    """Status and first issue of a refusal."""
    status, body = answer
    return status, body["details"][0]["issue"]


def usd(value):
    return {"currency_code": "USD", "value": value}


def order(intent, value, **more):
    """Options of an order that waits for its payer."""
    unit = {"amount": usd(value), "custom_id": fresh("custom"), "invoice_id": fresh("inv"), **more}
    context = {"return_url": "https://shop.example/return", "cancel_url": "https://shop.example/cancel",
               "shipping_preference": "NO_SHIPPING", "user_action": "PAY_NOW"}
    body = {"intent": intent, "purchase_units": [unit],
            "payment_source": {"paypal": {"experience_context": context}}}
    return options(body)


def options(body):
    return {"body": OrderRequest.from_dictionary(body), "paypal_request_id": fresh("order"), "prefer": FULL}


def amount(money):
    return money.currency_code, money.value


def tokens(paypal):
    secret = base64.b64encode(b"sim:sim").decode()
    result = paypal.o_auth_authorization.request_token({"authorization": f"Basic {secret}"}).body
    equal((result.token_type, result.expires_in), ("Bearer", 32400))
    wrong = base64.b64encode(b"sim:wrong").decode()
    status, body = refused(paypal.o_auth_authorization.request_token, {"authorization": f"Basic {wrong}"})
    equal((status, body["error"]), (401, "invalid_client"))


def captures(paypal):
    before = dollars()
    request = order("CAPTURE", "5.00")
    created = paypal.orders.create_order(request).body
    equal(created.status, "PAYER_ACTION_REQUIRED")
    early = refused(paypal.orders.capture_order, {"id": created.id, "paypal_request_id": fresh("c")})
    equal(issue(early), (422, "ORDER_NOT_APPROVED"))
    confirm = ConfirmOrderRequest.from_dictionary({"payment_source": {"paypal": {"experience_context": {
        "return_url": "https://shop.example/return", "cancel_url": "https://shop.example/cancel"}}}})
    paypal.orders.confirm_order({"id": created.id, "body": confirm})
    path = "/purchase_units/@reference_id=='default'/amount"
    patch = Patch.from_dictionary({"op": "replace", "path": path, "value": usd("4.50")})
    paypal.orders.patch_order({"id": created.id, "body": [patch]})
    approve(created.id)
    read = paypal.orders.get_order({"id": created.id}).body
    equal((read.status, read.purchase_units[0].amount.value), ("APPROVED", "4.50"))
    blind(lambda: equal(read.status, "COMPLETED"), "order status")

    pay = {"id": created.id, "paypal_request_id": fresh("pay"), "prefer": FULL}
    mocked = refused(paypal.orders.capture_order,
                     {**pay, "paypal_mock_response": '{"mock_application_codes":"PAYER_CANNOT_PAY"}'})
    equal(issue(mocked), (422, "PAYER_CANNOT_PAY"))
    paid = paypal.orders.capture_order(pay)
    capture = paid.body.purchase_units[0].payments.captures[0]
    equal((paid.status_code, capture.status), (201, "COMPLETED"))
    equal(amount(capture.seller_receivable_breakdown.paypal_fee), ("USD", "0.65"))
    replay = paypal.orders.capture_order(pay)
    equal((replay.status_code, replay.text), (200, paid.text))
    equal(cents(dollars()["balance"]) - cents(before["balance"]), 385)
    tracker = OrderTrackerRequest.from_dictionary(
        {"capture_id": capture.id, "tracking_number": "443844607820", "carrier": "FEDEX"})
    paypal.orders.create_order_tracking({"id": created.id, "body": tracker})
    cancel = Patch.from_dictionary({"op": "replace", "path": "/status", "value": "CANCELLED"})
    paypal.orders.update_order_tracking(
        {"id": created.id, "tracker_id": f"{capture.id}-443844607820", "body": [cancel]})
    return capture.id


def cents(value):
    """`"3.85"` in whole cents, without passing through a fraction."""
    return int(value.replace(".", ""))


def refunds(paypal, capture_id):
    read = paypal.payments.get_captured_payment({"capture_id": capture_id}).body
    equal(amount(read.amount), ("USD", "4.50"))

    def give(value=None):
        body = RefundRequest.from_dictionary({"amount": usd(value)} if value else {})
        return {"capture_id": capture_id, "paypal_request_id": fresh("refund"), "prefer": FULL, "body": body}

    part = paypal.payments.refund_captured_payment(give("1.50")).body
    equal((part.status, amount(part.amount)), ("COMPLETED", ("USD", "1.50")))
    over = refused(paypal.payments.refund_captured_payment, give("3.01"))
    equal(issue(over), (422, "REFUND_AMOUNT_EXCEEDED"))
    rest = paypal.payments.refund_captured_payment(give()).body
    found = paypal.payments.get_refund({"refund_id": rest.id}).body
    equal(amount(found.seller_payable_breakdown.total_refunded_amount), ("USD", "4.50"))
    equal(paypal.payments.get_captured_payment({"capture_id": capture_id}).body.status, "REFUNDED")


def held(paypal):
    created = paypal.orders.create_order(order("AUTHORIZE", "6.00")).body
    approve(created.id)
    answer = paypal.orders.authorize_order({"id": created.id, "paypal_request_id": fresh("hold"), "prefer": FULL})
    return answer.body.purchase_units[0].payments.authorizations[0].id


def holds_and_their_ends(paypal):
    hold = held(paypal)

    def take(of, value, final):
        body = CaptureRequest.from_dictionary({"amount": usd(value), "final_capture": final})
        return {"authorization_id": of, "paypal_request_id": fresh("take"), "prefer": FULL, "body": body}

    def renew():
        body = ReauthorizeRequest.from_dictionary({"amount": usd("4.00")})
        return {"authorization_id": hold, "paypal_request_id": fresh("renew"), "prefer": FULL, "body": body}

    part = paypal.payments.capture_authorized_payment(take(hold, "2.00", False)).body
    equal(part.supplementary_data.related_ids.authorization_id, hold)
    equal(paypal.payments.get_authorized_payment({"authorization_id": hold}).body.status, "PARTIALLY_CAPTURED")
    soon = refused(paypal.payments.reauthorize_payment, renew())
    equal(issue(soon), (422, "REAUTHORIZATION_TOO_SOON"))
    control("POST", "clock/advance", {"seconds": 3 * 86_400})
    paypal = PayPal()
    renewed = paypal.payments.reauthorize_payment(renew()).body
    holds(renewed.id != hold, "a renewal has an id of its own")
    last = paypal.payments.capture_authorized_payment(take(renewed.id, "1.00", True)).body
    equal(last.final_capture, True)
    closed = refused(paypal.payments.capture_authorized_payment, take(renewed.id, "1.00", True))
    equal(issue(closed), (422, "AUTHORIZATION_ALREADY_CAPTURED"))
    gone = paypal.payments.void_payment({"authorization_id": hold, "paypal_request_id": fresh("void")})
    equal(gone.status_code, 204)
    again = refused(paypal.payments.void_payment, {"authorization_id": hold, "paypal_request_id": fresh("void")})
    equal(issue(again), (422, "PREVIOUSLY_VOIDED"))
    return paypal


def vaulted(paypal):
    wallet = {"description": "A tab, settled when it closes", "usage_type": "MERCHANT",
              "usage_pattern": "UNSCHEDULED_POSTPAID",
              "experience_context": {"return_url": "https://tab.example/return",
                                     "cancel_url": "https://tab.example/cancel"}}
    body = SetupTokenRequest.from_dictionary({"payment_source": {"paypal": wallet}})
    keyless = refused(paypal.vault.create_setup_token, {"body": body})
    equal(keyless[0], 400)
    setup = paypal.vault.create_setup_token({"body": body, "paypal_request_id": fresh("setup")}).body
    approve(setup.id)
    equal(paypal.vault.get_setup_token(setup.id).body.status, "APPROVED")
    source = {"payment_source": {"token": {"id": setup.id, "type": "SETUP_TOKEN"}}}
    request = {"body": PaymentTokenRequest.from_dictionary(source), "paypal_request_id": fresh("token")}
    token = paypal.vault.create_payment_token(request).body
    equal(paypal.vault.get_payment_token(token.id).body.customer.id, token.customer.id)
    listed = paypal.vault.list_customer_payment_tokens({"customer_id": token.customer.id}).body
    equal([entry.id for entry in listed.payment_tokens], [token.id])

    def charge(value):
        unit = {"amount": usd(value), "invoice_id": fresh("inv"), "custom_id": "tab_01J.7"}
        stored = {"payment_initiator": "MERCHANT", "usage_pattern": "UNSCHEDULED_POSTPAID", "usage": "SUBSEQUENT"}
        source = {"paypal": {"vault_id": token.id, "stored_credential": stored}}
        return options({"intent": "CAPTURE", "purchase_units": [unit], "payment_source": source})

    request = charge("0.95")
    charged = paypal.orders.create_order(request).body
    capture = charged.purchase_units[0].payments.captures[0]
    equal((charged.status, amount(capture.seller_receivable_breakdown.paypal_fee)), ("COMPLETED", ("USD", "0.52")))
    replay = paypal.orders.create_order(request)
    equal((replay.status_code, replay.body.id), (200, charged.id))
    paypal.vault.delete_payment_token(token.id)
    late = refused(paypal.orders.create_order, charge("1.00"))
    equal(issue(late), (422, "TOKEN_ID_NOT_FOUND"))
    return capture.id


def reports(paypal, capture_id):
    window = {"start_date": instant(-4 * 3600), "end_date": instant(3600), "fields": "all",
              "balance_affecting_records_only": "N"}

    def mine():
        rows = paypal.transaction_search.search_transactions(window).body
        details = getattr(rows, "transaction_details", None) or []
        return [row.transaction_info for row in details if row.transaction_info.transaction_id == capture_id]

    equal(mine(), [], "a report lags")
    control("POST", "clock/advance", {"seconds": 3 * 3600 + 60})
    found, = mine()
    equal((found.transaction_event_code, found.fee_amount.value), ("T0003", "-0.52"))
    balances = paypal.transaction_search.search_balances({"currency_code": "USD"}).body
    equal(balances.balances[0].total_balance.value, dollars()["balance"])


def bad_requests(paypal):
    def items(item_total, tax_total):
        breakdown = {"item_total": usd(item_total), "tax_total": usd(tax_total)}
        item = {"name": "x", "quantity": "3", "unit_amount": usd("1.30"), "tax": usd("0.10")}
        return {"amount": {**usd("4.19"), "breakdown": breakdown}, "items": [item]}

    for request, wanted in [
        (order("CAPTURE", "4.19", **items("3.90", "0.29")), (422, "TAX_TOTAL_MISMATCH")),
        (order("CAPTURE", "4.19", **items("3.89", "0.30")), (422, "ITEM_TOTAL_MISMATCH")),
        (order("CAPTURE", "1.001"), (422, "DECIMAL_PRECISION")),
        (order("CAPTURE", "1.00", custom_id="x" * 128), (400, "INVALID_STRING_LENGTH")),
        (order("SALE", "1.00"), (400, "INVALID_PARAMETER_VALUE")),
        (order("CAPTURE", 1.0), (400, "INVALID_PARAMETER_SYNTAX")),
    ]:
        equal(issue(refused(paypal.orders.create_order, request)), wanted)


def not_enabled(paypal):
    """An account without subscriptions is told so, in PayPal's own envelope."""
    it, id = paypal.subscriptions, "P-5ML4271244454362WXNWU5NQ"
    for call, argument in [
        (it.create_billing_plan, {"body": {}}),
        (it.list_billing_plans, {}),
        (it.get_billing_plan, id),
        (it.patch_billing_plan, {"id": id, "body": []}),
        (it.activate_billing_plan, id),
        (it.deactivate_billing_plan, id),
        (it.update_billing_plan_pricing_schemes, {"id": id, "body": {}}),
        (it.create_subscription, {"body": {"plan_id": id}}),
        (it.list_subscriptions, {}),
        (it.get_subscription, {"id": id}),
        (it.patch_subscription, {"id": id, "body": []}),
        (it.revise_subscription, {"id": id, "body": {}}),
        (it.suspend_subscription, {"id": id, "body": {"reason": "x"}}),
        (it.cancel_subscription, {"id": id, "body": {"reason": "x"}}),
        (it.activate_subscription, {"id": id, "body": {}}),
        (it.capture_subscription, {"id": id, "body": {}}),
        (it.list_subscription_transactions, {"id": id, "start_time": instant(-60), "end_time": instant()}),
    ]:
        status, body = refused(call, argument)
        equal((status, body["name"]), (403, "NOT_AUTHORIZED"))


def every_call_was_made(paypal):
    """A call that this judge forgets would not be judged."""
    every = set()
    for name in CONTROLLERS:
        methods = vars(type(getattr(paypal, name)._controller))
        every |= {f"{name}.{method}" for method, it in methods.items()
                  if inspect.isfunction(it) and not method.startswith("_")}
    holds(len(every) > 35, "the SDK has its calls")
    equal(every - called, set())


def main():
    paypal = PayPal()
    tokens(paypal)
    refunds(paypal, captures(paypal))
    paypal = holds_and_their_ends(paypal)
    reports(paypal, vaulted(paypal))
    bad_requests(paypal)
    not_enabled(paypal)
    every_call_was_made(paypal)
    verdict(f"PyPI paypal-server-sdk {version('paypal-server-sdk')}, {len(called)} calls")


main()
