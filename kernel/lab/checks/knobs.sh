#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# The files of /sys/kernel/mm/lru_cast. See guest/knobs.
. kernel/lab/checks/host/common.bash
boot_check "$(debug_kernel)" knobs "${SECONDS_OF_LOAD:-1}"
