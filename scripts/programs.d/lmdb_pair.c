/* One LMDB writer: lmdb_pair DIR COUNT
 *
 * Adds 1 to a stored counter COUNT times, one write transaction each, and prints the value it
 * last saw. COUNT 0 only reads; COUNT -1 dies by SIGKILL inside a write transaction, so the next
 * writer finds LMDB's robust, process-shared mutex held by a dead process and must recover it. */
#include <lmdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define OK(call) do { int rc_ = (call); if (rc_) { \
    fprintf(stderr, "%s: %s\n", #call, mdb_strerror(rc_)); return 1; } } while (0)

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    long count = atol(argv[2]), value = 0;
    MDB_env *env; MDB_txn *txn; MDB_dbi dbi;
    MDB_val key = { 7, "counter" }, data;
    OK(mdb_env_create(&env));
    OK(mdb_env_open(env, argv[1], MDB_NOSYNC, 0600));
    for (long i = count > 0 ? count : 1; i > 0; i--) {
        OK(mdb_txn_begin(env, NULL, count ? 0 : MDB_RDONLY, &txn));
        OK(mdb_dbi_open(txn, NULL, 0, &dbi));
        if (count < 0) raise(SIGKILL);
        value = mdb_get(txn, dbi, &key, &data) == 0 ? *(long *)data.mv_data : 0;
        if (count == 0) { mdb_txn_abort(txn); break; }
        value++;
        data = (MDB_val){ sizeof value, &value };
        OK(mdb_put(txn, dbi, &key, &data, 0));
        OK(mdb_txn_commit(txn));
    }
    mdb_env_close(env);
    printf("%ld\n", value);
    return 0;
}
