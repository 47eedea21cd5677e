#!/usr/bin/env bash
# Installs the servers of object stores that the tests talk to, beside the environment: fake-gcs-server with Go, Azurite
# with npm. moto's server belongs to the group `test`. A server that cannot be installed is named, and its tests skip.
set -uo pipefail
folder="${DET_KERAS_TEST_SERVERS:-${XDG_CACHE_HOME:-$HOME/.cache}/det_keras-test-servers}"
mkdir -p "$folder"
status=0
if [ ! -x "$folder/bin/fake-gcs-server" ]; then
    if ! GOBIN="$folder/bin" go install github.com/fsouza/fake-gcs-server@v1.56.1; then
        echo "install.sh: fake-gcs-server cannot be installed: the tests of GCS will skip. They need Go." >&2
        status=1
    fi
fi
if [ ! -x "$folder/node_modules/.bin/azurite-blob" ]; then
    if ! npm install --silent --no-audit --no-fund --prefix "$folder" azurite@3.37.0; then
        echo "install.sh: Azurite cannot be installed: the tests of Azure will skip. They need Node.js and npm." >&2
        status=1
    fi
fi
exit "$status"
