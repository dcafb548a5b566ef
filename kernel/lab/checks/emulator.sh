#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# Stock's own switch (MGLRU's) back and forth with CAST off and a thread for each of QEMU's CPUs:
# whether this QEMU runs code that another CPU changes. See guest/emulator.
. kernel/lab/checks/host/common.bash
TCG_THREADS=${TCG_THREADS:-multi}
export TCG_THREADS
boot_check "$(debug_kernel)" emulator "${SECONDS_OF_LOAD:-30}" lru_cast=0
