# SPDX-License-Identifier: GPL-2.0-only
# What has to be there before a cell can run. Sourced by kernel/lab/run, which sets ROOT and
# LAB. Every step does nothing where its result is there already.

JOBS=${JOBS:-$(nproc)}
export JOBS
KERNEL_PACKAGE=linux-source-6.12
SERIES=6.12
POOL_MIB=1536

say() { printf 'lab: %s\n' "$*" >&2; }
die() {
	say "error: $*"
	exit 1
}

# what a part of the lab calls, and the Debian package that has it
packages_for() {
	case $1 in
	guest) echo musl-gcc:musl-tools cpio:cpio busybox:busybox-static mke2fs:e2fsprogs ;;
	kernel) echo make:make gcc:gcc flex:flex bison:bison bc:bc ccache:ccache xz:xz-utils \
		rsync:rsync patch:patch ;;
	x86) echo qemu-system-x86_64:qemu-system-x86 ;;
	checks) echo objdump:binutils ;;
	esac
}

need_packages() { # PART...
	local part pair missing=()
	for part in "$@"; do
		for pair in $(packages_for "$part"); do
			command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
		done
		[ "$part" != kernel ] || [ -e /usr/include/libelf.h ] || missing+=(libelf-dev)
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	command -v apt-get >/dev/null || die "not installed: ${missing[*]} (Debian's names)"
	[ "$(id -u)" = 0 ] || die "not installed: ${missing[*]}; run as root: apt-get install ${missing[*]}"
	say "installing ${missing[*]}"
	apt-get update -qq </dev/null
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
		"${missing[@]}" </dev/null >/dev/null || die "apt-get install ${missing[*]} failed"
}

