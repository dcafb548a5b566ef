#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# Switching: at boot, refusals, and on and off under pressure. See guest/switch.
. kernel/lab/checks/host/common.bash
# The CPUs take turns in one thread of QEMU: in a thread each, QEMU goes on running code that another
# CPU has changed ("Oops: int3" where the finished instruction stands). Stock's own switch dies of it
# as well, with CAST off: emulator.sh.
TCG_THREADS=${TCG_THREADS:-single}
export TCG_THREADS
boot_check "$(debug_kernel)" switch "${SECONDS_OF_LOAD:-30}"
