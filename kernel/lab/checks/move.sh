#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# Folios that move, join and split while CAST decides: compaction, migration between two nodes,
# huge pages, memory that goes offline. See guest/move.
. kernel/lab/checks/host/common.bash
MEM=${MEM:-512} boot_check "$(debug_kernel)" move "${SECONDS_OF_LOAD:-30}" numa=fake=2 \
	movablecore=320M
