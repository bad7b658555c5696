/* In the child of a fork every call on an object of the parent says so, every _free releases the
 * child's memory alone, and lw_store_reopen opens the store. The parent notices nothing. */
#include "calls.h"
#include <pthread.h>

static struct world world;
static int entered[2], left[2];

/* A value is read until the pipe `left` has a byte. */
static void stays(void *context, const void *value, size_t len)
{
    char byte = 0;
    (void)context, (void)value, (void)len;
    CHECK(write(entered[1], &byte, 1) == 1);
    CHECK(read(left[0], &byte, 1) == 1);
}

static void *reads(void *context)
{
    (void)context;
    OK(lw_get_with(world.store, world.table, "parent", 6, stays, NULL, NULL));
    return NULL;
}

/* Whether a call gets an object that belongs to one process. */
static int is_of_process(const struct call *call)
{
    for (const char *at = call->arguments; *at; at++)
        if (strchr("sxncaAlo", *at) && (at == call->arguments || strchr(" ", at[-1]))) return 1;
    return 0;
}

static void in_child(void)
{
    struct argument list[ARGUMENTS];
    lw_store *store;
    lw_buf value = LW_BUF_INIT;
    int refused = 0;
    /* Calls that free come last: other calls need what they free. */
    for (int frees = 0; frees < 2; frees++) {
        for (int at = 0; at < COUNT; at++) {
            const struct call *call = &CALLS[at];
            int is_free = is_end(call);
            if (is_free != frees || !is_of_process(call)) continue;
            if (!strcmp(call->name, "lw_store_reopen")) continue;
            int count = arguments(call, &world, list);
            int code = invoke(call, list);
            if (!is_free && code != LW_FORKED) {
                fprintf(stderr, "%s: %s\n", call->name, lw_code_name(code));
                _exit(1);
            }
            CHECK(is_free || lw_error_code(error) == LW_FORKED);
            refused += !is_free;
            /* A function that has freed an object does not free it twice. */
            after(list, count, &world);
            if (!frees) continue;
            if (!strcmp(call->name, "lw_close")) IS(LW_MISUSE, lw_close(world.store, &error));
        }
        if (frees) break;
        OK(lw_store_reopen(world.store, &store, &error));
    }
    CHECK(refused > 70);
    /* A table is plain memory. */
    OK(lw_get(store, world.table, "parent", 6, &value, &error));
    OK(lw_put(store, world.table, "child", 5, "1", 1, &error));
    OK(lw_close(store, &error));
    lw_buf_free(&value);
    _exit(0);
}

static void wait_for(pid_t child)
{
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv)
{
    lw_options options = LW_OPTIONS_INIT;
    lw_buf value = LW_BUF_INIT;
    lw_txn *tx;
    snprintf(world.path, sizeof world.path, "%s", argc > 1 ? argv[1] : "store");
    options.mode = LW_MODE_NONE;
    OK(lw_open(world.path, &options, &world.store, &error));
    OK(lw_table_new("t", NULL, &world.table, &error));
    OK(lw_locks_open(NULL, NULL, &world.locks, &error));
    OK(lw_put(world.store, world.table, "parent", 6, "1", 1, &error));
    for (int turn = 0; turn < 5; turn++) {
        fill(&world);
        OK(lw_txn_put(world.tx, world.table, "open", 4, "1", 1, &error));
        OK(lw_owner_lock(world.owner, "name", 4, 5, &error));
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) in_child();
        /* The parent continues at the same time, and after the child's end. */
        OK(lw_put(world.store, world.table, "both", 4, "1", 1, &error));
        wait_for(child);
        OK(lw_get(world.store, world.table, "child", 5, &value, &error));
        OK(lw_txn_put(world.tx, world.table, "open", 4, "2", 1, &error));
        OK(lw_commit(world.tx, &error));
        OK(lw_get(world.store, world.table, "open", 4, &value, &error));
        CHECK(value.len == 1 && *(char *)value.data == '2');
        OK(lw_owner_unlock(world.owner, "name", 4, &error));
        lw_row row;
        OK(lw_cursor_next(world.cursor, &row, &error));
        clear(&world);
    }
    /* Another thread is in a call at the fork: the child, which has no such thread, closes. */
    pthread_t thread;
    char byte = 0;
    CHECK(!pipe(entered) && !pipe(left));
    CHECK(!pthread_create(&thread, NULL, reads, NULL));
    CHECK(read(entered[0], &byte, 1) == 1);
    pid_t beside = fork();
    if (beside == 0) {
        OK(lw_close(world.store, &error));
        _exit(0);
    }
    wait_for(beside);
    IS(LW_BUSY, lw_close(world.store, &error));
    CHECK(write(left[1], &byte, 1) == 1);
    CHECK(!pthread_join(thread, NULL));
    /* A child of a child, which begins a transaction that dies with it. */
    pid_t child = fork();
    if (child == 0) {
        lw_store *store;
        OK(lw_store_reopen(world.store, &store, &error));
        pid_t grandchild = fork();
        if (grandchild == 0) {
            lw_store *own;
            IS(LW_FORKED, lw_sync(store, &error));
            OK(lw_store_reopen(store, &own, &error));
            OK(lw_begin(own, NULL, &tx, &error));
            OK(lw_txn_put(tx, world.table, "dies", 4, "1", 1, &error));
            kill(getpid(), SIGKILL);
        }
        int status;
        CHECK(waitpid(grandchild, &status, 0) == grandchild && WIFSIGNALED(status));
        OK(lw_put(store, world.table, "dies", 4, "2", 1, &error));
        OK(lw_close(store, &error));
        _exit(0);
    }
    wait_for(child);
    OK(lw_get(world.store, world.table, "dies", 4, &value, &error));
    CHECK(value.len == 1 && *(char *)value.data == '2');
    lw_buf_free(&value);
    lw_table_free(world.table);
    lw_locks_close(world.locks);
    OK(lw_close(world.store, &error));
    return 0;
}
