# Sourced by every command that builds or runs (`. scripts/env.sh`, from the folder of the checkout). Sets where the tools
# are, so that nothing is fetched behind one's back and Node 22 comes before the machine's own.
# shellcheck shell=sh

if [ -n "${BASH_SOURCE:-}" ]; then
  # shellcheck disable=SC3028,SC3054
  AGENTDO_ROOT=$(cd "$(dirname "${BASH_SOURCE}")/.." && pwd)
else
  AGENTDO_ROOT=$(pwd)
fi
if [ ! -f "$AGENTDO_ROOT/scripts/env.sh" ]; then
  echo "scripts/env.sh: run this in the folder of the checkout" >&2
  return 1
fi

AGENTDO_TOOLS=${AGENTDO_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/agentdo/tools}
WORKER_BUILD_VERSION=0.8.7
WASM_BINDGEN_VERSION=0.2.129
WORKER_BUILD=$AGENTDO_TOOLS/worker-build-$WORKER_BUILD_VERSION/bin/worker-build

# worker-build takes these instead of downloading its own.
WASM_BINDGEN_BIN=$AGENTDO_TOOLS/wasm-bindgen-$WASM_BINDGEN_VERSION/bin/wasm-bindgen
WASM_OPT_BIN=$AGENTDO_ROOT/node_modules/.bin/wasm-opt
ESBUILD_BIN=$AGENTDO_ROOT/scripts/esbuild.sh

PATH=$AGENTDO_ROOT/node_modules/.bin:$PATH
WRANGLER_SEND_METRICS=false

export AGENTDO_ROOT AGENTDO_TOOLS WORKER_BUILD WORKER_BUILD_VERSION WASM_BINDGEN_VERSION
export WASM_BINDGEN_BIN WASM_OPT_BIN ESBUILD_BIN PATH WRANGLER_SEND_METRICS
