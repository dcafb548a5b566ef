/* SPDX-License-Identifier: GPL-2.0-only */
/* Enough of KUnit to run CAST's suites in user space; see ../../kunit.c. */
#ifndef _CAST_TEST_KUNIT_H
#define _CAST_TEST_KUNIT_H

#include "../shim.h"

struct kunit {
	const char *name;
	unsigned int failures;
};

struct kunit_case {
	void (*run_case)(struct kunit *test);
	const char *name;
};

struct kunit_suite {
	const char *name;
	int (*suite_init)(struct kunit_suite *suite);
	void (*suite_exit)(struct kunit_suite *suite);
	struct kunit_case *test_cases;
	struct kunit_suite *next;
};

void kunit_register(struct kunit_suite *suite);

#define KUNIT_CASE(fn)	{ .run_case = fn, .name = #fn }
#define KUNIT_CASE_SLOW(fn)	KUNIT_CASE(fn)

#define kunit_test_suite(suite)						\
static void __attribute__((constructor)) register_##suite(void)	\
{									\
	kunit_register(&suite);						\
}

#define CAST_EXPECT(test, a, op, b)					\
do {									\
	__auto_type _left = (a);					\
	__auto_type _right = (b);					\
									\
	if (!(_left op _right)) {					\
		(test)->failures++;					\
		printf("# %s:%d: expected %s " #op " %s: %lld, %lld\n",	\
		       __FILE__, __LINE__, #a, #b, (long long)_left,	\
		       (long long)_right);				\
	}								\
} while (0)

#define KUNIT_EXPECT_EQ(test, a, b)	CAST_EXPECT(test, a, ==, b)
#define KUNIT_EXPECT_NE(test, a, b)	CAST_EXPECT(test, a, !=, b)
#define KUNIT_EXPECT_LT(test, a, b)	CAST_EXPECT(test, a, <, b)
#define KUNIT_EXPECT_LE(test, a, b)	CAST_EXPECT(test, a, <=, b)
#define KUNIT_EXPECT_GT(test, a, b)	CAST_EXPECT(test, a, >, b)
#define KUNIT_EXPECT_GE(test, a, b)	CAST_EXPECT(test, a, >=, b)
#define KUNIT_EXPECT_TRUE(test, a)	CAST_EXPECT(test, !!(a), ==, 1)
#define KUNIT_EXPECT_FALSE(test, a)	CAST_EXPECT(test, !!(a), ==, 0)
#define KUNIT_ASSERT_NOT_NULL(test, p)					\
do {									\
	if (!(p)) {							\
		(test)->failures++;					\
		printf("# %s:%d: %s is NULL\n", __FILE__, __LINE__, #p);\
		return;							\
	}								\
} while (0)

#endif /* _CAST_TEST_KUNIT_H */
