// PayPal's official server SDK drives every call it has.

import axios from 'axios';
import {
  ApiError,
  Client,
  Environment,
  OAuthAuthorizationController,
  OrdersController,
  PaymentsController,
  SubscriptionsController,
  TransactionSearchController,
  VaultController,
} from '@paypal/paypal-server-sdk';
import { approve, base, blind, cents, control, dollars, equal, fresh, holds, installed, instant, verdict } from './lib.mjs';

const version = installed('@paypal/paypal-server-sdk');
const SANDBOX = 'https://api-m.sandbox.paypal.com';
const send = axios.getAdapter('http');

/** The SDK has no setting for a base URL, so its HTTP adapter rewrites the sandbox host. */
async function adapter(config) {
  if (!config.url.startsWith(SANDBOX)) throw new Error(`would leave the machine: ${config.url}`);
  return send({ ...config, url: base + config.url.slice(SANDBOX.length) });
}

const CONTROLLERS = {
  oauth: OAuthAuthorizationController,
  orders: OrdersController,
  payments: PaymentsController,
  vault: VaultController,
  search: TransactionSearchController,
  subscriptions: SubscriptionsController,
};
const called = new Set();

/** Controllers that note which of their methods were called. */
function connect(secret = 'sim') {
  const client = new Client({
    timeout: 20_000,
    environment: Environment.Sandbox,
    clientCredentialsAuthCredentials: { oAuthClientId: 'sim', oAuthClientSecret: secret },
    unstable_httpClientOptions: { adapter },
  });
  return Object.fromEntries(
    Object.entries(CONTROLLERS).map(([name, Controller]) => [
      name,
      new Proxy(new Controller(client), {
        get(target, method) {
          called.add(`${name}.${String(method)}`);
          return target[method].bind(target);
        },
      }),
    ]),
  );
}

/** The error of a call that must be refused. */
async function refused(promise) {
  try {
    await promise;
  } catch (error) {
    if (error instanceof ApiError) return { status: error.statusCode, ...JSON.parse(error.body) };
    throw error;
  }
  throw new Error('the call was accepted');
}

const full = 'return=representation';
const usd = (value) => ({ currencyCode: 'USD', value });
let paypal = connect();

function order(intent, value, more = {}) {
  const invoiceId = fresh('inv');
  return {
    paypalRequestId: fresh('order'),
    prefer: full,
    body: {
      intent,
      purchaseUnits: [{ amount: usd(value), customId: fresh('custom'), invoiceId, ...more }],
      paymentSource: {
        paypal: {
          experienceContext: {
            brandName: 'Judge',
            shippingPreference: 'NO_SHIPPING',
            userAction: 'PAY_NOW',
            returnUrl: 'https://shop.example/return',
            cancelUrl: 'https://shop.example/cancel',
          },
        },
      },
    },
  };
}

async function tokens() {
  const authorization = `Basic ${Buffer.from('sim:sim').toString('base64')}`;
  const { result } = await paypal.oauth.requestToken({ authorization });
  equal(result.tokenType, 'Bearer');
  holds(result.expiresIn > 30_000n, 'nine hours');
  const wrong = await refused(connect('wrong').oauth.requestToken({
    authorization: `Basic ${Buffer.from('sim:wrong').toString('base64')}`,
  }));
  equal([wrong.status, wrong.error], [401, 'invalid_client']);
}

