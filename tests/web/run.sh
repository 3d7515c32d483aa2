#!/usr/bin/env bash
# Tests the web page in headless Chromium, on a fresh Debian machine too. The server is target/release/lily, or $LILY_BIN.
# Exit code 3: Chromium could not be had.
set -euo pipefail
cd "$(dirname "$0")/../.."

browser() { command -v chromium || command -v chromium-browser || command -v google-chrome; }

if ! browser >/dev/null; then
  log="$(mktemp)"
  if ! { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    echo "there is no Chromium, and Debian's packages gave none" >&2
    exit 3
  fi
fi

environment="$(mktemp -d)"
trap 'rm -rf "$environment"' EXIT
python3 -m venv "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check -r tests/web/requirements.txt
status=0
CHROMIUM="$(browser)" "$environment/bin/python" -m pytest -q tests/web "$@" || status=$?
# 3 is ours; pytest's own 3 is a fault within it.
((status != 3)) || status=70
exit "$status"
