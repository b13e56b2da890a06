// What the JavaScript judges share: the simulator's address, its control calls, and checks that
// stop at the first disagreement.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';

export const base = process.env.PAYPAL_SIM_URL?.replace(/\/$/, '');
if (!base) {
  console.error('PAYPAL_SIM_URL is not set');
  process.exit(2);
}

let passed = 0;

/** Checks that two values are equal, deeply. */
export function equal(actual, wanted, what) {
  assert.deepEqual(actual, wanted, what);
  passed += 1;
}

/** Checks that something holds. */
export function holds(condition, what) {
  assert.ok(condition, what);
  passed += 1;
}

/** A negative control: the check inside must fail, or the judge is blind. */
export function blind(check, what) {
  assert.throws(check, assert.AssertionError, `this check cannot fail: ${what}`);
}

/** Calls the simulator's own API. */
export async function control(method, path, body) {
  const response = await fetch(`${base}/_sim/${path}`, {
    method,
    headers: { 'content-type': 'application/json' },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const answer = await response.json();
  assert.ok(response.ok, `${method} /_sim/${path}: ${JSON.stringify(answer)}`);
  return answer;
}

/** The payer approves an order or setup token. */
export const approve = (token) => control('POST', 'approve', { token });

/** The simulator's time, so many seconds later, as PayPal writes it. */
export async function instant(seconds = 0) {
  const { now } = await control('GET', 'clock');
  return new Date(Date.parse(now) + seconds * 1000).toISOString().replace(/\.\d+Z$/, 'Z');
}

/** Balance, fees and the rest in US dollars. */
export async function dollars() {
  const { balances } = await control('GET', 'books');
  return balances.find((balance) => balance.currency === 'USD');
}

/** `"3.85"` in whole cents, without passing through a fraction. */
export const cents = (value) => Number(value.replace('.', ''));

/** Something no earlier run has used. */
let serial = 0;
export const fresh = (prefix) => `${prefix}-${process.pid}-${Date.now()}-${(serial += 1)}`;

/** The version of a package that is really there. */
export function installed(name) {
  const path = new URL(`node_modules/${name}/package.json`, import.meta.url);
  return JSON.parse(readFileSync(path, 'utf8')).version;
}

/** The last line of a judge. */
export function verdict(name) {
  process.stdout.write(`${name}: ${passed} checks passed\n`);
}
