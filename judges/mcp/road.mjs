// What every client walks, whoever wrote it: look, buy, repeat, ask the owner and wait, read what is
// large, fail in the protocol's words, give up and come back.
//
// A question to the owner is said on stdout as {"approval": id}; the judge answers it.

import { createHash } from 'node:crypto';

export const TOOLS = ['paid_fetch', 'quote', 'tab_status', 'approval_status', 'verify_receipt'];
export const { SHOP, DOOR, KEY, EARNEST_BIN, NAME } = process.env;

let passed = 0;
const failed = [];

export function check(good, what) {
  if (good) passed += 1;
  else failed.push(what);
}

export function approve(id) {
  console.log(JSON.stringify({ approval: id }));
}

/** Says what came of it, and ends. */
export function end() {
  console.log(JSON.stringify({ passed, failed }));
  process.exit(failed.length ? 1 : 0);
}

/** Walks; `call(name, args, options)` gives a result, and throws what the protocol calls an error. */
export async function walk({ list, call, read, era }) {
  const id = (what) => `${NAME}-${what}`;
  const fetch = (path, what, more, options) =>
    call('paid_fetch', { url: SHOP + path, max_price: '$0.50', request_id: id(what), ...more }, options);

  check(JSON.stringify(await list()) === JSON.stringify(TOOLS), 'the tools, in their order');
  const quote = (await call('quote', { url: `${SHOP}/weather` })).structuredContent;
  check(quote.status === 'priced' && quote.amount_micros === 20000, `quote: ${JSON.stringify(quote)}`);

  const first = await fetch('/weather', 'weather');
  check(first.structuredContent.status === 'paid', `paid_fetch: ${JSON.stringify(first.structuredContent)}`);
  check(first.structuredContent.body === 'it rains\n', 'the body');
  check(first.content[0].text.includes('$0.02'), `a sentence with the amount: ${first.content[0].text}`);
  const again = await fetch('/weather', 'weather');
  check(again.structuredContent.purchase === first.structuredContent.purchase, 'the same id, the same purchase');

  const asked = (await fetch('/dear', 'dear')).structuredContent;
  check(asked.status === 'approval_required', `above the threshold: ${JSON.stringify(asked)}`);
  check(asked.approval_url?.endsWith(asked.approval_id), 'the address to show');
  approve(asked.approval_id);
  let answer;
  for (let tries = 0; tries < 3 && answer?.status !== 'approved'; tries += 1) {
    answer = (await call('approval_status', { approval_id: asked.approval_id, wait_s: 25 })).structuredContent;
  }
  check(answer.status === 'approved', `the owner's answer: ${JSON.stringify(answer)}`);
  const dear = (await fetch('/dear', 'dear')).structuredContent;
  check(dear.status === 'paid' && dear.body === 'dear\n', `approved: ${JSON.stringify(dear)}`);

  const big = (await fetch('/big', 'big')).structuredContent;
  const text = (await read(big.body_uri)).contents[0].text;
  check(createHash('sha256').update(text).digest('hex') === big.body_sha256, 'a large body, by its digest');

  const gone = await call('paid_fetch', { url: `${SHOP}/weather`, max_price: '$1' }).then(
    () => null,
    (error) => error,
  );
  check(gone?.code === -32602, `a call without request_id: ${gone?.code} ${gone}`);
  const unfit = await call('paid_fetch', { url: 'ftp://a.example/', max_price: '$1', request_id: id('ftp') });
  check(unfit.isError === true && unfit.structuredContent.code === 'url_invalid', 'a URL that is none');
  const low = await fetch('/weather', 'low', { max_price: '$0.01' });
  check(low.isError === true && low.structuredContent.status === 'denied', 'a maximum below the price');

  // Gives up on a slow seller, then comes back for what was bought.
  const gaveUp = await fetch('/slow', 'slow', {}, { signal: AbortSignal.timeout(500) }).then(
    () => false,
    () => true,
  );
  check(gaveUp, 'a call can be given up');
  const slow = (await fetch('/slow', 'slow')).structuredContent;
  check(slow.status === 'paid' && slow.body === 'slow\n', `after giving up: ${JSON.stringify(slow)}`);

  const heard = [];
  const slower = await fetch('/slower', 'slower', {}, { onprogress: (progress) => heard.push(progress) });
  check(slower.structuredContent.status === 'paid', 'a slower seller');
  check(heard.length === 1 && heard[0].progress === 5, `progress after 5 s: ${JSON.stringify(heard)}`);

  const tab = (await call('tab_status', {})).structuredContent;
  check(tab.status === 'open' && tab.waiting_request_ids.length === 0, `the tab: ${JSON.stringify(tab)}`);
  check(era === undefined || era.found === era.wanted, `era ${era?.found} instead of ${era?.wanted}`);
}

/** Buys what the owner has to approve with a client that is asked to show an address. */
export async function walkAsked(call, opened) {
  const args = { url: `${SHOP}/dear`, max_price: '$0.50', request_id: `${NAME}-asked`, wait_s: 25 };
  const bought = (await call('paid_fetch', args)).structuredContent;
  check(bought.status === 'paid', `asked through the client: ${JSON.stringify(bought)}`);
  check(opened.length === 1 && opened[0].includes('/approvals/apr_'), `the address: ${JSON.stringify(opened)}`);
}
