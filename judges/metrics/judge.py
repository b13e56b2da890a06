"""Has Prometheus' own reader for Python read `/metrics` before and after a purchase and a refusal."""

import os
import sys

from prometheus_client.parser import text_string_to_metric_families

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

import earnest  # noqa: E402


def scrape(shop):
    """Samples by name and labels, and families by name."""
    answer = shop.ask("operator", "GET", "/metrics")
    if answer.status != 200:
        raise RuntimeError(f"no figures: {answer}")
    return read(answer.body.decode())


class Refused(Exception):
    """What Prometheus would not take, or take wrongly."""


def read(text):
    """Samples by name and labels, and families by name; nothing may come twice."""
    families, samples = {}, {}
    for family in text_string_to_metric_families(text):
        if family.name in families:
            raise Refused(f"{family.name} comes twice")
        families[family.name] = family
        for sample in family.samples:
            key = (sample.name, *sorted(sample.labels.items()))
            if key in samples:
                raise Refused(f"{key} comes twice")
            samples[key] = sample.value
    return samples, families


def control(tally, text):
    """The same scrape, made wrong, must be refused: or it was not looked at."""
    lines = text.splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if line.startswith("earnest_log_head "))
    read("".join(lines))
    for what, wrong in [
        ("a sample that comes twice", [*lines[: at + 1], lines[at], *lines[at + 1 :]]),
        ("a sample that comes again with another value", [*lines[: at + 1], "earnest_log_head 1\n", *lines[at + 1 :]]),
        ("a family that comes twice", lines + lines),
    ]:
        try:
            read("".join(wrong))
            refused = False
        except Refused:
            refused = True
        tally.check(refused, f"{what} is refused")


def main():
    tally = earnest.Tally("judge metrics")
    with earnest.Programs() as programs:
        shop = earnest.Earnest(programs)
        tally.equal(earnest.http("GET", f"{shop.url}/metrics").status, 401, "without a key")
        tally.equal(shop.ask("owner", "GET", "/metrics").status, 404, "as an owner")
        port = earnest.free_port()
        server = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
        programs.start("http-server", [*server, "--directory", HERE], port)
        public = shop.sell("sell", port, "--price", "GET /run=$0.02", "--price", "GET /judge.py=$9")

        before, families = scrape(shop)
        for name, kind in [
            ("earnest_policy_decisions", "counter"),
            ("earnest_purchases", "counter"),
            ("earnest_ledger_imbalance_micros", "gauge"),
            ("earnest_tab_outstanding_micros", "gauge"),
            ("earnest_approvals_waiting", "gauge"),
            ("earnest_approvals_oldest_wait_seconds", "gauge"),
            ("earnest_intents_unknown", "gauge"),
            ("earnest_webhooks_incoming_lag_seconds", "gauge"),
            ("earnest_webhooks_outgoing_lag_seconds", "gauge"),
            ("earnest_paypal_request_duration_seconds", "histogram"),
            ("earnest_writer_queue_depth", "gauge"),
            ("earnest_writer_batch_units", "histogram"),
            ("earnest_http_requests", "counter"),
            ("earnest_build_info", "gauge"),
        ]:
            family = families.get(name)
            tally.equal(family and family.type, kind, name)
            tally.check(family and family.documentation, f"{name} is explained")

        paid = shop.run("pay", f"{public}/run", "--max-price", "$0.25", "--request-id", "one")
        tally.equal(paid.returncode, 0, f"pay {paid.stderr!r}")
        shop.billed("one")
        dear = shop.run("pay", f"{public}/judge.py", "--max-price", "$9", "--request-id", "two")
        tally.equal(dear.returncode, 5, f"what is too dear {dear.stderr!r}")
        after, _ = scrape(shop)
        control(tally, shop.ask("operator", "GET", "/metrics").body.decode())

        def moved(name, **labels):
            key = (name, *sorted(labels.items()))
            return after.get(key, 0) - before.get(key, 0)

        decisions = "earnest_policy_decisions_total"
        tally.equal(moved(decisions, decision="allow", reason=""), 1, "allowed")
        tally.equal(moved(decisions, decision="deny", reason="per_call_cap"), 1, "denied")
        purchases = "earnest_purchases_total"
        tally.equal(moved(purchases, rail="tab", state="held"), 1, "held")
        tally.equal(moved(purchases, rail="tab", state="billed"), 1, "billed")
        tally.equal(after[("earnest_ledger_imbalance_micros",)], 0, "the imbalance")
        posts = moved("earnest_http_requests_total", method="POST", route="/v1/authorize", status="2xx")
        tally.equal(posts, 1, "authorizes")
    tally.end()


main()
