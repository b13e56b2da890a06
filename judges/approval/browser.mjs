// Opens the pages as a phone does: taps, width, contrast, labels; with and without script.
// What to open comes as JSON on stdin. Ends with 0 when everything held.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const told = JSON.parse(readFileSync(0, "utf8"));
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const PHONE = { width: 390, height: 844 };
const NARROW = { width: 320, height: 700 };

let passed = 0;
let failed = 0;
function check(good, what) {
  if (good) passed += 1;
  else {
    failed += 1;
    console.log(`not so: ${what}`);
  }
  return good;
}
const equal = (found, wanted, what) =>
  check(found === wanted, `${what}: ${JSON.stringify(found)} instead of ${JSON.stringify(wanted)}`);

const browser = await chromium.launch({
  executablePath: told.chromium,
  headless: true,
  args: [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
  ],
});

// A phone with an empty profile of its own.
async function phone(options = {}) {
  const context = await browser.newContext({ viewport: PHONE, hasTouch: true, isMobile: true, ...options });
  context.setDefaultTimeout(15_000);
  const page = await context.newPage();
  page.complaints = [];
  page.on("console", (message) => {
    // A refused page is what some of this is about; the browser says it once more.
    const status = message.text().startsWith("Failed to load resource: the server responded");
    if (message.type() === "error" && !status) page.complaints.push(message.text());
  });
  page.on("pageerror", (error) => page.complaints.push(String(error)));
  page.on("dialog", async (dialog) => {
    page.complaints.push(`a dialog: ${dialog.message()}`);
    await dialog.dismiss();
  });
  return page;
}

const title = (page) => page.locator("h1").innerText();
const button = (page, name) => page.getByRole("button", { name, exact: true });
const approve = (page) => button(page, "Approve $0.25 once");

async function signIn(page, link) {
  await page.goto(link);
  await button(page, "Sign in").tap();
  await page.waitForURL("**/approvals");
}

async function violations(page) {
  await page.evaluate(AXE);
  const found = await page.evaluate(() =>
    axe.run(document, {
      runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    }),
  );
  return found.violations.map(
    (one) => `${one.id}: ${one.nodes.map((node) => node.html.slice(0, 120)).join(" | ")}`,
  );
}

// What does not fit: how much wider than the screen the page is.
const overflow = (page) =>
  page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);

// What a thumb would miss: anything to tap that is lower than 44 px, but for the box of a label that
// is not.
const small = (page) =>
  page.evaluate(() =>
    [...document.querySelectorAll("a, button, summary, select, input:not([type=hidden])")]
      .filter((one) => one.checkVisibility())
      .map((one) => (one.type === "checkbox" ? one.closest("label") : one))
      .filter((one) => one.getBoundingClientRect().height < 44)
      .map((one) => one.outerHTML.slice(0, 120)),
  );

let looks = 0;
async function look(name, page) {
  looks += 1;
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    equal((await violations(page)).join("\n"), "", `${name}, ${colorScheme}: axe`);
  }
  await page.emulateMedia({ colorScheme: "light" });
  await page.setViewportSize(NARROW);
  equal(await overflow(page), 0, `${name}: wider than 320 px by`);
  for (const details of await page.locator("details").all()) {
    await details.evaluate((one) => (one.open = true));
  }
  equal(await overflow(page), 0, `${name}, all open: wider than 320 px by`);
  equal((await small(page)).join("\n"), "", `${name}: too small to tap`);
  await page.setViewportSize(PHONE);
  equal(await page.locator("script").count(), 0, `${name}: scripts`);
  equal(page.complaints.join("\n"), "", `${name}: the browser complains`);
}

// Whether every look would notice what it looks for.
async function controls() {
  const page = await phone();
  await page.setContent(
    `<html><head><meta name="viewport" content="width=device-width"></head><body><p style="color:#aaa;background:#fff;width:600px">faint</p><input><a href="#">x</a></body></html>`,
  );
  const found = (await violations(page)).join("\n");
  for (const id of ["color-contrast", "html-has-lang", "label"]) {
    check(found.includes(`${id}:`), `axe notices ${id}`);
  }
  await page.setViewportSize(NARROW);
  check((await overflow(page)) > 0, "a wide page is noticed");
  check((await small(page)).length > 0, "a small target is noticed");
  await page.context().close();
}

