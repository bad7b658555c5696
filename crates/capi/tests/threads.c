/* Threads: all of them on one store and one table; transactions that move between threads; one
 * transaction on two threads, which is refused and harms nothing; objects that are freed or closed
 * while calls use them. */
#include "test.h"

#include <pthread.h>

enum { THREADS = 4, TURNS = 50 };

static lw_store *store;
static lw_table *table;

static int adds(lw_txn *tx, void *context)
{
    lw_buf value = LW_BUF_INIT;
    long number = 0;
    int code = lw_txn_get_for_update(tx, table, "sum", 3, &value, NULL);
    (void)context;
    if (code == LW_OK) memcpy(&number, value.data, sizeof number);
    lw_buf_free(&value);
    if (code < 0) return code;
    number++;
    return lw_txn_put(tx, table, "sum", 3, &number, sizeof number, NULL);
}

static void *works(void *context)
{
    lw_buf value = LW_BUF_INIT;
    lw_error *why = NULL;
    long id = (long)context;
    for (int turn = 0; turn < TURNS; turn++) {
        CHECK(lw_write(store, NULL, adds, NULL, &why) == LW_OK);
        CHECK(lw_put(store, table, &id, sizeof id, &turn, sizeof turn, &why) == LW_OK);
        CHECK(lw_get(store, table, &id, sizeof id, &value, &why) == LW_OK);
        CHECK(value.len == sizeof turn && !memcmp(value.data, &turn, sizeof turn));
    }
    lw_buf_free(&value);
    return NULL;
}

/* One transaction on all threads at once: each call does all of its work, or says LW_MISUSE. */
static lw_txn *common;
static long done[THREADS], refused[THREADS];

static void *contends(void *context)
{
    long id = (long)context;
    for (int turn = 0; turn < 20 * TURNS; turn++) {
        long key[2] = { id, turn };
        int code = lw_txn_put(common, table, key, sizeof key, "x", 1, NULL);
        CHECK(code == LW_OK || code == LW_BUSY);
        *(code == LW_OK ? &done[id] : &refused[id]) += 1;
    }
    return NULL;
}

static void all(void *(*work)(void *))
{
    pthread_t threads[THREADS];
    for (long id = 0; id < THREADS; id++) CHECK(!pthread_create(&threads[id], NULL, work, (void *)id));
    for (int id = 0; id < THREADS; id++) CHECK(!pthread_join(threads[id], NULL));
}

/* A store that is closed while calls use it: each call does its work or says that the store is
 * closed, and the close says whether it has closed the store. */
static lw_store *closing;
static int closed_by[2];

static void *reads(void *context)
{
    lw_buf value = LW_BUF_INIT;
    long id = (long)context, turn = 0;
    int code;
    do {
        code = turn++ % 8 ? lw_get(closing, table, "k", 1, &value, NULL)
                          : lw_put(closing, table, "k", 1, &id, sizeof id, NULL);
        CHECK(code == LW_OK || code == LW_MISUSE || code == LW_NOT_FOUND);
        if (id < 2 && turn % 16 == 0) {
            int closed = lw_close(closing, NULL);
            CHECK(closed == LW_OK || closed == LW_BUSY || closed == LW_MISUSE);
            closed_by[id] += closed == LW_OK;
        }
    } while (code != LW_MISUSE);
    lw_buf_free(&value);
    return NULL;
}

static void closes(const char *path, const lw_options *options)
{
    char other[600];
    snprintf(other, sizeof other, "%s-closed", path);
    for (int turn = 0; turn < TURNS; turn++) {
        memset(closed_by, 0, sizeof closed_by);
        OK(lw_open(other, options, &closing, &error));
        all(reads);
        CHECK(closed_by[0] + closed_by[1] == 1);
    }
}

/* The objects of the running call, which a callback uses. */
static lw_snapshot *snapshot;
static lw_txn *open_tx;

static void ends_store(void *context, const void *value, size_t len)
{
    lw_buf copy = LW_BUF_INIT;
    (void)context, (void)value, (void)len;
    IS(LW_BUSY, lw_close(store, &error));
    /* The end of a call in a callback is not the end of the outer one. */
    OK(lw_get(store, table, "sum", 3, &copy, &error));
    IS(LW_BUSY, lw_close(store, &error));
    lw_buf_free(&copy);
}

static void ends_snapshot(void *context, const void *value, size_t len)
{
    (void)context, (void)value, (void)len;
    CHECK(lw_snapshot_free(snapshot) == LW_BUSY);
}

static void ends_transaction(void *context, const void *value, size_t len)
{
    (void)context, (void)value, (void)len;
    CHECK(lw_txn_free(open_tx) == LW_BUSY);
    IS(LW_BUSY, lw_commit(open_tx, &error));
}

static void *holds(void *context)
{
    (void)context;
    OK(lw_get_with(store, table, "sum", 3, ends_store, NULL, &error));
    return NULL;
}

static void frees(void)
{
    pthread_t other;
    OK(lw_snapshot_new(store, &snapshot, &error));
    OK(lw_begin(store, NULL, &open_tx, &error));
    OK(lw_get_with(store, table, "sum", 3, ends_store, NULL, &error));
    OK(lw_snapshot_get_with(snapshot, table, "sum", 3, ends_snapshot, NULL, &error));
    OK(lw_txn_get_with(open_tx, table, "sum", 3, ends_transaction, NULL, &error));
    CHECK(!pthread_create(&other, NULL, holds, NULL) && !pthread_join(other, NULL));
    CHECK(lw_snapshot_free(snapshot) == LW_OK && lw_snapshot_free(snapshot) == LW_MISUSE);
    CHECK(lw_txn_free(open_tx) == LW_OK && lw_txn_free(open_tx) == LW_MISUSE);
    CHECK(lw_txn_free(NULL) == LW_OK);
}

static void *commits(void *tx) { return (void *)(long)lw_commit(tx, NULL); }

int main(int argc, char **argv)
{
    lw_options options = LW_OPTIONS_INIT;
    lw_buf value = LW_BUF_INIT;
    lw_txn *tx;
    pthread_t other;
    uint64_t count, before;
    long number, all_done = 0;
    void *code;
    options.mode = LW_MODE_NONE;
    OK(lw_open(argc > 1 ? argv[1] : "store", &options, &store, &error));
    OK(lw_table_new("t", NULL, &table, &error));
    all(works);
    OK(lw_get(store, table, "sum", 3, &value, &error));
    memcpy(&number, value.data, sizeof number);
    CHECK(number == THREADS * TURNS);

    OK(lw_begin(store, NULL, &common, &error));
    OK(lw_txn_count(common, table, NULL, &before, &error));
    all(contends);
    for (int id = 0; id < THREADS; id++) all_done += done[id];
    OK(lw_txn_count(common, table, NULL, &count, &error));
    CHECK((long)(count - before) == all_done);
    OK(lw_commit(common, &error));

    /* It is begun here, and committed by another thread. */
    OK(lw_begin(store, NULL, &tx, &error));
    OK(lw_txn_put(tx, table, "moved", 5, "1", 1, &error));
    CHECK(!pthread_create(&other, NULL, commits, tx) && !pthread_join(other, &code) && code == NULL);
    OK(lw_get(store, table, "moved", 5, &value, &error));
    frees();
    closes(argc > 1 ? argv[1] : "store", &options);
    lw_buf_free(&value);
    lw_table_free(table);
    OK(lw_close(store, &error));
    return 0;
}
