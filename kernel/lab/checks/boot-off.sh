#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# lru_cast=0 at boot: off, nothing set up; then on for the first time. See guest/boot-off.
. kernel/lab/checks/host/common.bash
boot_check "$(debug_kernel)" boot-off 15 lru_cast=0
