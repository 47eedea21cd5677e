#!/usr/bin/env bash
# Installs the browsers that the tests in this folder need, on Debian and Ubuntu: a Chromium and a Firefox, unless there
# is one of each.
set -euo pipefail
has() { for name in "$@"; do if command -v "$name" > /dev/null; then return 0; fi; done; return 1; }
missing=()
has chromium chromium-browser google-chrome google-chrome-stable || missing+=(chromium)
has firefox-esr firefox || missing+=(firefox-esr)
if [ ${#missing[@]} = 0 ]; then exit 0; fi
if ! command -v apt-get > /dev/null; then
    echo "install.sh: no ${missing[*]}, and no apt-get to install it with: tests/browser needs it on the PATH." >&2
    exit 1
fi
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo --non-interactive "$@"; fi; }
export DEBIAN_FRONTEND=noninteractive
as_root apt-get update -qq
as_root apt-get install -qq --yes --no-install-recommends "${missing[@]}" fonts-dejavu-core fonts-noto-color-emoji > /dev/null
