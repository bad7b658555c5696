/* Threads start, wait and end: their waiter slots are reused. */
#include "check.h"
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t c = PTHREAD_COND_INITIALIZER;
static int open_;
static void *body(void *leave) {
    pthread_mutex_lock(&m);
    while (!open_)
        pthread_cond_wait(&c, &m);
    pthread_mutex_unlock(&m);
    if (leave)
        pthread_exit(0);
    return 0;
}
int main(void) {
    for (int round = 0; round < 40; round++) {
        pthread_t threads[50];
        open_ = 0;
        for (long i = 0; i < 50; i++)
            CHECK(pthread_create(&threads[i], 0, body, (void *)(i % 2)) == 0);
        usleep(1000);
        pthread_mutex_lock(&m);
        open_ = 1;
        pthread_cond_broadcast(&c);
        pthread_mutex_unlock(&m);
        for (int i = 0; i < 50; i++)
            pthread_join(threads[i], 0);
    }
    puts("ok");
    return 0;
}