async function captures() {
  const before = await dollars();
  const request = order('CAPTURE', '5.00');
  const { result: created } = await paypal.orders.createOrder(request);
  equal(created.status, 'PAYER_ACTION_REQUIRED');
  const { id } = created;
  const early = await refused(paypal.orders.captureOrder({ id, paypalRequestId: fresh('c') }));
  equal([early.status, early.details[0].issue], [422, 'ORDER_NOT_APPROVED']);

  await paypal.orders.confirmOrder({ id, body: { paymentSource: request.body.paymentSource } });
  await paypal.orders.patchOrder({
    id,
    body: [{ op: 'replace', path: "/purchase_units/@reference_id=='default'/amount", value: { currency_code: 'USD', value: '4.50' } }],
  });
  await approve(id);
  const { result: approved } = await paypal.orders.getOrder({ id });
  equal(approved.status, 'APPROVED');
  equal(approved.purchaseUnits[0].amount.value, '4.50');
  blind(() => equal(approved.status, 'COMPLETED'), 'order status');

  const mocked = await refused(paypal.orders.captureOrder({
    id,
    paypalRequestId: fresh('m'),
    paypalMockResponse: '{"mock_application_codes":"INSTRUMENT_DECLINED"}',
  }));
  equal(mocked.details[0].issue, 'INSTRUMENT_DECLINED');

  const paypalRequestId = fresh('capture');
  const { result: paid, statusCode } = await paypal.orders.captureOrder({ id, paypalRequestId, prefer: full });
  equal([statusCode, paid.status], [201, 'COMPLETED']);
  const capture = paid.purchaseUnits[0].payments.captures[0];
  equal(capture.status, 'COMPLETED');
  equal(capture.sellerReceivableBreakdown.paypalFee, usd('0.65'));
  equal(capture.sellerReceivableBreakdown.netAmount, usd('3.85'));
  const replay = await paypal.orders.captureOrder({ id, paypalRequestId, prefer: full });
  equal([replay.statusCode, replay.result], [200, paid]);
  const twice = await refused(paypal.orders.captureOrder({ id, paypalRequestId: fresh('c') }));
  equal(twice.details[0].issue, 'ORDER_ALREADY_CAPTURED');
  const after = await dollars();
  equal(cents(after.balance) - cents(before.balance), 385);

  await paypal.orders.createOrderTracking({ id, body: { captureId: capture.id, trackingNumber: '443844607820', carrier: 'FEDEX' } });
  await paypal.orders.updateOrderTracking({ id, trackerId: `${capture.id}-443844607820`, body: [{ op: 'replace', path: '/status', value: 'CANCELLED' }] });
  return capture.id;
}

async function refunds(captureId) {
  const { result: read } = await paypal.payments.getCapturedPayment({ captureId });
  equal(read.amount, usd('4.50'));
  const refund = (value) => paypal.payments.refundCapturedPayment({
    captureId,
    paypalRequestId: fresh('refund'),
    prefer: full,
    body: value ? { amount: usd(value), noteToPayer: 'one of three' } : {},
  });
  const { result: part } = await refund('1.50');
  equal([part.status, part.amount], ['COMPLETED', usd('1.50')]);
  equal(part.sellerPayableBreakdown.paypalFee, usd('0.00'));
  const over = await refused(refund('3.01'));
  equal(over.details[0].issue, 'REFUND_AMOUNT_EXCEEDED');
  const { result: rest } = await refund();
  equal(rest.amount, usd('3.00'));
  const { result: found } = await paypal.payments.getRefund({ refundId: rest.id });
  equal(found.sellerPayableBreakdown.totalRefundedAmount, usd('4.50'));
  const { result: done } = await paypal.payments.getCapturedPayment({ captureId });
  equal(done.status, 'REFUNDED');
}

async function holdsAndTheirEnds() {
  const { result: created } = await paypal.orders.createOrder(order('AUTHORIZE', '6.00'));
  await approve(created.id);
  const { result: held } = await paypal.orders.authorizeOrder({ id: created.id, paypalRequestId: fresh('hold'), prefer: full });
  const authorizationId = held.purchaseUnits[0].payments.authorizations[0].id;
  const take = (id, value, finalCapture) => paypal.payments.captureAuthorizedPayment({
    authorizationId: id,
    paypalRequestId: fresh('take'),
    prefer: full,
    body: { amount: usd(value), finalCapture },
  });
  const { result: part } = await take(authorizationId, '2.00', false);
  equal(part.supplementaryData.relatedIds.authorizationId, authorizationId);
  const { result: open } = await paypal.payments.getAuthorizedPayment({ authorizationId });
  equal(open.status, 'PARTIALLY_CAPTURED');
  const above = await refused(take(authorizationId, '4.91', true));
  equal(above.details[0].issue, 'MAX_CAPTURE_AMOUNT_EXCEEDED');
  const soon = await refused(paypal.payments.reauthorizePayment({ authorizationId, paypalRequestId: fresh('re'), body: { amount: usd('4.00') } }));
  equal(soon.details[0].issue, 'REAUTHORIZATION_TOO_SOON');

  await control('POST', 'clock/advance', { seconds: 3 * 86_400 });
  paypal = connect();
  const { result: renewed } = await paypal.payments.reauthorizePayment({ authorizationId, paypalRequestId: fresh('re'), prefer: full, body: { amount: usd('4.00') } });
  holds(renewed.id !== authorizationId, 'a renewal has an id of its own');
  const { result: last } = await take(renewed.id, '1.00', true);
  equal(last.finalCapture, true);
  const closed = await refused(take(renewed.id, '1.00', true));
  equal(closed.details[0].issue, 'AUTHORIZATION_ALREADY_CAPTURED');

  const gone = await paypal.payments.voidPayment({ authorizationId, paypalRequestId: fresh('void') });
  equal(gone.statusCode, 204);
  const { result: voided } = await paypal.payments.getAuthorizedPayment({ authorizationId });
  equal(voided.status, 'VOIDED');
  const again = await refused(paypal.payments.voidPayment({ authorizationId, paypalRequestId: fresh('void') }));
  equal(again.details[0].issue, 'PREVIOUSLY_VOIDED');
}

