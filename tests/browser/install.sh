#!/usr/bin/env bash
# Installs a Chromium for the tests in this folder, on Debian and Ubuntu, unless there is one.
set -euo pipefail
for name in chromium chromium-browser google-chrome google-chrome-stable; do
    if command -v "$name" > /dev/null; then exit 0; fi
done
if ! command -v apt-get > /dev/null; then
    echo "install.sh: no Chromium, and no apt-get to install it with: tests/browser needs one on the PATH." >&2
    exit 1
fi
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo --non-interactive "$@"; fi; }
export DEBIAN_FRONTEND=noninteractive
as_root apt-get update -qq
as_root apt-get install -qq --yes --no-install-recommends chromium fonts-dejavu-core fonts-noto-color-emoji > /dev/null
