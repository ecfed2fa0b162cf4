#!/bin/sh
# Builds a Worker: `scripts/build.sh [FOLDER]`, the folder of a crate (default: this repository) whose `build/` it fills.
# AGENTDO_SKIP_BUILD=1 does nothing (for `wrangler dev` on what is already built), AGENTDO_PROFILE=dev builds fast and large.
set -eu
[ "${AGENTDO_SKIP_BUILD:-}" = 1 ] && exit 0

cd "$(dirname "$0")/.."
. scripts/env.sh
folder=${1:-.}
profile=${AGENTDO_PROFILE:-release}
[ -x "$WORKER_BUILD" ] && [ -x "$WASM_OPT_BIN" ] || scripts/setup.sh

# Nothing to do when no source is newer than the last build (wasm-opt alone would take a while).
stamp=$folder/build/.agentdo-$profile
sources="src extensions docs Cargo.toml Cargo.lock rust-toolchain.toml scripts/build.sh scripts/env.sh scripts/esbuild.sh"
[ "$folder" = . ] || sources="$sources $folder/src $folder/Cargo.toml $folder/Cargo.lock $folder/extensions"
present=
for source in $sources; do
  [ -e "$source" ] && present="$present $source"
done
# shellcheck disable=SC2086
if [ -f "$stamp" ] && [ -f "$folder/build/index.js" ] && [ -z "$(find $present -newer "$stamp" -print | head -n 1)" ]; then
  exit 0
fi

# Crates that embed this one share its compiled dependencies.
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$AGENTDO_ROOT/target}
export CARGO_TARGET_DIR
features=
[ "$folder" = . ] && features="--features standalone"

rm -f "$folder"/build/.agentdo-*
mkdir -p "$folder/build" "$CARGO_TARGET_DIR"
started=$CARGO_TARGET_DIR/.build-started-$$
: >"$started" # A file edited during the build must count as newer.
AGENTDO_CRATE=$(cd "$folder" && pwd)
export AGENTDO_CRATE
# shellcheck disable=SC2086
(cd "$folder" && "$WORKER_BUILD" "--$profile" . $features) || {
  rm -f "$started"
  echo "build: worker-build failed in $folder (see above)" >&2
  exit 1
}
# worker-build keeps the name section, a fifth of the size. A `dev` build keeps it still, for stack traces with names.
if [ "$profile" = release ]; then
  wasm=$folder/build/index_bg.wasm
  "$WASM_OPT_BIN" --all-features --strip-debug "$wasm" -o "$wasm.stripped" && mv "$wasm.stripped" "$wasm"
fi
mv "$started" "$stamp"
