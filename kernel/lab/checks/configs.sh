#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# Configurations that nobody boots: mm/ builds without MGLRU, cgroups, swap and huge pages, and
# mm/ and fs/ without CAST; then they are the same code as of the tree without the patch.
. kernel/lab/checks/host/common.bash

BASE=(kernel/lab/configs/common.config kernel/lab/configs/x86.config)

build() { # TREE NAME "TARGETS" OPTION...: turns options off and builds
	local tree=$LAB/src/$1 out=$LAB/build/$1-$2 targets=$3 fragment option
	shift 3
	mkdir -p "$out"
	fragment=$out/off.config
	for option; do echo "# CONFIG_$option is not set"; done >"$fragment"
	kernel_config "$tree" "$out" "${BASE[@]}" "$fragment"
	for option; do
		! grep -q "^CONFIG_$option=y" "$out/.config" || die "$out: $option is on"
	done
	# shellcheck disable=SC2086
	kernel_make "$tree" "$out" $targets >"$out/build.log" 2>&1 || {
		grep -E "error|warning" "$out/build.log" | head -20 >&2
		die "does not build: $out"
	}
	! grep -q "warning" "$out/build.log" || die "warnings: $out/build.log"
}

code() { # OBJECT: what it does; not where its source lay
	objdump -dr --no-show-raw-insn "$1" | sed '1,3d'
	objdump -s -j .data -j .rodata "$1" 2>/dev/null | sed '1,3d'
}

same_objects() { # OUT OUT
	local object same=0 differ=0
	while read -r object; do
		if cmp -s <(code "$1/$object") <(code "$2/$object"); then
			same=$((same + 1))
		else
			differ=$((differ + 1))
			say "differs: $object"
		fi
	done < <(cd "$1" && find mm fs -name '*.o' ! -name 'built-in*' | sort)
	[ "$same" -gt 50 ] || die "only $same objects to compare"
	echo "OK without LRU_CAST: $same objects of mm/ and fs/ are the same, $differ differ"
	[ "$differ" = 0 ]
}

build cast no-cast "mm/ fs/" LRU_CAST
build stock no-cast "mm/ fs/"
same_objects "$LAB/build/stock-no-cast" "$LAB/build/cast-no-cast"
build cast no-gen mm/ LRU_GEN LRU_GEN_WALKS_MMU
echo "OK builds without LRU_GEN"
build cast no-memcg mm/ MEMCG
echo "OK builds without MEMCG"
build cast no-swap mm/ SWAP ZRAM ZSMALLOC
echo "OK builds without SWAP"
build cast no-thp mm/ TRANSPARENT_HUGEPAGE
echo "OK builds without TRANSPARENT_HUGEPAGE"
