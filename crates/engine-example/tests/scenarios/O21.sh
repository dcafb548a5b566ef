#!/bin/bash
# O21 600 per-expert files with 256 descriptors, soft only and hard
. "$(dirname "$0")/adaptor.sh"; W=$(mktemp -d); D=$W/per_expert; mkdir "$D"; python3 "$T/manyfiles.py" "$D"
for how in soft hard; do
  [ $how = soft ] && L=256:4096 || L=256:256
  out=$(prlimit --nofile=$L bash -c '. '"$(dirname "$0")"'/adaptor.sh; p_verify '"$D" 2>&1); rc=$?
  nosig $rc $how; if [ $rc = 0 ]; then ok "$how: all 600 files served"; elif [ $how = hard ] && echo "$out" | grep -qiE 'RLIMIT_NOFILE|ulimit -n|open files' && echo "$out" | grep -q 256; then bad "$how: refused with a clear message (second best: a mapping needs no open descriptor)"; else bad "$how: rc $rc: $(echo "$out" | head -c 200)"; fi
done; rm -rf "$W"; exit ${FAILED:-0}
