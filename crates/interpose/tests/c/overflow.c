/* A recursive mutex that is locked 2^32 - 1 times says so. The count is set, not counted up to:
   its place differs between glibc (4) and us (12), and glibc's test of it is the same. */
#include "check.h"
int main(int argc, char **argv) {
    pthread_mutex_t m = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    IS(pthread_mutex_lock(&m), 0);
    ((uint32_t *)&m)[argc > 1 ? atoi(argv[1]) : 1] = UINT32_MAX - 1;
    IS(pthread_mutex_lock(&m), 0);
    IS(pthread_mutex_lock(&m), EAGAIN);
    IS(pthread_mutex_trylock(&m), EAGAIN);
    puts("ok");
    return 0;
}
