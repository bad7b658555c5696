/* Threads: all of them on one store and one table; transactions that move between threads; one
 * transaction on two threads, which is refused and harms nothing. */
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
        CHECK(code == LW_OK || code == LW_MISUSE);
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
    lw_buf_free(&value);
    lw_table_free(table);
    OK(lw_close(store, &error));
    return 0;
}