async function vaulted() {
  const setupRequest = {
    paypalRequestId: fresh('setup'),
    body: {
      paymentSource: {
        paypal: {
          description: 'A tab, settled when it closes',
          usageType: 'MERCHANT',
          usagePattern: 'UNSCHEDULED_POSTPAID',
          experienceContext: { returnUrl: 'https://tab.example/return', cancelUrl: 'https://tab.example/cancel' },
        },
      },
    },
  };
  const { result: setup } = await paypal.vault.createSetupToken(setupRequest);
  equal(setup.status, 'PAYER_ACTION_REQUIRED');
  const tokenRequest = { paypalRequestId: fresh('token'), body: { paymentSource: { token: { id: setup.id, type: 'SETUP_TOKEN' } } } };
  const early = await refused(paypal.vault.createPaymentToken(tokenRequest));
  equal(early.status, 422);
  await approve(setup.id);
  const { result: approved } = await paypal.vault.getSetupToken(setup.id);
  equal(approved.status, 'APPROVED');
  const { result: token } = await paypal.vault.createPaymentToken(tokenRequest);
  const { result: read } = await paypal.vault.getPaymentToken(token.id);
  equal(read.customer.id, token.customer.id);
  const { result: list } = await paypal.vault.listCustomerPaymentTokens({ customerId: token.customer.id, totalRequired: true });
  equal([list.totalItems, list.paymentTokens[0].id], [1, token.id]);

  const charge = (value) => {
    const request = order('CAPTURE', value);
    request.body.paymentSource = {
      paypal: {
        vaultId: token.id,
        storedCredential: { paymentInitiator: 'MERCHANT', usagePattern: 'UNSCHEDULED_POSTPAID', usage: 'SUBSEQUENT' },
      },
    };
    return request;
  };
  const request = charge('0.95');
  const { result: charged } = await paypal.orders.createOrder(request);
  equal(charged.status, 'COMPLETED');
  const capture = charged.purchaseUnits[0].payments.captures[0];
  equal(capture.sellerReceivableBreakdown.paypalFee, usd('0.52'));
  const replay = await paypal.orders.createOrder(request);
  equal([replay.statusCode, replay.result.id], [200, charged.id]);
  const duplicate = await refused(paypal.orders.createOrder({ ...request, paypalRequestId: fresh('other') }));
  equal(duplicate.details[0].issue, 'DUPLICATE_INVOICE_ID');
  const keyless = await refused(paypal.orders.createOrder({ ...charge('1.00'), paypalRequestId: undefined }));
  equal([keyless.status, keyless.details[0].issue], [400, 'PAYPAL_REQUEST_ID_REQUIRED']);

  await paypal.vault.deletePaymentToken(token.id);
  const deleted = await refused(paypal.vault.getPaymentToken(token.id));
  equal(deleted.status, 404);
  const late = await refused(paypal.orders.createOrder(charge('1.00')));
  equal(late.details[0].issue, 'TOKEN_ID_NOT_FOUND');
  return { captureId: capture.id, invoiceId: request.body.purchaseUnits[0].invoiceId };
}

async function reports({ captureId, invoiceId }) {
  const window = { startDate: await instant(-4 * 3600), endDate: await instant(3600), fields: 'all', balanceAffectingRecordsOnly: 'N' };
  const rows = async () => (await paypal.search.searchTransactions(window)).result.transactionDetails ?? [];
  const mine = (list) => list.map((row) => row.transactionInfo).find((info) => info.transactionId === captureId);
  equal(mine(await rows()), undefined, 'a report lags');
  await control('POST', 'clock/advance', { seconds: 3 * 3600 + 60 });
  const found = mine(await rows());
  equal([found.transactionEventCode, found.invoiceId, found.transactionStatus], ['T0003', invoiceId, 'S']);
  equal([found.transactionAmount.value, found.feeAmount.value], ['0.95', '-0.52']);
  const ahead = await refused(paypal.search.searchTransactions({ startDate: await instant(-60), endDate: await instant() }));
  equal([ahead.status, ahead.message], [400, 'Data for the given start date is not available.']);
  const { result } = await paypal.search.searchBalances({ currencyCode: 'USD' });
  equal(result.balances[0].totalBalance.value, (await dollars()).balance);
}

