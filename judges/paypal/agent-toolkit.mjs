// PayPal's agent toolkit: every tool, called through MCP as an agent would.

import { createRequire } from 'node:module';
import net from 'node:net';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { InMemoryTransport } from '@modelcontextprotocol/sdk/inMemory.js';
import { approve, base, blind, cents, control, dollars, equal, holds, installed, instant, verdict } from './lib.mjs';

const require = createRequire(import.meta.url);
const HOSTS = ['https://api.sandbox.paypal.com', 'https://api.paypal.com'];

// The toolkit has its hosts built in: map them to the simulator, and let nothing else out.
const axios = require('axios');
const send = axios.getAdapter('http');
axios.defaults.adapter = (config) => {
  const host = HOSTS.find((known) => config.url.startsWith(`${known}/`));
  if (!host) throw new Error(`would leave the machine: ${config.url}`);
  return send({ ...config, url: base + config.url.slice(host.length) });
};
const connect = net.Socket.prototype.connect;
net.Socket.prototype.connect = function guarded(...args) {
  const { host } = net._normalizeArgs(args.flat())[0];
  if (host && !['127.0.0.1', 'localhost', '::1'].includes(host)) throw new Error(`no way out to ${host}`);
  return connect.apply(this, args);
};

const { PayPalAgentToolkit, PayPalMCPToolkit } = require('@paypal/agent-toolkit/mcp');

async function accessToken() {
  const response = await fetch(`${base}/v1/oauth2/token`, {
    method: 'POST',
    headers: {
      authorization: `Basic ${Buffer.from('sim:sim').toString('base64')}`,
      'content-type': 'application/x-www-form-urlencoded',
    },
    body: 'grant_type=client_credentials',
  });
  return (await response.json()).access_token;
}

// The toolkit prints every error body it meets.
console.log = () => {};
console.error = () => {};

const everything = new Proxy({}, { get: () => new Proxy({}, { get: () => true }), has: () => true });

async function agent(token, sandbox) {
  const configuration = { actions: everything, context: { sandbox } };
  const server = new PayPalAgentToolkit({ accessToken: token, configuration });
  const client = new Client({ name: 'judge', version: '1' });
  const [near, far] = InMemoryTransport.createLinkedPair();
  await Promise.all([server.connect(far), client.connect(near)]);
  return client;
}

const called = new Set();
const uses = (client) => async (name, args) => {
  called.add(name);
  const { content } = await client.callTool({ name, arguments: args });
  return JSON.parse(content[0].text);
};

const token = await accessToken();
const client = await agent(token, true);
const use = uses(client);

const item = (itemCost, quantity, taxPercent = 0) => ({ name: 'Result', itemCost, quantity, taxPercent, itemTotal: itemCost * quantity });

async function buying() {
  const before = await dollars();
  const made = await use('create_order', { currencyCode: 'USD', items: [item(1.3, 3)], discount: 0, shippingCost: 0 });
  equal(made.status, 'PAYER_ACTION_REQUIRED');
  const { id } = made;
  const early = await use('pay_order', { id });
  equal([early.ok, early.status], [false, 422]);
  await approve(id);
  const read = await use('get_order', { id });
  equal([read.status, read.purchase_units[0].amount.value], ['APPROVED', '3.9']);
  blind(() => equal(read.status, 'COMPLETED'), 'order status');
  const paid = await use('pay_order', { id });
  equal([paid.status, paid.response.status], ['success', 'COMPLETED']);
  const again = await use('pay_order', { id });
  equal([again.ok, again.status], [false, 422]);
  const after = await dollars();
  equal(cents(after.captured) - cents(before.captured), 390);
  equal(cents(after.fees) - cents(before.fees), 63);
  const done = await use('get_order', { id });
  return done.purchase_units[0].payments.captures[0].id;
}

/** 1.30 x 3 at 7.5 %: item tax 0.10 three times, but a total of 0.29. PayPal refuses its own sum. */
async function theWrongSum() {
  const refused = await use('create_order', { currencyCode: 'USD', items: [item(1.3, 3, 7.5)] });
  equal([refused.ok, refused.status], [false, 422]);
  const { entries } = await control('GET', 'journal');
  const last = entries.findLast((entry) => entry.operation === 'orders.create');
  equal(last.body.purchase_units[0].amount.breakdown.tax_total.value, '0.29');
  equal(last.answer.details.map((detail) => detail.issue), ['TAX_TOTAL_MISMATCH']);
  const right = await use('create_order', { currencyCode: 'USD', items: [item(1.2, 3, 10)] });
  equal(right.status, 'PAYER_ACTION_REQUIRED');
}

async function returning(captureId) {
  const part = await use('create_refund', { capture_id: captureId, amount: { currency_code: 'USD', value: '1.5' } });
  equal(part.status, 'COMPLETED');
  const over = await use('create_refund', { capture_id: captureId, amount: { currency_code: 'USD', value: '2.41' } });
  equal([over.ok, over.status], [false, 422]);
  const read = await use('get_refund', { refund_id: part.id });
  equal(read.amount.value, '1.50');
}

