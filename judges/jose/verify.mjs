// Asks two verifiers that this project did not write whether a token of Earnest's verifies: npm
// `jose`, and the WebCrypto built into Node. They share no code with Earnest and none with each
// other.
//
//   node verify.mjs --jwks FILE [--voucher FILE] [--receipt FILE]
//   node verify.mjs --self-test
//
// Each token must verify with both, and each altered copy of it must fail with both: a verifier
// that accepts everything would be found out. Ends with 0 when all of that holds.

import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { webcrypto } from "node:crypto";
import * as jose from "jose";

const TYPES = { voucher: "earnest-voucher+jwt", receipt: "earnest-receipt+jwt" };

const decode = (part) => Buffer.from(part, "base64url");
const encode = (bytes) => Buffer.from(bytes).toString("base64url");

/** The key a token names, if the published set has it for that purpose. */
function keyFor(jwks, purpose, header) {
  const key = jwks.keys.find((key) => key.kid === header.kid && key.earnest_for === purpose);
  if (!key) throw new Error(`no ${purpose} key has the id ${header.kid}`);
  return key;
}

/** What any JOSE user would write: algorithm and type fixed by the verifier, keys from the set. */
async function byJose(jwks, purpose, token) {
  const keys = { keys: jwks.keys.filter((key) => key.earnest_for === purpose) };
  const options = { algorithms: ["EdDSA"], typ: TYPES[purpose] };
  // An expired voucher is still a voucher that was signed: its time is judged as of when it lived.
  const { iat } = jose.decodeJwt(token);
  if (Number.isInteger(iat)) options.currentDate = new Date((iat + 1) * 1000);
  const { payload } = await jose.jwtVerify(token, jose.createLocalJWKSet(keys), options);
  return payload;
}

/** The same by hand: header, signature over the first two parts, claims. */
async function byWebCrypto(jwks, purpose, token) {
  const parts = token.split(".");
  if (parts.length !== 3) throw new Error("not three parts");
  const header = JSON.parse(decode(parts[0]));
  if (header.alg !== "EdDSA") throw new Error(`alg ${header.alg}`);
  if (header.typ !== TYPES[purpose]) throw new Error(`typ ${header.typ}`);
  const { kty, crv, x } = keyFor(jwks, purpose, header);
  const algorithm = { name: "Ed25519" };
  const jwk = { kty, crv, x };
  const key = await webcrypto.subtle.importKey("jwk", jwk, algorithm, false, ["verify"]);
  const signed = Buffer.from(`${parts[0]}.${parts[1]}`);
  if (!(await webcrypto.subtle.verify(algorithm, key, decode(parts[2]), signed))) {
    throw new Error("the signature does not verify");
  }
  return JSON.parse(decode(parts[1]));
}

const VERIFIERS = { jose: byJose, webcrypto: byWebCrypto };

/** Copies of a token that must not verify, each by what was done to it. */
function altered(token, purpose, otherToken) {
  const [header, payload, signature] = token.split(".");
  const withHeader = (change) => {
    const json = { ...JSON.parse(decode(header)), ...change };
    return `${encode(JSON.stringify(json))}.${payload}.${signature}`;
  };
  const claims = JSON.parse(decode(payload));
  const amount = "amount_micros" in claims ? "amount_micros" : "captured_micros";
  const richer = { ...claims, [amount]: (claims[amount] ?? 0) + 1 };
  const flip = (text, at) => {
    const bytes = decode(text);
    bytes[at] ^= 1;
    return encode(bytes);
  };
  const other = purpose === "voucher" ? "receipt" : "voucher";
  const copies = {
    "an amount changed": `${header}.${encode(JSON.stringify(richer))}.${signature}`,
    "one bit of the payload": `${header}.${flip(payload, 10)}.${signature}`,
    "one bit of the signature": `${header}.${payload}.${flip(signature, 5)}`,
    "the signature's other half": `${header}.${payload}.${flip(signature, 40)}`,
    "no signature": `${header}.${payload}.`,
    "alg none": withHeader({ alg: "none" }),
    "alg none without a signature": withHeader({ alg: "none" }).replace(/[^.]*$/, ""),
    "alg HS256": withHeader({ alg: "HS256" }),
    "the other type": withHeader({ typ: TYPES[other] }),
    "no type": withHeader({ typ: undefined }),
    "an unknown key": withHeader({ kid: "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA" }),
  };
  if (otherToken) copies["a token of the other purpose"] = otherToken;
  return copies;
}

/** RFC 7638 for an Ed25519 key: the id of a key is the key's own thumbprint. */
async function checkKeySet(jwks, tally) {
  for (const key of jwks.keys) {
    const { kty, crv, x } = key;
    const thumbprint = await jose.calculateJwkThumbprint({ kty, crv, x }, "sha256");
    tally(thumbprint === key.kid, `key ${key.kid}: the id is its RFC 7638 thumbprint`);
    tally(!("d" in key), `key ${key.kid}: no private part is published`);
  }
}

