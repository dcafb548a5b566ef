#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-only
# Cgroups made and removed, twice GROUPS_MADE of them (the long form: 10000; more than 127 for fewer tags than groups), with
# reads in them. See guest/groups.
. kernel/lab/checks/host/common.bash
made=${GROUPS_MADE:-400}
PATIENCE=$((600 + made)) MEM=256 boot_check "$(debug_kernel)" groups 1 "groups=$made numa=fake=2"
