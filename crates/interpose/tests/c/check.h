/* What every test program begins with. It must hold with our library and without. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what)                                                                               \
    do {                                                                                          \
        if (!(what)) {                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);                            \
            _exit(1);                                                                             \
        }                                                                                         \
    } while (0)
#define IS(what, expected)                                                                        \
    do {                                                                                          \
        errno = 1234;                                                                             \
        int is_ = (what);                                                                         \
        if (errno != 1234) {                                                                      \
            fprintf(stderr, "%s:%d: %s changed errno\n", __FILE__, __LINE__, #what);              \
            _exit(1);                                                                             \
        }                                                                                         \
        if (is_ != (expected)) {                                                                  \
            fprintf(stderr, "%s:%d: %s is %d\n", __FILE__, __LINE__, #what, is_);                 \
            _exit(1);                                                                             \
        }                                                                                         \
    } while (0)

static inline struct timespec after_ms(clockid_t clock, long ms) {
    struct timespec at;
    clock_gettime(clock, &at);
    at.tv_nsec += ms * 1000000;
    while (at.tv_nsec >= 1000000000) {
        at.tv_sec++;
        at.tv_nsec -= 1000000000;
    }
    while (at.tv_nsec < 0) {
        at.tv_sec--;
        at.tv_nsec += 1000000000;
    }
    return at;
}

static inline void *start_join(void *(*body)(void *), void *argument) {
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, 0, body, argument) == 0);
    CHECK(pthread_join(thread, &result) == 0);
    return result;
}
