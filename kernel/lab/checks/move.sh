#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# Folios that move, join and split while CAST decides: compaction, migration between two nodes,
# huge pages, memory that goes offline. See guest/move. A node's last block of 128 MiB holds what
# was taken at boot, so each has four, of which two are movable.
. kernel/lab/checks/host/common.bash
MEM=${MEM:-1024} boot_check "$(debug_kernel)" move "${SECONDS_OF_LOAD:-30}" numa=fake=2 \
	movablecore=640M
