#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# What more than 127 lruvecs cost those that reclaim. See guest/tags.
. kernel/lab/checks/host/common.bash
PATIENCE=900 MEM=256 boot_check "$(debug_kernel)" tags 1
