"""PyPI `mcp` 2.x, in the era it is told; what it walks is what road.mjs walks."""

import asyncio
import hashlib
import json
import os
import sys

import httpx2
import mcp
import mcp.types as types
from mcp.client.streamable_http import streamable_http_client

TOOLS = ["paid_fetch", "quote", "tab_status", "approval_status", "verify_receipt"]
DOOR, KEY, SHOP, NAME = (os.environ[name] for name in ("DOOR", "KEY", "SHOP", "NAME"))
MODE = sys.argv[1]

passed, failed = 0, []


def check(good, what):
    global passed
    if good:
        passed += 1
    else:
        failed.append(what)


def approve(approval):
    print(json.dumps({"approval": approval}), flush=True)


def client(http, **more):
    if DOOR == "stdio":
        server = mcp.StdioServerParameters(
            command=os.environ["EARNEST_BIN"], args=["mcp"], env=dict(os.environ)
        )
    else:
        server = streamable_http_client(DOOR, http_client=http)
    return mcp.Client(server, mode=MODE, **more)


async def walk(agent):
    def fetch(path, what, **more):
        return agent.call_tool(
            "paid_fetch",
            {"url": SHOP + path, "max_price": "$0.50", "request_id": f"{NAME}-{what}", **more},
        )

    listed = [tool.name for tool in (await agent.list_tools()).tools]
    check(listed == TOOLS, f"the tools, in their order: {listed}")
    quote = (await agent.call_tool("quote", {"url": f"{SHOP}/weather"})).structured_content
    check((quote["status"], quote["amount_micros"]) == ("priced", 20000), f"quote: {quote}")

    first = await fetch("/weather", "weather")
    bought = first.structured_content
    check((bought["status"], bought.get("body")) == ("paid", "it rains\n"), f"paid_fetch: {bought}")
    check("$0.02" in first.content[0].text, f"a sentence with the amount: {first.content[0].text}")
    again = (await fetch("/weather", "weather")).structured_content
    check(again["purchase"] == bought["purchase"], "the same id, the same purchase")

    asked = (await fetch("/dear", "dear")).structured_content
    check(asked["status"] == "approval_required", f"above the threshold: {asked}")
    approve(asked["approval_id"])
    answer = {}
    for _ in range(3):
        if answer.get("status") == "approved":
            break
        args = {"approval_id": asked["approval_id"], "wait_s": 25}
        answer = (await agent.call_tool("approval_status", args)).structured_content
    check(answer.get("status") == "approved", f"the owner's answer: {answer}")
    dear = (await fetch("/dear", "dear")).structured_content
    check((dear["status"], dear.get("body")) == ("paid", "dear\n"), f"approved: {dear}")

    big = (await fetch("/big", "big")).structured_content
    text = (await agent.read_resource(big["body_uri"])).contents[0].text
    digest = hashlib.sha256(text.encode()).hexdigest()
    check(digest == big["body_sha256"], "a large body, by its digest")

    try:
        await agent.call_tool("paid_fetch", {"url": f"{SHOP}/weather", "max_price": "$1"})
        check(False, "a call without request_id is taken")
    except mcp.MCPError as error:
        check(error.code == -32602, f"a call without request_id: {error!r}")
    unfit = await fetch("/weather", "ftp", url="ftp://a.example/")
    check(unfit.is_error and unfit.structured_content["code"] == "url_invalid", f"a URL that is none: {unfit}")

    try:
        await asyncio.wait_for(fetch("/slow", "slow"), 0.5)
        check(False, "a call can be given up")
    except asyncio.TimeoutError:
        check(True, "a call can be given up")
    slow = (await fetch("/slow", "slow")).structured_content
    check((slow["status"], slow.get("body")) == ("paid", "slow\n"), f"after giving up: {slow}")

    heard = []

    async def hear(progress, total, message):
        heard.append(progress)

    args = {"url": f"{SHOP}/slower", "max_price": "$0.50", "request_id": f"{NAME}-slower"}
    slower = await agent.call_tool("paid_fetch", args, progress_callback=hear)
    check(slower.structured_content["status"] == "paid", f"a slower seller: {slower}")
    check(heard == [5.0], f"progress after 5 s: {heard}")
    tab = (await agent.call_tool("tab_status", {})).structured_content
    check(tab["status"] == "open" and tab["waiting_request_ids"] == [], f"the tab: {tab}")


async def walk_asked(http):
    opened = []

    async def show(context, params):
        opened.append(params.url)
        approve(params.url.rsplit("/", 1)[1])
        return types.ElicitResult(action="accept")

    async with client(http, elicitation_callback=show) as agent:
        args = {"url": f"{SHOP}/dear", "max_price": "$0.50", "request_id": f"{NAME}-asked", "wait_s": 25}
        bought = (await agent.call_tool("paid_fetch", args)).structured_content
        check(bought["status"] == "paid", f"asked through the client: {bought}")
        check(len(opened) == 1 and "/approvals/apr_" in opened[0], f"the address: {opened}")


async def main():
    headers = {"Authorization": f"Bearer {KEY}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http:
        async with client(http) as agent:
            await walk(agent)
        # Over HTTP the era with a handshake has no way to ask without a session.
        if DOOR == "stdio" or MODE != "legacy":
            await walk_asked(http)
    print(json.dumps({"passed": passed, "failed": failed}), flush=True)


asyncio.run(main())
