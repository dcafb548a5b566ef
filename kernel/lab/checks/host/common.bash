# SPDX-License-Identifier: GPL-2.0-only
# What the checks share, on the host. Sourced; LAB is the lab's folder (kernel/lab/run checks
# sets it and has patched its tree by then).
set -euo pipefail
LAB=${LAB:-$PWD/target/kernel-lab}
HERE=kernel/lab/checks
JOBS=${JOBS:-$(nproc)}

say() { printf 'check: %s\n' "$*" >&2; }
die() {
	say "error: $*"
	exit 1
}

# make in a build folder of a tree, with the lab's compiler cache
kernel_make() { # TREE OUT TARGETS...
	local tree=$1 out=$2
	shift 2
	CCACHE_DIR=${CCACHE_DIR:-$LAB/ccache} CCACHE_BASEDIR=$LAB CCACHE_DEPEND=1 CCACHE_NOHASHDIR=1 \
		KBUILD_BUILD_TIMESTAMP=@0 KBUILD_BUILD_USER=lab KBUILD_BUILD_HOST=lab \
		make -s -C "$tree" O="$out" -j"$JOBS" CC="$(command -v ccache || true) gcc" "$@"
}

# allnoconfig plus fragments, made anew only if they changed
kernel_config() { # TREE OUT FRAGMENT...
	local tree=$1 out=$2
	shift 2
	mkdir -p "$out"
	cat "$@" >"$out/fragment.new"
	cmp -s "$out/fragment.new" "$out/fragment" && [ -e "$out/.config" ] && return
	kernel_make "$tree" "$out" KCONFIG_ALLCONFIG="$out/fragment.new" allnoconfig \
		>"$out/config.log" 2>&1 || die "configuration: $out/config.log"
	mv "$out/fragment.new" "$out/fragment"
}

# The kernel that checks itself, of debug.config and the FRAGMENTs over it. Prints where it is.
debug_kernel() { # [FRAGMENT]...
	local tree=$LAB/src/cast out=$LAB/build/cast-x86-${1:-debug} fragment fragments=()
	[ -z "${KERNEL:-}" ] || { echo "$KERNEL"; return; }
	for fragment in debug "$@"; do fragments+=("$HERE/configs/$fragment.config"); done
	kernel_config "$tree" "$out" kernel/lab/configs/common.config kernel/lab/configs/x86.config \
		"${fragments[@]}"
	for fragment in PROVE_LOCKING NUMA MEMORY_HOTREMOVE ${1:+"${1^^}"}; do
		grep -q "^CONFIG_$fragment=y" "$out/.config" || die "$out: no $fragment"
	done
	say "building the ${1:-debug} kernel (all of it: $out/build.log)"
	kernel_make "$tree" "$out" bzImage >"$out/build.log" 2>&1 || {
		grep -E "error|warning" "$out/build.log" | head -20 >&2
		die "the ${1:-debug} kernel does not build"
	}
	echo "$out/arch/x86/boot/bzImage"
}

check_initramfs() { # OUT
	local tree program
	tree=$(mktemp -d)
	mkdir -p "$tree"/{bin,proc,sys,dev,cg,mnt,tmp}
	for program in churn cgroups large mix toggle; do
		musl-gcc -static -O2 -Wall -Wextra -Werror -o "$tree/bin/$program" \
			"$HERE/guest/$program.c" $HERE/guest/common.c
	done
	cp "$(command -v busybox)" "$tree/bin/"
	find $HERE/guest ${EXTRA_CHECKS:-} -type f ! -name '*.[ch]' -exec cp {} "$tree/" \;
	chmod +x "$tree/init"
	(cd "$tree" && find . | sort | cpio -o -H newc --quiet | gzip -1) >"$1"
	rm -rf "$tree"
}

# For checks that switch under pressure. With a thread for each of its CPUs, QEMU goes on running
# code that another CPU has changed ("Oops: int3" where the finished instruction stands). Stock's
# own switch dies of it as well, with CAST off: emulator.sh.
cpus_take_turns() { export TCG_THREADS=${TCG_THREADS:-single}; }

# The machines, in place of the shell that calls them. The console is what they print.
boot_qemu() { # KERNEL SCRATCH [kernel parameters]
	local kernel=$1 scratch=$2
	shift 2
	exec qemu-system-x86_64 \
		-accel "tcg,thread=${TCG_THREADS:-multi}" -cpu max,-erms -smp "${CPUS:-2}" -m "${MEM:-160}" \
		-machine microvm,acpi=off,rtc=on,isa-serial=on,pit=on,pic=on,auto-kernel-cmdline=on \
		-drive "file=$scratch/disk,format=raw,if=none,id=d0,cache=unsafe" \
		-device virtio-blk-device,drive=d0 -nodefaults -no-user-config -display none \
		-no-reboot -serial stdio -monitor none -kernel "$kernel" -initrd "$scratch/initrd" \
		-append "console=ttyS0 reboot=t nokaslr $*"
}

boot_uml() { # KERNEL SCRATCH [kernel parameters]
	local kernel=$1 scratch=$2
	shift 2
	TMPDIR=$scratch exec "$kernel" "mem=${MEM:-160}M" "initrd=$scratch/initrd" \
		"ubd0=$scratch/disk" con0=fd:0,fd:1 con=null "uml_dir=$scratch" umid=check "$@"
}

# Boots KERNEL for the guest's CHECK. Fails on a line that says FAIL, or if it does not end.
# From the environment: MEM (MiB), CPUS, TCG_THREADS (multi or single), PATIENCE (seconds beyond
# twelve times SECONDS), KIND (of
# kernel, for the log's name).
boot_check() { # KERNEL CHECK SECONDS [kernel parameters]
	local kernel=$1 check=$2 seconds=$3 scratch log status=0 boot=boot_qemu
	shift 3
	[ "$(basename "$kernel")" != linux ] || boot=boot_uml
	log=$LAB/logs/check-${KIND:+$KIND-}$check.log
	mkdir -p "$LAB/logs"
	scratch=$(mktemp -d)
	check_initramfs "$scratch/initrd"
	truncate -s 640M "$scratch/disk"
	mke2fs -q -F -t ext4 -O ^has_journal -E lazy_itable_init=0 "$scratch/disk"
	export -f boot_qemu boot_uml
	timeout "$((seconds * 12 + ${PATIENCE:-300}))" bash -c "$boot"' "$@"' boot "$kernel" "$scratch" \
		panic=-1 quiet kunit.enable=1 page_poison=1 log_buf_len=2M "check=$check" \
		"seconds=$seconds" "$@" </dev/null >"$log" 2>&1 || status=$?
	rm -rf "$scratch"
	tr -d '\r' <"$log" | grep -E '^(OK|NOTE|STATE|DMESG|CHURN|KERNEL|END)' || true
	if tr -d '\r' <"$log" | grep -E '^FAIL|Kernel panic' >&2; then
		die "$check: see $log"
	fi
	tr -d '\r' <"$log" | grep -q '^END ' || die "$check did not end (status $status): see $log"
}