async function badRequests() {
  const create = (request) => refused(paypal.orders.createOrder(request));
  const breakdown = (itemTotal, taxTotal) => ({
    amount: { ...usd('4.19'), breakdown: { itemTotal: usd(itemTotal), taxTotal: usd(taxTotal) } },
    items: [{ name: 'x', quantity: '3', unitAmount: usd('1.30'), tax: usd('0.10') }],
  });
  for (const [request, status, issue] of [
    [order('CAPTURE', '4.19', breakdown('3.90', '0.29')), 422, 'TAX_TOTAL_MISMATCH'],
    [order('CAPTURE', '4.19', breakdown('3.89', '0.30')), 422, 'ITEM_TOTAL_MISMATCH'],
    [order('CAPTURE', '1.001'), 422, 'DECIMAL_PRECISION'],
    [order('CAPTURE', '0.00'), 422, 'CANNOT_BE_ZERO_OR_NEGATIVE'],
    [order('CAPTURE', '1.00', { customId: 'x'.repeat(128) }), 400, 'INVALID_STRING_LENGTH'],
    [order('SALE', '1.00'), 400, 'INVALID_PARAMETER_VALUE'],
    [order('CAPTURE', '1.00', { items: [{ name: 'x', quantity: '0', unitAmount: usd('1.00') }] }), 400, 'INVALID_PARAMETER_SYNTAX'],
  ]) {
    const error = await create(request);
    equal([error.status, error.details[0].issue], [status, issue]);
    holds(error.debug_id, 'a debug id');
  }
  const unknown = await refused(paypal.orders.getOrder({ id: '0AA00000AA000000A' }));
  equal([unknown.status, unknown.details[0].issue], [404, 'INVALID_RESOURCE_ID']);
}

/** An account without subscriptions is told so, in PayPal's own envelope. */
async function notEnabled() {
  const id = 'P-5ML4271244454362WXNWU5NQ';
  const it = paypal.subscriptions;
  const [startTime, endTime] = [await instant(-60), await instant()];
  const calls = [
    () => it.createBillingPlan({ body: { productId: 'PROD-1', name: 'x', billingCycles: [], paymentPreferences: {} } }),
    () => it.listBillingPlans({}),
    () => it.getBillingPlan(id),
    () => it.patchBillingPlan({ id, body: [] }),
    () => it.activateBillingPlan(id),
    () => it.deactivateBillingPlan(id),
    () => it.updateBillingPlanPricingSchemes({ id, body: { pricingSchemes: [] } }),
    () => it.createSubscription({ body: { planId: id } }),
    () => it.listSubscriptions({}),
    () => it.getSubscription({ id }),
    () => it.patchSubscription({ id, body: [] }),
    () => it.reviseSubscription({ id, body: {} }),
    () => it.suspendSubscription({ id, body: { reason: 'x' } }),
    () => it.cancelSubscription({ id, body: { reason: 'x' } }),
    () => it.activateSubscription({ id, body: {} }),
    () => it.captureSubscription({ id, body: { note: 'x', captureType: 'OUTSTANDING_BALANCE', amount: usd('1.00') } }),
    () => it.listSubscriptionTransactions({ id, startTime, endTime }),
  ];
  for (const call of calls) {
    const error = await refused(call());
    equal([error.status, error.name], [403, 'NOT_AUTHORIZED']);
  }
}

/** A call that this judge forgets would not be judged. */
function everyCallWasMade() {
  const all = Object.entries(CONTROLLERS).flatMap(([name, Controller]) =>
    Object.getOwnPropertyNames(Controller.prototype)
      .filter((method) => method !== 'constructor')
      .map((method) => `${name}.${method}`));
  holds(all.length > 35, 'the SDK has its calls');
  equal(all.filter((method) => !called.has(method)), []);
}

await tokens();
await refunds(await captures());
await holdsAndTheirEnds();
await reports(await vaulted());
paypal = connect();
await badRequests();
await notEnabled();
everyCallWasMade();
verdict(`npm @paypal/paypal-server-sdk ${version}, ${called.size} calls`);
