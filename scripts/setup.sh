#!/bin/sh
# Installs what building and testing need, once: the Rust target, the npm tools of the lock file, and two cargo tools in a
# cache outside the checkout. Says nothing and takes a moment when all is there. Two may run at once.
set -eu
cd "$(dirname "$0")/.."
. scripts/env.sh

fail() {
  echo "setup: $1" >&2
  exit 1
}

need() { # command, how to get it
  command -v "$1" >/dev/null 2>&1 || fail "\`$1\` is missing. $2"
}

need rustup "Install Rust from https://rustup.rs, then run this again."
need cargo "Install Rust from https://rustup.rs, then run this again."
need cc "Install a C compiler (Debian: apt-get install build-essential; macOS: xcode-select --install): Rust links with it, and the tests build SQLite."
need node "Install Node.js 20 or later (https://nodejs.org); the tools then bring their own Node 22."
need npm "Install npm; it comes with Node.js (https://nodejs.org)."

npm_wanted() {
  cksum package.json package-lock.json
  uname -sm
}

npm_ready() {
  [ -x node_modules/.bin/node ] && [ -x node_modules/.bin/wrangler ] &&
    [ "$(cat node_modules/.agentdo-setup 2>/dev/null)" = "$(npm_wanted)" ]
}

target_ready() {
  rustup target list --installed 2>/dev/null | grep -qx wasm32-unknown-unknown
}

tool_ready() { # program, version
  [ -x "$1" ] && "$1" --version 2>/dev/null | grep -qw "$2"
}

all_ready() {
  target_ready && npm_ready && tool_ready "$WORKER_BUILD" "$WORKER_BUILD_VERSION" &&
    tool_ready "$WASM_BINDGEN_BIN" "$WASM_BINDGEN_VERSION"
}

all_ready && exit 0

# One at a time on this machine. flock where there is one, else a folder that names its owner.
mkdir -p "$AGENTDO_TOOLS"
if command -v flock >/dev/null 2>&1; then
  exec 9>"$AGENTDO_TOOLS/.lock"
  flock -n 9 || {
    echo "setup: another set-up is running; waiting for it"
    flock 9
  }
else
  lock=$AGENTDO_TOOLS/.lock.d
  said=
  until mkdir "$lock" 2>/dev/null; do
    owner=$(cat "$lock/pid" 2>/dev/null || true)
    if [ -n "$owner" ] && ! kill -0 "$owner" 2>/dev/null; then
      rm -rf "$lock" # its owner died
      continue
    fi
    [ -n "$said" ] || echo "setup: another set-up is running; waiting for it"
    said=1
    sleep 1
  done
  echo $$ >"$lock/pid"
  trap 'rm -rf "$lock"' EXIT
  trap 'exit 1' HUP INT TERM
fi

if ! target_ready; then
  echo "setup: adding the Rust target wasm32-unknown-unknown"
  rustup target add wasm32-unknown-unknown || fail "rustup could not add wasm32-unknown-unknown (see above)."
fi

if ! npm_ready; then
  echo "setup: npm ci (wrangler, Node 22, binaryen, esbuild)"
  # Install scripts are how `node` and `workerd` fetch the program for this machine.
  npm ci --ignore-scripts=false --loglevel=error 9>&- || fail "npm ci failed (see above)."
  [ "$(node_modules/.bin/node --version)" = "v$(sed -n 's/.*"node": "\([0-9][0-9.]*\)".*/\1/p' package.json)" ] ||
    fail "the npm package \`node\` did not install its program; run \`npm rebuild node\` and look at its output."
  npm_wanted >node_modules/.agentdo-setup
fi

cargo_tool() { # crate, version, program
  tool_ready "$3" "$2" && return 0
  root=$(dirname "$(dirname "$3")")
  echo "setup: cargo install $1@$2 (a few minutes, once)"
  # Less optimised than a plain release: half the time to install, and no difference to be felt in use.
  (
    unset RUSTFLAGS CARGO_BUILD_TARGET CARGO_ENCODED_RUSTFLAGS
    CARGO_TARGET_DIR=$AGENTDO_TOOLS/.build-$1 CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off \
      CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
      cargo install "$1@$2" --locked --force --root "$root" 9>&-
  ) || fail "cargo install $1@$2 failed (see above)."
  rm -rf "$AGENTDO_TOOLS/.build-$1"
  tool_ready "$3" "$2" || fail "$3 is not $1 $2 after its installation."
}

cargo_tool worker-build "$WORKER_BUILD_VERSION" "$WORKER_BUILD"
cargo_tool wasm-bindgen-cli "$WASM_BINDGEN_VERSION" "$WASM_BINDGEN_BIN"
echo "setup: done"
