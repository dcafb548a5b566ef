#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# Switching: at boot, refusals, and on and off under pressure. See guest/switch.
. kernel/lab/checks/host/common.bash
cpus_take_turns
boot_check "$(debug_kernel)" switch "${SECONDS_OF_LOAD:-30}"
