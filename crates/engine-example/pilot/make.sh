#!/usr/bin/env bash
# Writes the texts that `tier pilot fit` and `tier pilot score` read by default: the bundled
# model's own, six a domain, sampled at temperature 1 so that it does not repeat itself.
# Then: tier pilot fit --depth 1,2
set -euo pipefail
cd "$(dirname "$0")"
TIER=${TIER:-tier}
seed=100
text() { # DOMAIN PROMPT
  seed=$((seed + 1))
  "$TIER" generate "$2" --seed $seed --temperature 1 --top-p 1 --top-k 0 --max-tokens 900 --json \
    --ignore-eos </dev/null |
    python3 -c 'import json,sys; r=json.load(sys.stdin); sys.stdout.write(r["prompt"]+r["text"])' \
      >"$1-$seed.txt"
}
text code $'/// Writes a record.\npub fn'
text code $'def read_config(path):\n    """'
text code 'func (s *Server) '
text code $'class Parser:\n    def __init__'
text code 'impl<T> Iterator for'
text code $'import os\n'
text fiction 'It was a fine morning in the spring, and'
text fiction '[Enter the King and '
text fiction 'And the LORD said unto'
text fiction 'The economy of the country'
text fiction 'She was not a woman of many words'
text fiction '<|im_start|>user
What is the capital of Norway?<|im_end|>
<|im_start|>assistant
'
text math 'Problem. Find the greatest common divisor of'
text math 'Problem. Compute 33 * 47.'
text math 'Theorem. Let G be a finite group and'
text math 'Define the class of all'
text math '>>> from sympy import'
text math 'The Bessel function of order n is'
text systems 'SELECT is used to'
text systems 'The server writes the log file to disk'
text systems 'The following directive'
text systems 'An LLVM pass is'
text systems 'In Rust, ownership means that'
text systems 'A transaction is committed when'
