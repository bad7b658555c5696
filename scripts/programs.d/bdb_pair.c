/* One Berkeley DB client: bdb_pair DIR COUNT
 *
 * Joins the environment in DIR (shared lock manager and page pool, both in shared memory), adds 1
 * to a stored counter COUNT times under a write lock of the lock manager, and prints the value it
 * last saw. COUNT 0 creates the environment and the database if need be, and only reads. */
#include <db.h>
#include <stdio.h>
#include <stdlib.h>

#define OK(call) do { int rc_ = (call); if (rc_) { \
    fprintf(stderr, "%s: %s\n", #call, db_strerror(rc_)); return 1; } } while (0)

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    long count = atol(argv[2]), value = 0;
    DB_ENV *env; DB *db; DB_LOCK lock; u_int32_t locker;
    DBT name = { .data = "counter", .size = 7 }, key = name;
    DBT data = { .data = &value, .size = sizeof value, .ulen = sizeof value,
                 .flags = DB_DBT_USERMEM };
    OK(db_env_create(&env, 0));
    OK(env->open(env, argv[1], DB_CREATE | DB_INIT_LOCK | DB_INIT_MPOOL, 0600));
    OK(db_create(&db, env, 0));
    OK(db->open(db, NULL, "pair.db", NULL, DB_BTREE, DB_CREATE, 0600));
    OK(env->lock_id(env, &locker));
    for (long i = count > 0 ? count : 1; i > 0; i--) {
        OK(env->lock_get(env, locker, 0, &name, count ? DB_LOCK_WRITE : DB_LOCK_READ, &lock));
        int found = db->get(db, NULL, &key, &data, 0);
        if (found != 0 && found != DB_NOTFOUND) OK(found);
        if (count) { value++; OK(db->put(db, NULL, &key, &data, 0)); }
        OK(env->lock_put(env, &lock));
    }
    OK(env->lock_id_free(env, locker));
    OK(db->close(db, 0));
    OK(env->close(env, 0));
    printf("%ld\n", value);
    return 0;
}
