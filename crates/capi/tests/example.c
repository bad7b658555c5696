/* The first program of docs/c.md: cc example.c $(pkg-config --cflags --libs latchwork) */
#include <latchwork.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    lw_store *store = NULL;
    lw_table *visits = NULL;
    lw_buf value = LW_BUF_INIT;
    lw_error *error = NULL;
    int code = lw_open(argc > 1 ? argv[1] : "visits", NULL, &store, &error);
    if (code == LW_OK) code = lw_table_new("visits", NULL, &visits, &error);
    if (code == LW_OK) code = lw_put(store, visits, "ann", 3, "first", 5, &error);
    if (code == LW_OK) code = lw_get(store, visits, "ann", 3, &value, &error);
    if (code == LW_OK) printf("%.*s\n", (int)value.len, (char *)value.data);
    if (code < 0) fprintf(stderr, "%s: %s\n", lw_code_name(code), lw_error_message(error));
    lw_error_free(error);
    lw_buf_free(&value);
    lw_table_free(visits);
    lw_close(store, NULL);
    return code != LW_OK;
}
