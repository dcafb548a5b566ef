// SPDX-License-Identifier: GPL-2.0-only
/* How far ahead the two stages of prefetch reach. */
#include <linux/kernel.h>
#ifdef CONFIG_X86
#include <asm/processor.h>
#endif

#include "prefetch.h"

unsigned int cast_prefetch_far __read_mostly;
unsigned int cast_prefetch_near __read_mostly;

/*
 * About half of the buffers that the CPUs of a kind are published to have for
 * misses beyond L2 and of L1: the rest is left to what is not prefetched.
 */
void cast_prefetch_init(void)
{
#if defined(CONFIG_X86_64) && !defined(CONFIG_UML)
	bool amd = boot_cpu_data.x86_vendor == X86_VENDOR_AMD ||
		   boot_cpu_data.x86_vendor == X86_VENDOR_HYGON;

	cast_prefetch_far = amd ? 24 : 16;
	cast_prefetch_near = amd ? 10 : 6;
#else
	cast_prefetch_far = 12;
	cast_prefetch_near = 4;
#endif
}
