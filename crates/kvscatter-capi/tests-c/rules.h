/* Maps a rule that the oracle reports as broken to the status of the library. */
#ifndef KVS_TESTS_RULES_H
#define KVS_TESTS_RULES_H

#include "case_file.h"

kvs_status status_of_rule(const test_case *of);

#endif
