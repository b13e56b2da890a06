#!/bin/sh
# PayPal's own clients against a running simulator: run.sh BASE_URL
#
# Installs them into ignored folders beside this file, then runs every judge. Stops with a
# non-zero status at the first disagreement. The clock of the simulator is moved forward by some
# days, so give it one of its own:
#
#   cargo run -p paypal-sim --example serve
set -eu

if [ $# -ne 1 ]; then
    echo "usage: $0 BASE_URL" >&2
    exit 2
fi
PAYPAL_SIM_URL=$1
export PAYPAL_SIM_URL
cd "$(dirname "$0")"

if ! cmp -s package-lock.json node_modules/.installed; then
    npm ci --no-fund --no-audit --loglevel=error >&2
    cp package-lock.json node_modules/.installed
fi
if ! cmp -s requirements.txt .venv/installed; then
    python3 -m venv --clear .venv
    .venv/bin/pip install --quiet --disable-pip-version-check -r requirements.txt >&2
    cp requirements.txt .venv/installed
fi

node server-sdk.mjs
.venv/bin/python server_sdk.py
node agent-toolkit.mjs
.venv/bin/python webhooks.py
# Last, so that there is something in the journal.
.venv/bin/python openapi.py