async function checkToken(jwks, purpose, token, otherToken, tally) {
  for (const [name, verify] of Object.entries(VERIFIERS)) {
    const outcome = await verify(jwks, purpose, token).then(
      (claims) => (typeof claims.iss === "string" ? null : "no iss"),
      (error) => error.message,
    );
    tally(outcome === null, `${name}: the ${purpose} verifies${outcome ? ` (${outcome})` : ""}`);
    for (const [what, copy] of Object.entries(altered(token, purpose, otherToken))) {
      const refused = await verify(jwks, purpose, copy).then(
        () => false,
        () => true,
      );
      tally(refused, `${name}: the ${purpose} with ${what} is refused`);
    }
  }
  if (purpose === "voucher") {
    const { iat, exp } = jose.decodeJwt(token);
    tally(exp - iat <= 120, "the voucher lives 120 s at most");
    // Its expiry is one that others see too.
    const late = { algorithms: ["EdDSA"], currentDate: new Date((exp + 1) * 1000) };
    const keys = jose.createLocalJWKSet({ keys: jwks.keys });
    const refused = await jose.jwtVerify(token, keys, late).then(() => false, () => true);
    tally(refused, "jose: the voucher is refused a second after its end");
  }
}

/** Tokens of this file's own making, to see that the checks pass and fail where they should. */
async function selfTest(tally) {
  const pair = async (purpose) => {
    const algorithm = { name: "Ed25519" };
    const made = await webcrypto.subtle.generateKey(algorithm, true, ["sign", "verify"]);
    const { kty, crv, x } = await webcrypto.subtle.exportKey("jwk", made.publicKey);
    const kid = await jose.calculateJwkThumbprint({ kty, crv, x }, "sha256");
    const published = { kty, crv, x, kid, alg: "EdDSA", use: "sig", earnest_for: purpose };
    const sign = async (claims, header = {}) => {
      const head = encode(JSON.stringify({ alg: "EdDSA", typ: TYPES[purpose], kid, ...header }));
      const signed = `${head}.${encode(JSON.stringify(claims))}`;
      const bytes = Buffer.from(signed);
      return `${signed}.${encode(await webcrypto.subtle.sign(algorithm, made.privateKey, bytes))}`;
    };
    return { published, sign };
  };
  const [voucherKey, receiptKey] = [await pair("voucher"), await pair("receipt")];
  const jwks = { keys: [voucherKey.published, receiptKey.published] };
  const iss = "http://127.0.0.1:4020";
  const claims = { iss, iat: 1_800_000_000, exp: 1_800_000_120, amount_micros: 20_000 };
  const voucher = await voucherKey.sign(claims);
  const receipt = await receiptKey.sign({ iss, iat: 1_800_000_000, captured_micros: 950_000 });
  await checkKeySet(jwks, tally);
  await checkToken(jwks, "voucher", voucher, receipt, tally);
  await checkToken(jwks, "receipt", receipt, voucher, tally);

  // What must be noticed: a token signed by nobody known, and one that lives too long.
  const failures = async (set, purpose, token) => {
    let failed = 0;
    await checkToken(set, purpose, token, undefined, (good) => (failed += good ? 0 : 1));
    return failed;
  };
  const strangers = { keys: [(await pair("voucher")).published] };
  tally((await failures(strangers, "voucher", voucher)) > 0, "self-test: a stranger's key is noticed");
  const lasting = await voucherKey.sign({ ...claims, exp: claims.iat + 3600 });
  tally((await failures(jwks, "voucher", lasting)) > 0, "self-test: a long life is noticed");
  const untyped = await voucherKey.sign(claims, { typ: "JWT" });
  tally((await failures(jwks, "voucher", untyped)) > 0, "self-test: another type is noticed");
}

const { values } = parseArgs({
  options: {
    jwks: { type: "string" },
    voucher: { type: "string" },
    receipt: { type: "string" },
    "self-test": { type: "boolean", default: false },
  },
});

const counts = { passed: 0, failed: 0 };
const tally = (good, what) => {
  counts[good ? "passed" : "failed"] += 1;
  if (!good) console.log(`not so: ${what}`);
};

if (values["self-test"]) await selfTest(tally);
if (values.jwks) {
  const jwks = JSON.parse(readFileSync(values.jwks, "utf8"));
  const read = (path) => (path ? readFileSync(path, "utf8").trim() : undefined);
  const tokens = { voucher: read(values.voucher), receipt: read(values.receipt) };
  await checkKeySet(jwks, tally);
  if (tokens.voucher) await checkToken(jwks, "voucher", tokens.voucher, tokens.receipt, tally);
  if (tokens.receipt) await checkToken(jwks, "receipt", tokens.receipt, tokens.voucher, tally);
}

console.log(`jose: ${counts.passed} passed, ${counts.failed} failed`);
process.exitCode = counts.failed === 0 && counts.passed > 0 ? 0 : 1;
