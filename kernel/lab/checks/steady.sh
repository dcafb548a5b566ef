#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# CAST stays on: readers within memory.max and past memory, every page checked. See guest/steady.
. kernel/lab/checks/host/common.bash
boot_check "$(debug_kernel)" steady "${SECONDS_OF_LOAD:-30}"
