//! A program in C with one latch that four threads take 200 times each. It then sleeps for a number
//! of seconds given by its argument.

pub(crate) const HOT: &str = r"
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
static void *hot_spot(void *a) {
    for (int i = 0; i < 200; i++) {
        pthread_mutex_lock(&m);
        usleep(50);
        pthread_mutex_unlock(&m);
    }
    return a;
}
int main(int c, char **v) {
    pthread_t t[4];
    for (int i = 0; i < 4; i++) pthread_create(&t[i], 0, hot_spot, 0);
    for (int i = 0; i < 4; i++) pthread_join(t[i], 0);
    if (c > 1) sleep(atoi(v[1]));
    _exit(3);
}
";
