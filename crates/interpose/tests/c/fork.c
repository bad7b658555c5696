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

/* A condition variable, and whether it is waited for, and over. */
struct wait {
    pthread_cond_t *cond;
    int begun, told;
};
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
/* A thread of the parent waits for it at the fork. */
static pthread_cond_t inherited;

static void *wait_for(void *argument) {
    struct wait *wait = argument;
    CHECK(pthread_mutex_lock(&guard) == 0);
    wait->begun = 1;
    while (!wait->told)
        CHECK(pthread_cond_wait(wait->cond, &guard) == 0);
    CHECK(pthread_mutex_unlock(&guard) == 0);
    return 0;
}
static pthread_t begin(struct wait *wait) {
    pthread_t thread;
    memset(wait->cond, 0, sizeof *wait->cond);
    CHECK(pthread_create(&thread, 0, wait_for, wait) == 0);
    for (int begun = 0; !begun; usleep(1)) {
        CHECK(pthread_mutex_lock(&guard) == 0);
        begun = wait->begun;
        CHECK(pthread_mutex_unlock(&guard) == 0);
    }
    return thread;
}
static void tell(struct wait *wait) {
    CHECK(pthread_mutex_lock(&guard) == 0);
    wait->told = 1;
    CHECK(pthread_cond_broadcast(wait->cond) == 0);
    CHECK(pthread_mutex_unlock(&guard) == 0);
}
/* As POSIX has it, the memory may be gone once the condition variable is destroyed: the thread that
   waited for it does not access it any more. */
static void end_while_left(void) {
    size_t size = sysconf(_SC_PAGESIZE);
    int access = PROT_READ | PROT_WRITE;
    pthread_cond_t *cond = mmap(0, size, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(cond != MAP_FAILED);
    for (int round = 0; round < 2000; round++) {
        struct wait wait = {cond, 0, 0};
        pthread_t thread = begin(&wait);
        tell(&wait);
        CHECK(pthread_cond_destroy(cond) == 0);
        CHECK(mprotect(cond, size, PROT_NONE) == 0);
        CHECK(pthread_join(thread, 0) == 0);
        CHECK(mprotect(cond, size, access) == 0);
    }
}
/* The threads that waited in the parent are not waited for, whether or not somebody waits here. */
static void end_inherited(int waits) {
    struct timespec at = after_ms(CLOCK_REALTIME, 20);
    CHECK(pthread_mutex_lock(&guard) == 0);
    CHECK(!waits || pthread_cond_timedwait(&inherited, &guard, &at) == ETIMEDOUT);
    CHECK(pthread_mutex_unlock(&guard) == 0);
    CHECK(pthread_cond_destroy(&inherited) == 0);
}

static int child(int round) {
    /* The thread still holds its locks. */
    CHECK(pthread_mutex_trylock(&m) == EBUSY);
    CHECK(pthread_mutex_unlock(&m) == 0);
    /* glibc checks the kernel's thread number, and the child has a new one. */
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
    /* glibc waits for threads that are not here. */
    if (waits_for_rw)
        end_inherited(round % 2);
    if (round == 0)
        end_while_left();
    return 0;
}

int main(int argc, char **argv) {
    (void)argv;
    waits_for_rw = argc == 1;
    for (int round = 0; round < 30; round++) {
        pthread_t waiters[3], write;
        struct wait sleep = {&inherited, 0, 0};
        pthread_t sleeper = begin(&sleep);
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
            _exit(child(round));
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
        tell(&sleep);
        CHECK(pthread_join(sleeper, 0) == 0);
        CHECK(!waits_for_rw || pthread_join(write, 0) == 0);
    }
    CHECK(passed == 90);
    puts("ok");
    return 0;
}