kernel_archive() {
	local archive=/usr/src/$KERNEL_PACKAGE.tar.xz
	if [ ! -e "$archive" ]; then
		[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
			die "no $archive: install Debian's package $KERNEL_PACKAGE"
		say "installing $KERNEL_PACKAGE"
		apt-get update -qq </dev/null
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
			"$KERNEL_PACKAGE" </dev/null >/dev/null || die "$KERNEL_PACKAGE cannot be had"
	fi
	echo "$archive"
}

# Debian's tree with the fixes that a UML guest needs; no part of CAST.
stock_tree() {
	local tree=$LAB/src/stock archive
	[ ! -e "$tree/.lab-ready" ] || return 0
	archive=$(kernel_archive)
	say "unpacking $archive"
	rm -rf "$tree" "$LAB/src/unpack"
	mkdir -p "$LAB/src/unpack"
	tar -xf "$archive" -C "$LAB/src/unpack"
	mv "$LAB/src/unpack/$KERNEL_PACKAGE" "$tree"
	rmdir "$LAB/src/unpack"
	patch -s -p1 -d "$tree" <"kernel/lab/patches/$SERIES/um-sparsemem.patch"
	# Hosts without AMX have no state larger than what UML knows.
	if grep -qw amx_tile /proc/cpuinfo; then
		patch -s -p1 -d "$tree" <"kernel/lab/patches/$SERIES/um-xstate.patch"
	fi
	touch "$tree/.lab-ready"
}

have_cast() { [ -x kernel/make-patch.sh ] && [ -d "kernel/patches/$SERIES" ]; }

digest() { find "$@" -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum | cut -c1-16; }

# The stock tree with our patch. Files that a change leaves alone keep their times, so that
# a new policy costs seconds and not a whole build.
cast_tree() {
	local tree=$LAB/src/cast hooks
	stock_tree
	hooks=$(digest kernel/patches/$SERIES kernel/make-patch.sh)
	if [ "$(cat "$tree/.lab-hooks" 2>/dev/null)" != "$hooks" ]; then
		say "patching $SERIES"
		rsync -a --delete "$LAB/src/stock/" "$tree/"
		kernel/make-patch.sh "$tree" </dev/null >"$LAB/patch.log" 2>&1 || {
			tail -20 "$LAB/patch.log" >&2
			die "kernel/make-patch.sh does not apply (all of it: $LAB/patch.log)"
		}
		echo "$hooks" >"$tree/.lab-hooks"
	fi
	rsync -a --checksum kernel/cast/include/ "$tree/include/"
	rsync -a --checksum kernel/cast/mm/ "$tree/mm/"
}

build_kernel() { # stock|cast um|x86
	local tree=$LAB/src/$1 out=$LAB/build/$1-$2 arch=() target=bzImage
	[ "$2" != um ] || { arch=(ARCH=um) target=linux; }
	mkdir -p "$out"
	export CCACHE_DIR=${CCACHE_DIR:-$LAB/ccache} CCACHE_BASEDIR=$LAB CCACHE_DEPEND=1 CCACHE_NOHASHDIR=1
	# Reproducible, so that a kernel's hash says what was measured.
	export KBUILD_BUILD_TIMESTAMP=@0 KBUILD_BUILD_USER=lab KBUILD_BUILD_HOST=lab
	cat "kernel/lab/configs/common.config" "kernel/lab/configs/$2.config" >"$out/fragment.new"
	if ! cmp -s "$out/fragment.new" "$out/fragment" || [ ! -e "$out/.config" ]; then
		make -s "${arch[@]}" -C "$tree" O="$out" KCONFIG_ALLCONFIG="$out/fragment.new" \
			allnoconfig </dev/null >"$out/config.log" 2>&1 || die "configuration: $out/config.log"
		cp "$out/fragment.new" "$out/fragment"
	else
		make -s "${arch[@]}" -C "$tree" O="$out" olddefconfig </dev/null >"$out/config.log" 2>&1
	fi
	say "building $1-$2 (all of it: $out/build.log)"
	local start=$SECONDS
	make -s "${arch[@]}" -C "$tree" O="$out" -j"$JOBS" CC="ccache gcc" "$target" \
		</dev/null >"$out/build.log" 2>&1 || {
		grep -E "error|warning" "$out/build.log" | head -20 >&2
		die "$1-$2 does not build"
	}
	say "built $1-$2 in $((SECONDS - start)) s"
}

guest_programs() {
	local from=kernel/lab/guest bin=$LAB/bin program
	mkdir -p "$bin"
	for program in reader balloon mkpool; do
		local sources=("$from/$program.c")
		[ $program != reader ] || sources+=("$from/list.c" "$from/counters.c")
		musl-gcc -static -O2 -Wall -Wextra -Werror -o "$bin/$program" "${sources[@]}"
	done
}

initramfs() {
	local tree=$LAB/initramfs
	rm -rf "$tree"
	mkdir -p "$tree"/{bin,proc,sys,dev,cg,mnt,tmp,lists}
	cp "$(command -v busybox)" "$LAB/bin/reader" "$LAB/bin/balloon" "$tree/bin/"
	cp kernel/lab/guest/init kernel/lab/guest/cell "$tree/"
	chmod +x "$tree/init"
	(cd "$tree" && find . | sort | cpio -o -H newc --quiet | gzip -1) >"$LAB/initrd.gz"
}

pool_image() {
	local image=$LAB/pool.img staging=$LAB/pool-staging
	[ ! -e "$image" ] || return 0
	say "making a pool of $POOL_MIB MiB"
	rm -rf "$staging"
	mkdir -p "$staging"
	"$LAB/bin/mkpool" "$staging/pool" "$POOL_MIB"
	mke2fs -q -t ext4 -m 0 -O ^has_journal -E lazy_itable_init=0 -d "$staging" "$image.new" \
		"$((POOL_MIB + POOL_MIB / 16))M"
	rm -rf "$staging"
	mv "$image.new" "$image"
}

# The trace crate's own program: accesses out, nominal misses out.
accesses_program() {
	command -v cargo >/dev/null || die "no cargo: the accesses come from crates/router-trace"
	CARGO_TARGET_DIR=$LAB/cargo cargo build --quiet --release --locked -p router-trace \
		--no-default-features --bin expert-accesses </dev/null
	cp "$LAB/cargo/release/expert-accesses" "$LAB/bin/"
}

prepare() { # um|x86
	case $1 in um | x86) ;; *) die "$1: um or x86" ;; esac
	mkdir -p "$LAB"
	need_packages guest kernel
	[ "$1" != x86 ] || need_packages x86
	guest_programs
	initramfs
	pool_image
	accesses_program
	if have_cast; then
		cast_tree
		build_kernel cast "$1"
		[ "${STOCK:-}" != 1 ] || build_kernel stock "$1"
	else
		say "notice: no patch in kernel/patches/$SERIES yet; cells of CAST are skipped"
		stock_tree
		build_kernel stock "$1"
	fi
}

# The checks build kernels of their own, and need no pool and no lists. Without names they are
# all but kasan, which is a second kernel and slow.
correctness_checks() { # NAME...
	local check name failed=0
	have_cast || die "no patch in kernel/patches/$SERIES: nothing to check"
	for name; do
		[ -e "kernel/lab/checks/$name.sh" ] ||
			die "no check $name; there are: $(cd kernel/lab/checks && echo *.sh | sed 's/\.sh//g')"
	done
	need_packages guest kernel x86 checks
	cast_tree
	[ $# != 0 ] || set -- $(cd kernel/lab/checks && ls *.sh | sed 's/\.sh$//' | grep -vxe kasan -e emulator)
	for check in kernel/lab/checks/*.sh; do
		[[ " $* " == *" $(basename "$check" .sh) "* ]] || continue
		local start=$SECONDS
		if LAB=$LAB bash "$check" </dev/null; then
			say "ok   $check ($((SECONDS - start)) s)"
		else
			say "FAIL $check ($((SECONDS - start)) s)"
			failed=1
		fi
	done
	return $failed
}
