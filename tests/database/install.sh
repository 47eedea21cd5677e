#!/usr/bin/env bash
# Installs the PostgreSQL server that the tests start for themselves, from the packages of Debian or Ubuntu. Without it
# the tests that need one skip.
set -uo pipefail
if compgen -G "/usr/lib/postgresql/*/bin/postgres" > /dev/null || command -v postgres > /dev/null; then
    exit 0
fi
as_root=()
if [ "$(id -u)" != 0 ]; then
    as_root=(sudo -n)
fi
export DEBIAN_FRONTEND=noninteractive
# The package would create a cluster and start it, which nothing here uses.
if "${as_root[@]}" apt-get update -q &&
    "${as_root[@]}" apt-get install -q -y --no-install-recommends postgresql-common &&
    "${as_root[@]}" sed -i 's/^#\?create_main_cluster.*/create_main_cluster = false/' /etc/postgresql-common/createcluster.conf &&
    "${as_root[@]}" apt-get install -q -y --no-install-recommends postgresql; then
    exit 0
fi
echo "install.sh: PostgreSQL cannot be installed: the tests of it will skip. They need Debian's package postgresql." >&2
exit 1
