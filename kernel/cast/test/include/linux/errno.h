/* SPDX-License-Identifier: GPL-2.0-only */
/* The C library's own <errno.h> comes here too. */
#include_next <linux/errno.h>
#include "../shim.h"