async function nobody() {
  const page = await phone();
  const answer = await page.goto(told.asked.look.url);
  equal(answer.status(), 401, "a question without a session");
  check(!(await page.content()).includes("0.25"), "nothing of the purchase is shown");
  await look("without a session", page);
  await page.goto(`${told.url}/login`);
  await look("no link", page);
  await page.goto(`${told.url}/login?token=${"0".repeat(32)}`);
  await look("a link that is none", page);
  await page.goto(told.spare_link);
  await look("a link", page);
  await page.context().close();
}

// Signed out, the address leads to a link, and the link back to the question: a tap to sign in, and a
// tap to approve.
async function signedOut() {
  const page = await phone();
  const { url } = told.asked["signed-out"];
  equal((await page.goto(url)).status(), 401, "a question before signing in");
  await page.goto(told.signed_out_link);
  await button(page, "Sign in").tap();
  await page.waitForURL(url);
  await approve(page).tap();
  await page.waitForFunction(() => document.querySelector("h1")?.innerText.startsWith("Approved"));
  equal(page.complaints.join("\n"), "", "signing in on the way: the browser complains");
  await page.context().close();
}

async function twoTaps(page) {
  // The first tap opens the address, the second approves.
  await page.goto(told.asked.tap.url);
  await look("a question", page);
  const before = Date.now();
  await page.goto(told.asked.tap.url);
  await approve(page).tap();
  await page.waitForFunction(() => document.querySelector("h1")?.innerText.startsWith("Approved"));
  console.log(`two taps: ${Date.now() - before} ms`);
  equal(await title(page), "Approved: $0.25", "after two taps");
  await look("approved", page);
}

async function doubleTap(page) {
  await page.goto(told.asked.double.url);
  // Both reach the page before it is left.
  const box = await approve(page).boundingBox();
  const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
  await Promise.all([page.touchscreen.tap(x, y), page.touchscreen.tap(x, y)]);
  await page.waitForFunction(() => document.querySelector("h1")?.innerText.startsWith("Approved"));
  // And once more from a page that was open already, as with the back button.
  await page.goBack();
  if (await approve(page).isVisible()) {
    await approve(page).tap();
    await page.waitForFunction(() => document.querySelector("h1")?.innerText.startsWith("Approved"));
  }
  equal(await title(page), "Approved: $0.25", "after a double tap");
}

async function stale(page) {
  // Two windows show the same question; the second one is told what the first one did.
  const second = await page.context().newPage();
  second.complaints = [];
  await page.goto(told.asked.grant.url);
  await second.goto(told.asked.grant.url);
  await page.locator("summary").tap();
  await page.getByLabel("Up to, in US dollars, this purchase included").fill("0.01");
  await button(page, "Review").tap();
  await page.waitForSelector("#cap-error");
  await look("a grant that is too small", page);
  await page.getByLabel("Up to, in US dollars, this purchase included").fill("$5.00");
  await page.getByLabel("For", { exact: true }).selectOption("86400");
  await button(page, "Review").tap();
  await page.getByRole("heading", { name: "Grant $5.00?" }).waitFor();
  await look("a grant", page);
  await button(page, "Grant $5.00 and approve").tap();
  await page.waitForFunction(() => document.querySelector("h1")?.innerText.startsWith("Approved"));
  await look("granted", page);
  await approve(second).tap();
  await second.waitForSelector("[role=alert]");
  check((await second.locator("[role=alert]").innerText()).includes("already approved"), "the second window is told");
  await look("answered twice", second);
  await second.close();
}

async function several(page) {
  await page.goto(`${told.url}/approvals`);
  await look("the list", page);
  await button(page, "Approve chosen, once each").tap();
  await page.waitForSelector("[role=alert]");
  await look("nothing chosen", page);
  for (const name of ["many-1", "many-2"]) await page.locator(`input[id="${told.asked[name].id}"]`).tap();
  await button(page, "Approve chosen, once each").tap();
  await page.waitForFunction(() => document.querySelector("h1")?.innerText.startsWith("2"));
  equal(await title(page), "2 approved", "several at once");
  await look("several answered", page);
}

