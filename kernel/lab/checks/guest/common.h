/* SPDX-License-Identifier: GPL-2.0-only */
/* What the guest's programs share: pages that say which page they are, and chance. */
#ifndef CHECK_COMMON_H
#define CHECK_COMMON_H

#include <stdint.h>

#define PAGE 4096UL

/* Prints the message with errno's and exits with 1. */
__attribute__((format(printf, 1, 2), noreturn)) void fail(const char *format, ...);

void draw_seed(uint64_t seed);
/* A number below @below. */
uint64_t draw(uint64_t below);
/* Seconds of the monotonic clock. */
double now(void);

/* Page @page as written for the @generation-th time; 0: a page of zeros. */
void stamp(uint64_t *words, uint64_t page, uint32_t generation);
/* Counts the page as checked, and as bad unless it is that; tells the first bad one. */
void check_page(const volatile uint64_t *words, uint64_t page, uint32_t generation);

extern uint64_t checked, bad;

#endif
