#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# Switching: at boot, refusals, and on and off under pressure. See guest/switch.
. kernel/lab/checks/host/common.bash
# The CPUs take turns in one thread of QEMU: in a thread each, one met the int3 of a static key that
# another was changing when the kernel had finished, and died of it ("Oops: int3" in lru_add()).
# That no processor does so is what the kernel relies on; it is not shown that QEMU is at fault.
TCG_THREADS=${TCG_THREADS:-single}
export TCG_THREADS
boot_check "$(debug_kernel)" switch "${SECONDS_OF_LOAD:-30}"
