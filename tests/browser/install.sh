#!/usr/bin/env bash
# Installs the browsers that the tests in this folder need, on Debian and Ubuntu: a Chromium and a Firefox, unless there
# is one of each.
set -euo pipefail
has() { for name in "$@"; do if command -v "$name" > /dev/null; then return 0; fi; done; return 1; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo --non-interactive "$@"; fi; }
install() { as_root apt-get install -qq --yes --no-install-recommends "$@" fonts-dejavu-core fonts-noto-color-emoji > /dev/null; }
has_chromium() { has chromium chromium-browser google-chrome google-chrome-stable; }
has_firefox() { has firefox-esr firefox; }
if has_chromium && has_firefox; then exit 0; fi
if ! command -v apt-get > /dev/null; then
    echo "install.sh: tests/browser needs a Chromium and a Firefox on the PATH, and there is no apt-get." >&2
    if has_chromium; then exit 0; else exit 1; fi
fi
export DEBIAN_FRONTEND=noninteractive
as_root apt-get update -qq
has_chromium || install chromium
# Ubuntu has none as a package; the tests that need it are then skipped.
has_firefox || install firefox-esr || echo "install.sh: this system has no package firefox-esr." >&2
