# How the scenarios call the product; every function leaves the product's exit code in place. PRODUCT is the path of `tier`.
p_inspect()  { "$PRODUCT" inspect "$1"; }                       # list tensors and experts, read no data
p_verify()   { "$PRODUCT" verify "$1" --json; }                 # read all data; the text tells a time, the object does not
p_prefetch() { "$PRODUCT" warm "$1" --layer "$2" --experts "$3"; }
p_evict()    { "$PRODUCT" evict "$1" --layer "$2" --experts "$3"; }
p_lock()     { "$PRODUCT" lock "$1" --report "$2" "${@:3}"; }   # lock the dense part, write a JSON report, exit
p_touch()    { "$PRODUCT" touch "$1" --seconds "$2"; }          # keep reading experts through the mapping
p_read()     { "$PRODUCT" cat "$1" --tensor "$2" "${@:3}"; }    # raw bytes of a tensor on stdout
p_bench()    { "$PRODUCT" touch "$1" --cold --seconds 1; }
p_env()      { "$PRODUCT" doctor; }
T=$(cd "$(dirname "${BASH_SOURCE[0]}")/tools" && pwd)
ok()  { echo "PASS $*"; }
bad() { echo "FAIL $*"; FAILED=1; }
nosig() { if [ "$1" -ge 128 ]; then bad "$2: died from signal $(( $1 - 128 ))"; return 1; fi; }
