/* The lock manager: private and in a region, deadlocks, time, batches, and a process that dies. */
#include "test.h"

#include <pthread.h>

static int S, X;

static int counts(void *context, const lw_lock *lock)
{
    CHECK(lock->size >= sizeof *lock && lock->name_len > 0);
    return ++*(int *)context == 1000;
}

static int stops(void *context, const lw_lock *lock)
{
    (void)context;
    CHECK(lock->label_len == 5 && !memcmp(lock->label, "first", 5));
    return 42;
}

static void modes(lw_locks *locks)
{
    int mode;
    OK(lw_locks_mode(locks, "S", &S, &error));
    OK(lw_locks_mode(locks, "X", &X, &error));
    CHECK(S == 2 && X == 5);
    IS(LW_NOT_FOUND, lw_locks_mode(locks, "no mode", &mode, &error));
}

static void alone(lw_locks *locks)
{
    lw_owner_options options = LW_OWNER_OPTIONS_INIT;
    lw_owner *first, *second;
    lw_op ops[3] = { { LW_OP_LOCK, 0, "a", 1, 0 }, { LW_OP_LOCK, 0, "b", 1, 0 },
                     { LW_OP_UNLOCK, 0, "a", 1, 0 } };
    uint64_t id, other, age;
    uint32_t taken;
    size_t done;
    int mode, count = 0;
    options.label = "first";
    OK(lw_owner_new(locks, &options, &first, &error));
    OK(lw_owner_new(locks, NULL, &second, &error));
    OK(lw_owner_id(first, &id, &error));
    OK(lw_owner_id(second, &other, &error));
    OK(lw_owner_age(first, &age, &error));
    CHECK(id != other && age > 0);
    OK(lw_owner_lock(first, "name", 4, S, &error));
    OK(lw_owner_lock(first, "name", 4, S, &error));
    OK(lw_owner_holds(first, "name", 4, &mode, &taken, &error));
    CHECK(mode == S && taken == 2);
    IS(LW_NOT_FOUND, lw_owner_holds(second, "name", 4, &mode, &taken, &error));
    CHECK(mode == -1 && taken == 0);
    OK(lw_owner_try_lock(second, "name", 4, S, &error));
    OK(lw_owner_unlock(second, "name", 4, &error));
    IS(LW_NOT_GRANTED, lw_owner_try_lock(second, "name", 4, X, &error));
    IS(LW_NOT_GRANTED, lw_owner_lock_timeout(second, "name", 4, X, 0, &error));
    IS(LW_TIMEOUT, lw_owner_lock_timeout(second, "name", 4, X, 20, &error));
    IS(LW_OPTIONS, lw_owner_lock(second, "name", 4, 99, &error));
    IS(LW_OPTIONS, lw_owner_lock(second, "name", 4, -1, &error));
    IS(LW_TOO_LONG, lw_owner_lock(second, "", 0, S, &error));
    IS(LW_NOT_HELD, lw_owner_unlock(second, "name", 4, &error));
    IS(LW_OK, lw_locks_list(locks, counts, &count, &error));
    CHECK(count == 1);
    IS(42, lw_locks_list(locks, stops, NULL, &error));
    OK(lw_owner_unlock(first, "name", 4, &error));
    OK(lw_owner_unlock(first, "name", 4, &error));
    OK(lw_owner_lock(second, "name", 4, X, &error));
    OK(lw_owner_release_all(second, &error));

    ops[0].mode = ops[1].mode = X;
    OK(lw_owner_batch(first, ops, 3, &done, &error));
    CHECK(done == 3);
    IS(LW_NOT_GRANTED, lw_owner_batch(second, ops, 3, &done, &error));
    CHECK(done == 1);
    ops[2].kind = 77;
    IS(LW_OPTIONS, lw_owner_batch(second, ops, 3, &done, &error));
    CHECK(done == 0);
    OK(lw_owner_renew(first, NULL, &error));
    OK(lw_owner_try_lock(second, "b", 1, X, &error));
    OK(lw_owner_id(second, &other, &error));
    OK(lw_locks_kill(locks, other, &error));
    IS(LW_KILLED, lw_owner_lock(second, "c", 1, X, &error));
    IS(LW_NOT_FOUND, lw_locks_kill(locks, UINT64_MAX, &error));
    lw_owner_free(first), lw_owner_free(second);
    OK(lw_locks_detect(locks, &id, &error));
    OK(lw_locks_sweep(locks, &id, &error));
}

