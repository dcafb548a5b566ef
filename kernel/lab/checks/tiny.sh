#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# memory.max from 256 KiB to 4 MiB: no OOM kill where the stock lists have none. See guest/tiny.
. kernel/lab/checks/host/common.bash
boot_check "$(debug_kernel)" tiny "${SECONDS_OF_LOAD:-10}"
