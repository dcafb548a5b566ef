#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# Checks the layers of CAST: who may include what, and that versions of the
# kernel are told apart in one file.
#
#   core < walk, tune < policy < top (switch, sysfs, hooks); compat below all.
#   kernel/check-layers.sh [mm/lru_cast]
#
# Prints every violation, and exits with 1 if there is one.
set -eu

root=${1:-$(dirname "$0")/cast/mm/lru_cast}
[ -d "$root/core" ] || { echo "$0: no CAST sources in $root" >&2; exit 2; }
cd "$root"

level() {
	case $1 in
	compat)		echo 0 ;;
	core)		echo 1 ;;
	walk|tune)	echo 2 ;;
	policy)		echo 3 ;;
	.)		echo 4 ;;
	tests)		echo 5 ;;
	*)		echo "unknown directory $1" >&2; echo 9 ;;
	esac
}

# file:line:directory of what is included, by the file's own directory
includes() {
	grep -rn --include='*.[chS]' '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' . |
		sed -E 's|^\./||; s|^([^:]+):([0-9]+):[^"]*"([^"]+)".*|\1 \2 \3|'
}

failed=0
violation() {
	echo "$1"
	failed=1
}

while read -r file line name; do
	from=$(dirname "$file")
	case $name in
	../*/*)	to=${name#../}; to=${to%%/*} ;;
	../*)	to=. ;;
	*/*)	to=${name%%/*} ;;
	*)	to=$from ;;
	esac
	[ "$from" = "$to" ] && continue
	# Of one level, as walk and tune are, neither may use the other.
	[ "$(level "$to")" -lt "$(level "$from")" ] ||
		violation "$file:$line: $from must not use $to ($name)"
done <<END
$(includes)
END

versions=$(grep -rnE --include='*.[chS]' 'LINUX_VERSION_CODE|KERNEL_VERSION[[:space:]]*\(|linux/version\.h' . |
	   grep -v '^\./compat/caps\.h:' || true)
[ -z "$versions" ] || violation "versions are compat/caps.h's alone:
$versions"

unlicensed=$(find . -name '*.[chS]' -o -name Makefile -o -name Kconfig |
	     xargs grep -L 'SPDX-License-Identifier: GPL-2.0')
[ -z "$unlicensed" ] || violation "no SPDX line of GPL-2.0:
$unlicensed"

long=$(find . -name '*.[chS]' -exec wc -l {} + | awk '$2 != "total" && $1 > 500')
[ -z "$long" ] || violation "longer than 500 lines:
$long"

[ $failed = 0 ] && echo "layers of $(pwd): in order"
exit $failed
