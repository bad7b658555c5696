/* Eight processes move money between accounts, and one of them is killed every 50 ms for some
 * seconds. The total is the same at any time, in every process; and each transfer whose commit
 * returned is counted once. */
#include "test.h"

#include <sys/mman.h>

enum { PROCESSES = 8, ACCOUNTS = 20, START = 1000 };

static lw_store *store;
static lw_table *accounts, *transfers;

/* The committed transfers of each process, in memory that survives it. */
static struct { volatile long told, begun; } *shared;

struct transfer { int from, to; long amount; int process; };

static long balance(lw_txn *tx, int account, int *code)
{
    lw_buf value = LW_BUF_INIT;
    long amount = 0;
    *code = lw_txn_get_for_update(tx, accounts, &account, sizeof account, &value, NULL);
    if (*code == LW_OK) memcpy(&amount, value.data, sizeof amount);
    lw_buf_free(&value);
    return amount;
}

static int set(lw_txn *tx, int account, long amount)
{
    return lw_txn_put(tx, accounts, &account, sizeof account, &amount, sizeof amount, NULL);
}

/* Counts the transfers of a process in the same transaction. */
static int count_one(lw_txn *tx, int process)
{
    lw_buf value = LW_BUF_INIT;
    long count = 0;
    int code = lw_txn_get_for_update(tx, transfers, &process, sizeof process, &value, NULL);
    if (code == LW_OK) memcpy(&count, value.data, sizeof count);
    lw_buf_free(&value);
    if (code < 0) return code;
    count++;
    return lw_txn_put(tx, transfers, &process, sizeof process, &count, sizeof count, NULL);
}

static int body(lw_txn *tx, void *context)
{
    struct transfer *of = context;
    int code;
    long from = balance(tx, of->from, &code), to;
    if (code < 0) return code;
    to = balance(tx, of->to, &code);
    if (code < 0) return code;
    if ((code = set(tx, of->from, from - of->amount)) < 0) return code;
    if ((code = set(tx, of->to, to + of->amount)) < 0) return code;
    return count_one(tx, of->process);
}

static int adds(void *context, const void *key, size_t key_len, const void *value, size_t len)
{
    long amount;
    (void)key, (void)key_len;
    CHECK(len == sizeof amount);
    memcpy(&amount, value, sizeof amount);
    *(long *)context += amount;
    return 0;
}

static long total(lw_table *table)
{
    lw_snapshot *snapshot;
    long sum = 0;
    OK(lw_snapshot_new(store, &snapshot, &error));
    OK(lw_snapshot_scan(snapshot, table, NULL, adds, &sum, &error));
    lw_snapshot_free(snapshot);
    return sum;
}

static void works(const char *path, int process, unsigned seed)
{
    lw_options options = LW_OPTIONS_INIT;
    lw_txn_options of = LW_TXN_OPTIONS_INIT;
    options.flags = LW_NO_CREATE, options.mode = LW_MODE_NONE;
    of.time_ms = 60000;
    OK(lw_open(path, &options, &store, &error));
    for (long turn = 0;; turn++) {
        struct transfer transfer = { 0, 0, 0, process };
        transfer.from = rand_r(&seed) % ACCOUNTS;
        transfer.to = (transfer.from + 1 + rand_r(&seed) % (ACCOUNTS - 1)) % ACCOUNTS;
        transfer.amount = rand_r(&seed) % 100;
        shared[process].begun++;
        OK(lw_write(store, &of, body, &transfer, &error));
        shared[process].told++;
        if (turn % 64 == 0) CHECK(total(accounts) == (long)ACCOUNTS * START);
    }
}

static pid_t start(const char *path, int process)
{
    static unsigned seed = 1;
    pid_t child;
    seed++;
    child = fork();
    CHECK(child >= 0);
    if (child == 0) works(path, process, seed);
    return child;
}

/* The transfers of a process that the store has counted. */
static long counted(int process)
{
    lw_buf value = LW_BUF_INIT;
    long count = 0;
    if (lw_get(store, transfers, &process, sizeof process, &value, &error) == LW_OK)
        memcpy(&count, value.data, sizeof count);
    lw_buf_free(&value);
    return count;
}

int main(int argc, char **argv)
{
    lw_options options = LW_OPTIONS_INIT;
    const char *path = argc > 1 ? argv[1] : "store";
    int seconds = argc > 2 ? atoi(argv[2]) : 3, kills = seconds * 20, lost[PROCESSES] = { 0 };
    long sum = 0;
    pid_t children[PROCESSES];
    shared = mmap(NULL, sizeof *shared * PROCESSES, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    options.mode = LW_MODE_NONE;
    OK(lw_table_new("accounts", NULL, &accounts, &error));
    OK(lw_table_new("transfers", NULL, &transfers, &error));
    /* Closed before the children are started, which open it themselves. */
    OK(lw_open(path, &options, &store, &error));
    for (int account = 0; account < ACCOUNTS; account++) {
        long amount = START;
        OK(lw_put(store, accounts, &account, sizeof account, &amount, sizeof amount, &error));
    }
    OK(lw_close(store, &error));
    for (int process = 0; process < PROCESSES; process++) children[process] = start(path, process);
    for (int turn = 0; turn < kills; turn++) {
        int process = turn % PROCESSES, status;
        usleep(50000);
        CHECK(kill(children[process], SIGKILL) == 0);
        CHECK(waitpid(children[process], &status, 0) == children[process]);
        CHECK(WIFSIGNALED(status));
        lost[process]++;
        children[process] = start(path, process);
    }
    for (int process = 0; process < PROCESSES; process++) {
        int status;
        kill(children[process], SIGKILL);
        CHECK(waitpid(children[process], &status, 0) == children[process] && WIFSIGNALED(status));
        lost[process]++;
    }
    OK(lw_open(path, &options, &store, &error));
    OK(lw_sweep(store, NULL, &error));
    CHECK(total(accounts) == (long)ACCOUNTS * START);
    for (int process = 0; process < PROCESSES; process++) {
        long count = counted(process), told = shared[process].told;
        /* A commit of a killed process may be counted although it has not returned. */
        CHECK(told <= count && count <= told + lost[process]);
        sum += count;
    }
    CHECK(sum == total(transfers) && sum > kills);
    OK(lw_verify(store, NULL, NULL, &error));
    OK(lw_close(store, &error));
    lw_table_free(accounts), lw_table_free(transfers);
    printf("%d kills, %ld transfers\n", kills + PROCESSES, sum);
    return 0;
}
