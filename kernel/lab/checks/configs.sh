#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# Configurations that nobody boots: without MGLRU, cgroups, swap and huge pages CAST and what
# calls it build; without CAST they are the same code as of the tree without the patch. WHOLE=1
# takes all of mm/ and fs/ instead of the objects that the hooks and their headers reach.
. kernel/lab/checks/host/common.bash

reached=(mm/{compaction,filemap,gup,madvise,memory,migrate,mlock,mmap,mmu_gather,mprotect}.o
	mm/{mremap,page-writeback,page_alloc,pgtable-generic,readahead,rmap,swap,vmscan}.o
	mm/{vmstat,workingset,mmzone}.o fs/{mpage,splice}.o fs/proc/task_mmu.o)
cgroups=mm/memcontrol.o
huge="mm/huge_memory.o mm/khugepaged.o"
cast=mm/lru_cast/
if [ "${WHOLE:-}" = 1 ]; then
	reached=(mm/ fs/) cgroups='' huge='' cast=''
fi

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
	[ "$same" -ge 26 ] || die "only $same objects to compare"
	echo "OK without LRU_CAST: $same objects of mm/ and fs/ are the same, $differ differ"
	[ "$differ" = 0 ]
}

build cast no-cast "${reached[*]} $cgroups $huge" LRU_CAST
build stock no-cast "${reached[*]} $cgroups $huge"
same_objects "$LAB/build/stock-no-cast" "$LAB/build/cast-no-cast"
build cast no-gen "${reached[*]} $cgroups $huge $cast" LRU_GEN LRU_GEN_WALKS_MMU
echo "OK builds without LRU_GEN"
build cast no-memcg "${reached[*]} $huge $cast" MEMCG
echo "OK builds without MEMCG"
build cast no-swap "${reached[*]} $cgroups $huge $cast" SWAP ZRAM ZSMALLOC
echo "OK builds without SWAP"
build cast no-thp "${reached[*]} $cgroups $cast" TRANSPARENT_HUGEPAGE
echo "OK builds without TRANSPARENT_HUGEPAGE"
