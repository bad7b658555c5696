/* Common parts of the C tests. */
#ifndef TEST_H
#define TEST_H

#include <errno.h>
#include <latchwork.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The last error, which OK and IS print. */
static lw_error *error;

#define CHECK(is)                                                                     \
    do {                                                                              \
        if (!(is)) {                                                                  \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #is);          \
            _exit(1);                                                                 \
        }                                                                             \
    } while (0)

/* A call returns this code; its error is freed. */
#define IS(code, call) is_code(__FILE__, __LINE__, #call, code, call)
#define OK(call) IS(LW_OK, call)

static inline void is_code(const char *file, int line, const char *call, int wanted, int code)
{
    if (code != wanted) {
        fprintf(stderr, "%s:%d: %s: %s, not %s: %s\n", file, line, call, lw_code_name(code),
                lw_code_name(wanted), lw_error_message(error));
        _exit(1);
    }
    lw_error_free(error);
    error = NULL;
}

#endif
