#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# CAST, the stock lists and MGLRU in turn under pressure. See guest/three.
. kernel/lab/checks/host/common.bash
cpus_take_turns
boot_check "$(debug_kernel)" three "${SECONDS_OF_LOAD:-30}"
