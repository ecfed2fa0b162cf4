#!/bin/sh
# esbuild as worker-build calls it, in the folder of its output. wasm-bindgen carries over only the JavaScript module that
# the crate names; what that module imports lies beside it in the crate and is put beside it here too.
set -eu
for module in snippets/*/extensions; do
  [ -d "$module" ] && cp -R "$AGENTDO_CRATE/extensions/." "$module/"
done
exec "$AGENTDO_ROOT/node_modules/.bin/esbuild" "$@"
