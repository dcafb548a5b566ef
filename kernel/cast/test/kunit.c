// SPDX-License-Identifier: GPL-2.0-only
/* Runs every suite that is linked in; output is TAP. */
#include <kunit/test.h>

static struct kunit_suite *suites;

void kunit_register(struct kunit_suite *suite)
{
	suite->next = suites;
	suites = suite;
}

static unsigned int run_suite(struct kunit_suite *suite, unsigned int *number)
{
	unsigned int failed = 0;
	struct kunit_case *c;

	if (suite->suite_init && suite->suite_init(suite)) {
		printf("not ok %u %s: cannot start\n", ++*number, suite->name);
		return 1;
	}
	for (c = suite->test_cases; c->run_case; c++) {
		struct kunit test = { .name = c->name };

		c->run_case(&test);
		printf("%s %u %s.%s\n", test.failures ? "not ok" : "ok",
		       ++*number, suite->name, c->name);
		failed += test.failures != 0;
	}
	if (suite->suite_exit)
		suite->suite_exit(suite);
	return failed;
}

int main(void)
{
	unsigned int number = 0, failed = 0;
	struct kunit_suite *suite;

	for (suite = suites; suite; suite = suite->next)
		failed += run_suite(suite, &number);
	printf("1..%u\n# %u failed\n", number, failed);
	return failed || !number;
}
