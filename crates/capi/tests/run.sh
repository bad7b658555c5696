# Sourced by `scripts/capi test`: compiles and runs the C programs of this folder.

tests=$PWD/crates/capi/tests
out=$(out)
work=$out/tests
rm -rf "$work"
mkdir -p "$work"
WARN="-Wall -Wextra -Wpedantic -Werror -std=c11 -D_GNU_SOURCE -g"
out=$(realpath "$out")
work=$(realpath "$work")
export LD_LIBRARY_PATH=$out

PROGRAMS="example store args fork threads kill locks"

compile() { # program name flags..
    local program=$1 name=$2
    shift 2
    # shellcheck disable=SC2086
    "${CC:-cc}" $WARN "$@" -I"$out" -I"$tests" "$tests/$program.c" -o "$work/$program-$name" \
        -L"$out" -llatchwork -lpthread
}

run() { # program name command..
    local program=$1 name=$2 log=$work/$1-$2.log place=$work/$1-$2.d
    shift 2
    rm -rf "$place"
    mkdir -p "$place"
    if ! "$@" "$work/$program-$name" "$place/store" >"$log" 2>&1; then
        cat "$log" >&2
        die "$program failed ($name)"
    fi
    say "$program ($name): ok"
    rm -rf "$place"
}

can_compile() { # flags..
    echo 'int main(void) { return 0; }' >"$work/probe.c"
    "${CC:-cc}" "$@" "$work/probe.c" -o "$work/probe" 2>/dev/null && "$work/probe" 2>/dev/null
}

for program in $PROGRAMS; do
    compile "$program" plain
    run "$program" plain
done

# The first program of the guide, unchanged.
awk '/^```c$/ { inside = 1; next } /^```$/ && inside { exit } inside' docs/c.md >"$work/guide.c"
# shellcheck disable=SC2086
"${CC:-cc}" $WARN -I"$out" "$work/guide.c" -o "$work/guide" -L"$out" -llatchwork
(cd "$work" && [ "$(./guide)" = first ]) || die "the first program of docs/c.md does not work"
say "guide: ok"

# A function without a row in the table of args.c fails here.
diff <(symbols) <("$work/args-plain" --names | sort -u) || die "args.c does not cover these functions"

if can_compile -fsanitize=address,undefined; then
    for program in $PROGRAMS; do
        compile "$program" asan -fsanitize=address,undefined -fno-sanitize-recover=all
        # The library keeps the memory of handles and names until the process ends: `handle.rs`.
        run "$program" asan env ASAN_OPTIONS=detect_leaks=1:abort_on_error=0 \
            LSAN_OPTIONS=suppressions=$tests/lsan.supp:print_suppressions=0
    done
else
    skip "AddressSanitizer: cc cannot link it"
fi

if can_compile -fsanitize=thread; then
    for program in store threads; do
        compile "$program" tsan -fsanitize=thread
        run "$program" tsan env TSAN_OPTIONS=suppressions=$tests/tsan.supp
    done
else
    skip "ThreadSanitizer: cc cannot link it, or it does not run on this kernel"
fi

if command -v valgrind >/dev/null; then
    for program in example store args locks; do
        run "$program" plain valgrind -q --error-exitcode=9 --leak-check=full \
            --errors-for-leak-kinds=definite --suppressions=$tests/valgrind.supp
    done
else
    skip "valgrind is not installed"
fi

# An installation into a DESTDIR, then a program that is compiled with pkg-config alone.
(
    unset LD_LIBRARY_PATH
    root=$work/root
    DESTDIR=$root PREFIX=/opt/latchwork LIBDIR=/opt/latchwork/lib install_
    export PKG_CONFIG_PATH=$root/opt/latchwork/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root
    cd "$work"
    # shellcheck disable=SC2046
    "${CC:-cc}" -o example "$tests/example.c" $(pkg-config --cflags --libs latchwork)
    LD_LIBRARY_PATH=$root/opt/latchwork/lib ./example "$work/installed"
    # shellcheck disable=SC2046
    "${CC:-cc}" -o example-static "$tests/example.c" $(pkg-config --cflags latchwork) \
        "$root/opt/latchwork/lib/liblatchwork.a" -lpthread -ldl -lm -lgcc_s
    ./example-static "$work/installed"
) || die "the installed library does not work"
say "installation: ok"

release=()
[ "$PROFILE" = dev ] || release=(--release)
cargo test --quiet "${release[@]}" -p latchwork-capi --features own-tests --test panics >"$work/panics.log" 2>&1 ||
    { cat "$work/panics.log" >&2; die "a panic leaves the library"; }
say "panics: ok"

# The tests of isolation, with a C program as each of their processes.
compile role plain
LATCHWORK_ROLE_PROGRAM=$work/role-plain \
    cargo test --quiet "${release[@]}" -p latchwork-check --test store -- between_processes >"$work/dialogues.log" 2>&1 ||
    { cat "$work/dialogues.log" >&2; die "the dialogues come out differently through the C interface"; }
say "dialogues: ok"