async function hostile(page) {
  await page.goto(told.asked.hostile.url);
  equal(await page.locator("img").count(), 0, "a name runs as markup");
  check((await page.locator("main").innerText()).includes("<img src=x onerror=alert(1)>"), "a name is text");
  await look("a hostile name", page);
  await page.goto(told.asked.pause.url);
  await button(page, "Deny and pause dev agent").tap();
  await page.waitForFunction(() => document.querySelector("h1")?.innerText.startsWith("Denied"));
  await look("denied and paused", page);
}

// Keys alone: everything is reached, and seen to be.
async function keyboard(page) {
  await page.goto(told.asked.look.url);
  const reached = new Set();
  for (let n = 0; n < 12; n += 1) {
    await page.keyboard.press("Tab");
    const now = await page.evaluate(() => {
      const one = document.activeElement;
      const style = getComputedStyle(one);
      return { text: one.innerText?.trim() ?? "", line: style.outlineStyle, width: parseFloat(style.outlineWidth) };
    });
    if (now.text && now.text !== "") {
      reached.add(now.text);
      if (now.text.length < 60) check(now.line !== "none" && now.width >= 2, `focus on ${now.text} is seen`);
    }
  }
  for (const wanted of ["Approve $0.25 once", "Deny", "Let it spend more without asking"]) {
    check(reached.has(wanted), `${wanted} is reached by keys: ${[...reached].join(", ").slice(0, 300)}`);
  }
}

async function withoutScript() {
  const page = await phone({ javaScriptEnabled: false });
  await signIn(page, told.plain_link);
  for (const [name, label, wanted] of [
    ["plain-yes", "Approve $0.25 once", "Approved: $0.25"],
    ["plain-no", "Deny", "Denied: $0.25"],
  ]) {
    await page.goto(told.asked[name].url);
    await button(page, label).tap();
    await page.getByRole("heading", { name: wanted, exact: true }).waitFor();
    equal(await title(page), wanted, `${name} without script`);
  }
  await page.context().close();
}

async function strangers(proof) {
  const page = await phone();
  await signIn(page, told.stranger_link);
  await look("an empty list", page);
  const answer = await page.goto(told.asked.look.url);
  equal(answer.status(), 404, "somebody else's question");
  check(!(await page.content()).includes("0.25"), "nothing of the purchase is shown");
  await look("somebody else's question", page);
  // Nor with the form that its owner was shown.
  const posted = await page.context().request.post(told.asked.look.url, {
    form: { form: proof, version: "1", decision: "approve" },
    headers: { "sec-fetch-site": "same-origin" },
  });
  equal(posted.status(), 401, "the owner's form from another session");
  await page.context().close();
}

async function tooLate() {
  const page = await phone();
  await signIn(page, told.late_link);
  let status = 0;
  for (let n = 0; n < 100 && status !== 410; n += 1) status = (await page.goto(told.late.url)).status();
  equal(status, 410, "an expired question");
  await look("an expired question", page);
  await page.context().close();
}

async function signOut(page) {
  await page.goto(`${told.url}/approvals`);
  await button(page, "Sign out").tap();
  await page.getByRole("heading", { name: "Signed out" }).waitFor();
  await look("signed out", page);
  equal((await page.goto(told.asked.look.url)).status(), 401, "after signing out");
}

try {
  await controls();
  await nobody();
  await signedOut();
  const page = await phone();
  await signIn(page, told.link);
  await twoTaps(page);
  await doubleTap(page);
  await stale(page);
  await several(page);
  await keyboard(page);
  await page.goto(told.asked.look.url);
  await strangers(await page.locator("main input[name=form]").first().inputValue());
  await withoutScript();
  await tooLate();
  await hostile(page);
  await signOut(page);
} catch (error) {
  check(false, `it goes on to the end: ${error}`);
} finally {
  await browser.close();
}
console.log(`browser: ${passed} passed, ${failed} failed; ${looks} pages looked at in both schemes`);
process.exit(failed === 0 && looks > 15 ? 0 : 1);