/* Two owners that take two locks in opposite orders, many times: each deadlock has one victim. */
static lw_locks *common;
static long rounds, victims;

static void *crosses(void *context)
{
    const char *first = context, *second = *first == 'a' ? "b" : "a";
    lw_owner *owner;
    CHECK(lw_owner_new(common, NULL, &owner, NULL) == LW_OK);
    for (int turn = 0; turn < 200; turn++) {
        lw_error *why = NULL;
        int code = lw_owner_lock(owner, first, 1, X, &why);
        if (code == LW_OK) code = lw_owner_lock(owner, second, 1, X, &why);
        CHECK(code == LW_OK || code == LW_CONFLICT);
        if (code == LW_CONFLICT) {
            CHECK(strstr(lw_error_message(why), "deadlock") && lw_is_retryable(code));
            __atomic_fetch_add(&victims, 1, __ATOMIC_RELAXED);
        }
        lw_error_free(why);
        __atomic_fetch_add(&rounds, 1, __ATOMIC_RELAXED);
        CHECK(lw_owner_release_all(owner, NULL) == LW_OK);
    }
    lw_owner_free(owner);
    return NULL;
}

static void deadlocks(lw_locks *locks)
{
    pthread_t one, other;
    common = locks;
    CHECK(!pthread_create(&one, NULL, crosses, "a") && !pthread_create(&other, NULL, crosses, "b"));
    CHECK(!pthread_join(one, NULL) && !pthread_join(other, NULL));
    CHECK(rounds == 400 && victims < 400);
}

/* A process dies with a lock: the next owner gets it. */
static void deaths(const char *path, lw_locks *locks)
{
    int ready[2], status;
    char byte;
    lw_owner *owner;
    CHECK(pipe(ready) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        lw_locks *own;
        IS(LW_FORKED, lw_locks_sweep(locks, NULL, &error));
        OK(lw_locks_open(path, NULL, &own, &error)); /* an existing file keeps its limit */
        OK(lw_owner_new(own, NULL, &owner, &error));
        OK(lw_owner_lock(owner, "held", 4, X, &error));
        CHECK(write(ready[1], "x", 1) == 1);
        pause();
    }
    CHECK(read(ready[0], &byte, 1) == 1);
    OK(lw_owner_new(locks, NULL, &owner, &error));
    IS(LW_NOT_GRANTED, lw_owner_try_lock(owner, "held", 4, X, &error));
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
    OK(lw_owner_lock_timeout(owner, "held", 4, X, 20000, &error));
    lw_owner_free(owner);
}

int main(int argc, char **argv)
{
    lw_locks_options options = LW_LOCKS_OPTIONS_INIT;
    const char *path = argc > 1 ? argv[1] : "region";
    lw_locks *locks, *other;
    /* valgrind has no 64 GiB of addresses. */
    options.limit = 64 << 20;
    OK(lw_locks_open(NULL, &options, &locks, &error));
    modes(locks), alone(locks), deadlocks(locks);
    lw_locks_close(locks);
    rounds = victims = 0;
    OK(lw_locks_open(path, &options, &locks, &error));
    modes(locks), alone(locks), deadlocks(locks), deaths(path, locks);
    options.modes = LW_MODES_SHARED;
    IS(LW_FOREIGN, lw_locks_open(path, &options, &other, &error));
    options.modes = 99;
    IS(LW_OPTIONS, lw_locks_open(path, &options, &other, &error));
    lw_locks_close(locks);
    for (uint32_t set = 0; set < 5; set++) {
        static const char *const MODES[] = { "IS", "S", "WRITE", "IWRITE", "AccessExclusive" };
        int mode;
        options = (lw_locks_options)LW_LOCKS_OPTIONS_INIT;
        options.modes = set, options.limit = 64 << 20;
        OK(lw_locks_open(NULL, &options, &locks, &error));
        OK(lw_locks_mode(locks, MODES[set], &mode, &error));
        lw_locks_close(locks);
    }
    return 0;
}
