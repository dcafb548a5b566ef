#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# make-patch.sh TREE              puts CAST into a kernel tree: copies kernel/cast, applies the
#                                 hooks of kernel/patches/VERSION
# make-patch.sh --single TREE OUT writes the same as one patch against TREE, which stays as it is
# make-patch.sh --check TREE      says whether the hooks apply to TREE; changes nothing
set -euo pipefail
work=
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

die() {
	echo "make-patch: error: $*" >&2
	exit 1
}

usage() {
	sed -n '3,6s/^# //p' "${BASH_SOURCE[0]}" >&2
	exit 2
}

# The tree's VERSION.PATCHLEVEL, which is what hooks are kept for.
series_of() {
	local tree=$1 version
	[ -f "$tree/Makefile" ] && [ -f "$tree/mm/vmscan.c" ] || die "$tree: not a kernel tree"
	version=$(awk '$1 == "VERSION" { v = $3 } $1 == "PATCHLEVEL" { print v "." $3; exit }' \
		"$tree/Makefile")
	[ -d "$HERE/patches/$version" ] ||
		die "no hooks for Linux $version; there are: $(ls "$HERE/patches" | tr '\n' ' ')"
	echo "$HERE/patches/$version"
}

check() { # TREE SERIES: the patches build on each other, so they are tried on copies
	local tree=$1 series=$2 trial file patch
	[ ! -e "$tree/mm/lru_cast" ] || die "$tree: has CAST already (mm/lru_cast)"
	trial=$(mktemp -d)
	for file in $(sed -n 's,^+++ b/\([^[:space:]]*\).*,\1,p' "$series"/0*.patch | sort -u); do
		[ -f "$tree/$file" ] || { rm -rf "$trial"; die "$tree: no $file"; }
		mkdir -p "$trial/$(dirname "$file")"
		cp "$tree/$file" "$trial/$file"
	done
	for patch in "$series"/0*.patch; do
		patch -s -p1 -F0 --no-backup-if-mismatch -d "$trial" <"$patch" ||
			{ rm -rf "$trial"; die "$(basename "$patch") does not apply to $tree"; }
	done
	rm -rf "$trial"
}

apply() { # TREE SERIES
	local tree=$1 series=$2 patch
	check "$tree" "$series"
	cp -r "$HERE/cast/include" "$HERE/cast/mm" "$tree/"
	for patch in "$series"/0*.patch; do
		patch -s -p1 -F0 --no-backup-if-mismatch -d "$tree" <"$patch"
	done
}

single() { # TREE OUT
	local tree=$1 out=$2 series file
	series=$(series_of "$tree")
	check "$tree" "$series"
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	mkdir -p "$work/a/mm" "$work/a/include/linux"
	for file in Makefile mm/vmscan.c \
		$(sed -n 's,^+++ b/\([^[:space:]]*\).*,\1,p' "$series"/0*.patch | sort -u); do
		mkdir -p "$work/a/$(dirname "$file")"
		cp "$tree/$file" "$work/a/$file"
	done
	cp -r "$work/a" "$work/b"
	apply "$work/b" "$series"
	{
		sed -n '/^Subject: /,$p' "$series/0000-cover-letter.txt"
		echo "---"
		(cd "$work" && diff -ruN a b || [ $? = 1 ])
	} >"$out"
	echo "make-patch: $out: $(grep -c '^+++ ' "$out") files" >&2
}

case ${1:-} in
--single)
	[ $# = 3 ] || usage
	single "$2" "$3"
	;;
--check)
	[ $# = 2 ] || usage
	check "$2" "$(series_of "$2")"
	;;
-* | "") usage ;;
*)
	[ $# = 1 ] || usage
	apply "$1" "$(series_of "$1")"
	;;
esac
