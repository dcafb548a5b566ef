#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# The checks under pressure again, in a kernel with KASAN (vmalloc too) and kmemleak. An emulated
# KASAN kernel is slow: SECONDS_OF_LOAD is for each.
. kernel/lab/checks/host/common.bash
kernel=$(debug_kernel kasan)
seconds=${SECONDS_OF_LOAD:-30}
export KIND=kasan PATIENCE=900
for check in ${KASAN_CHECKS:-boot-off steady switch three tiny}; do
	say "kasan: $check"
	case $check in boot-off) parameter=lru_cast=0 ;; *) parameter= ;; esac
	# As in switch.sh and three.sh.
	case $check in switch | three) threads=single ;; *) threads=multi ;; esac
	TCG_THREADS=${TCG_THREADS:-$threads} MEM=512 boot_check "$kernel" "$check" "$seconds" $parameter
done
say "kasan: move"
MEM=1280 boot_check "$kernel" move "$seconds" numa=fake=2 movablecore=768M
say "kasan: groups"
MEM=512 boot_check "$kernel" groups "$seconds" groups=150 numa=fake=2
