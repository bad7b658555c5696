/* A fork while locks are held and waited for. */
#include "check.h"

static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t recursive = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static pthread_rwlock_t rw = PTHREAD_RWLOCK_INITIALIZER;
static volatile int go_on, passed;
/* glibc's reader-writer lock is lost in the child if somebody waited for it: not tried there. */
static int waits_for_rw;

static void *waiter(void *unused) {
    (void)unused;
    CHECK(pthread_mutex_lock(&m) == 0);
    passed++;
    CHECK(pthread_mutex_unlock(&m) == 0);
    return 0;
}
static void *writer(void *unused) {
    (void)unused;
    CHECK(pthread_rwlock_wrlock(&rw) == 0);
    CHECK(pthread_rwlock_unlock(&rw) == 0);
    return 0;
}
static void *lock_a_while(void *mutex) {
    for (int i = 0; i < 2000; i++) {
        CHECK(pthread_mutex_lock(mutex) == 0);
        go_on++;
        CHECK(pthread_mutex_unlock(mutex) == 0);
    }
    return 0;
}

static int child(void) {
    /* What this thread held, it holds. */
    CHECK(pthread_mutex_trylock(&m) == EBUSY);
    CHECK(pthread_mutex_unlock(&m) == 0);
    /* glibc asks for the kernel's thread number, which the child has anew. */
    CHECK(!waits_for_rw || pthread_mutex_unlock(&recursive) == 0);
    CHECK(pthread_mutex_trylock(&m) == 0);
    CHECK(pthread_mutex_unlock(&m) == 0);
    CHECK(pthread_mutex_lock(&m) == 0);
    CHECK(pthread_mutex_unlock(&m) == 0);
    CHECK(pthread_rwlock_unlock(&rw) == 0);
    CHECK(pthread_rwlock_rdlock(&rw) == 0);
    CHECK(pthread_rwlock_unlock(&rw) == 0);
    CHECK(pthread_rwlock_wrlock(&rw) == 0);
    CHECK(pthread_rwlock_unlock(&rw) == 0);
    /* New threads wait, and do not wait for threads that are not here. */
    pthread_t threads[4];
    CHECK(pthread_mutex_lock(&m) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], 0, lock_a_while, &m) == 0);
    usleep(20000);
    CHECK(pthread_mutex_unlock(&m) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(threads[i], 0) == 0);
    CHECK(pthread_mutex_trylock(&m) == 0);
    CHECK(pthread_mutex_unlock(&m) == 0);
    pthread_cond_t fresh = PTHREAD_COND_INITIALIZER;
    struct timespec at = after_ms(CLOCK_REALTIME, 20);
    CHECK(pthread_mutex_lock(&m) == 0);
    CHECK(pthread_cond_timedwait(&fresh, &m, &at) == ETIMEDOUT);
    CHECK(pthread_mutex_unlock(&m) == 0);
    CHECK(pthread_cond_destroy(&fresh) == 0);
    return 0;
}

int main(int argc, char **argv) {
    (void)argv;
    waits_for_rw = argc == 1;
    for (int round = 0; round < 30; round++) {
        pthread_t waiters[3], write;
        CHECK(pthread_mutex_lock(&m) == 0);
        CHECK(pthread_rwlock_rdlock(&rw) == 0);
        CHECK(pthread_mutex_lock(&recursive) == 0);
        for (int i = 0; i < 3; i++)
            CHECK(pthread_create(&waiters[i], 0, waiter, 0) == 0);
        CHECK(!waits_for_rw || pthread_create(&write, 0, writer, 0) == 0);
        usleep(round % 3 * 10000);
        pid_t process = fork();
        CHECK(process >= 0);
        if (process == 0) {
            alarm(20);
            _exit(child());
        }
        CHECK(pthread_mutex_unlock(&m) == 0);
        CHECK(pthread_rwlock_unlock(&rw) == 0);
        CHECK(pthread_mutex_unlock(&recursive) == 0);
        int status;
        CHECK(waitpid(process, &status, 0) == process);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            fprintf(stderr, "round %d: the child ended with %#x\n", round, status);
            return 1;
        }
        for (int i = 0; i < 3; i++)
            CHECK(pthread_join(waiters[i], 0) == 0);
        CHECK(!waits_for_rw || pthread_join(write, 0) == 0);
    }
    CHECK(passed == 90);
    puts("ok");
    return 0;
}