async function reporting(captureId) {
  const early = await use('list_transactions', { transaction_id: captureId, search_months: 1 });
  equal(early.found, false);
  await control('POST', 'clock/advance', { seconds: 3 * 3600 + 60 });
  // This tool repeats every parameter in its query.
  const late = await use('list_transactions', { start_date: await instant(-12 * 3600), end_date: await instant(3600) });
  const found = late.transaction_details.map((row) => row.transaction_info).find((info) => info.transaction_id === captureId);
  equal(found.fee_amount.value, '-0.63');
}

/** Tools for features this account has not enabled get PayPal's envelope, never a crash. */
async function notEnabled() {
  const id = 'INV2-ABCD-EFGH-1234-5678';
  const plan = 'P-5ML4271244454362WXNWU5NQ';
  const product = 'PROD-XYAB12ABSB7868434';
  const cycle = { frequency: { interval_unit: 'MONTH', interval_count: 1 }, tenure_type: 'REGULAR', sequence: 1, pricing_scheme: {} };
  const payment = '8MC585209K746392H';
  for (const [name, args] of [
    ['create_invoice', { detail: { currency_code: 'USD' } }],
    ['list_invoices', {}],
    ['get_invoice', { invoice_id: id }],
    ['send_invoice', { invoice_id: id }],
    ['send_invoice_reminder', { invoice_id: id }],
    ['cancel_sent_invoice', { invoice_id: id }],
    ['generate_invoice_qr_code', { invoice_id: id }],
    ['create_product', { name: 'x', type: 'SERVICE' }],
    ['list_products', {}],
    ['show_product_details', { product_id: product }],
    ['create_subscription_plan', { product_id: product, name: 'x', billing_cycles: [cycle], payment_preferences: {}, taxes: {} }],
    ['list_subscription_plans', {}],
    ['show_subscription_plan_details', { plan_id: plan }],
    ['update_plan', { plan_id: plan, operations: 'x', name: 'y' }],
    ['create_subscription', { plan_id: plan }],
    ['show_subscription_details', { subscription_id: 'I-BW452GLLEP1G' }],
    ['update_subscription', { subscription_id: 'I-BW452GLLEP1G', custom_id: 'x' }],
    ['cancel_subscription', { subscription_id: 'I-BW452GLLEP1G', payload: { reason: 'x' } }],
    ['create_shipment_tracking', { tracking_number: '1Z', transaction_id: payment, carrier: 'UPS' }],
    ['get_shipment_tracking', { transaction_id: payment }],
    ['update_shipment_tracking', { transaction_id: payment, tracking_number: '1Z', status: 'CANCELLED' }],
    ['accept_dispute_claim', { dispute_id: 'PP-000', note: 'x' }],
  ]) {
    const { entries: before } = await control('GET', 'journal');
    const answer = await use(name, args);
    const { entries: after } = await control('GET', 'journal');
    const asked = after.slice(before.length);
    holds(asked.length > 0, `${name} asked nothing: ${JSON.stringify(answer)}`);
    equal(asked.map((entry) => [entry.status, entry.answer.name]), asked.map(() => [403, 'NOT_AUTHORIZED']));
  }
  // Disputes are there to be read.
  for (const [name, args, status] of [['list_disputes', {}, 200], ['get_dispute', { dispute_id: 'PP-000' }, 404]]) {
    const { entries: before } = await control('GET', 'journal');
    await use(name, args);
    const { entries: after } = await control('GET', 'journal');
    equal(after.slice(before.length).map((entry) => entry.status), [status]);
  }
  // Offered, but the toolkit itself has no method for it.
  const lame = await use('update_product', { product_id: product, operations: [] });
  equal(lame.error.message, 'Invalid method: update_product');
  const live = uses(await agent(token, false));
  const insights = await live('get_merchant_insights', { start_date: '2026-01-01', end_date: '2026-02-01', insight_type: 'SALES', time_interval: 'DAILY' });
  equal([insights.ok, insights.status], [false, 403]);
}

async function everyToolWasUsed() {
  const { tools } = await client.listTools();
  const names = tools.map((tool) => tool.name);
  holds(names.length > 30, 'the toolkit has its tools');
  equal(names.filter((name) => !called.has(name)), []);
  const remote = new PayPalMCPToolkit({ accessToken: token, configuration: { actions: everything, context: {} } });
  equal(remote.getTools().map((tool) => tool.method), names);
}

const captureId = await buying();
await theWrongSum();
await returning(captureId);
await notEnabled();
await reporting(captureId);
await everyToolWasUsed();
verdict(`npm @paypal/agent-toolkit ${installed('@paypal/agent-toolkit')}, ${called.size} tools`);
process.exit(0);
