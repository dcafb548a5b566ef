#!/usr/bin/env bash
# Captures the bundled model's traces again, each domain from a prompt of its own. The context of
# the model holds 1,024 tokens; at its usual temperature of 0.7 so small a model repeats itself
# before they are full. Writes the same bytes wherever it runs.
set -euo pipefail
cd "$(dirname "$0")/../../.."
tier() { cargo run --quiet --release --locked -- "$@" </dev/null; }
capture() { # DOMAIN SEED PROMPT
  tier capture "$3" --seed "$2" --temperature 1 --top-p 1 --max-tokens 1008 --ignore-eos --json \
    --out "crates/router-trace/traces/tiny-moe-$1.rtc" >/dev/null
}
capture code 1 $'/// Reads the next record.\npub fn'
capture fiction 2 $'It was late in the evening when the'
capture math 3 $'Question: A farmer has 12 cows and buys'
capture systems 4 $'The page cache keeps recently read'
