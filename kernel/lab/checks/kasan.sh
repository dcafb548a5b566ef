#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# The checks under pressure again, in a kernel with KASAN (vmalloc too) and kmemleak. An emulated
# KASAN kernel is slow: SECONDS_OF_LOAD is for each.
. kernel/lab/checks/host/common.bash
kernel=$(debug_kernel kasan)
seconds=${SECONDS_OF_LOAD:-30}
export KIND=kasan PATIENCE=900
for check in ${KASAN_CHECKS:-boot-off steady switch three tiny move groups}; do
	say "kasan: $check"
	memory=512 parameters=() threads=multi
	case $check in
	boot-off) parameters=(lru_cast=0) ;;
	# As in switch.sh and three.sh.
	switch | three) threads=single ;;
	move) memory=1280 parameters=(numa=fake=2 movablecore=768M) ;;
	groups) parameters=(groups=150 numa=fake=2) ;;
	esac
	TCG_THREADS=${TCG_THREADS:-$threads} MEM=$memory \
		boot_check "$kernel" "$check" "$seconds" "${parameters[@]}"
done
